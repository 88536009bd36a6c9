"""Files are readable by their owner only, also without systemd, because they hold people's addresses."""

import os
import stat

import pytest
from support.maintenance import run_ok


@pytest.fixture(autouse=True)
def umask():
    """The usual umask, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path):
    """The permissions of a directory and of all that is in it."""
    return {str(each.relative_to(path.parent)): stat.S_IMODE(each.stat().st_mode) for each in (path, *path.rglob("*"))}


def assert_private(path):
    found = modes(path)
    assert found.pop(path.name) == 0o700
    assert found
    assert set(found.values()) == {0o600}, found


@pytest.fixture
def served(start, tmp_path):
    """Return a function that starts a server, publishes an offer, passes the server to a callback and stops it."""

    def serving(*arguments, meanwhile=lambda server: None):
        server = start(*arguments)
        server.offer()
        meanwhile(server)
        assert server.stop() == 0

    return serving


@pytest.mark.parametrize("there", [False, True])
def test_existing_empty_data_directory_becomes_private(there, served, tmp_path):
    path = tmp_path / "data"
    if there:
        path.mkdir(mode=0o755)
    for _ in range(2):
        served(meanwhile=lambda server: assert_private(path))
        assert_private(path)


def test_file_mode_of_an_existing_database_is_kept(served, tmp_path):
    path = tmp_path / "data"
    served()
    path.chmod(0o750)  # for a group that makes backups
    served()
    found = modes(path)
    assert found.pop("data") == 0o750
    assert set(found.values()) == {0o600}


def test_checked_and_set_aside_files_are_private(served, tmp_path):
    path = tmp_path / "data"
    served()
    run_ok("check", "--data-dir", path)
    assert_private(path)
    (path / "CURRENT").write_bytes(b"nonsense")
    served("--start-empty-if-damaged")
    assert len(list(tmp_path.glob("data*"))) == 2
    for each in tmp_path.glob("data*"):
        assert_private(each)
