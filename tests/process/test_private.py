"""What is written is for its owner alone, without systemd's help: it holds people's addresses (issue 12, point 17)."""

import os
import stat

import pytest
from support.caring import done, fill
from support.command import Server


@pytest.fixture(autouse=True)
def umask():
    """The usual umask, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path):
    """The permissions of a directory and of all that is in it."""
    found = {each.relative_to(path.parent): stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*")}
    return {path.name: stat.S_IMODE(path.stat().st_mode)} | {str(name): mode for name, mode in found.items()}


def assert_private(path):
    """It is for its owner alone."""
    found = modes(path)
    assert found.pop(path.name) == 0o700
    assert found
    assert set(found.values()) == {0o600}, found


def serve(path, *arguments):
    """A server that publishes an offer and stops."""
    server = Server("--data-dir", path, *arguments)
    try:
        server.offer()
        yield server
        assert server.stop() == 0
    finally:
        server.end()


@pytest.mark.parametrize("there", [False, True])
def test_serve(there, tmp_path):
    """The data directory and all files in it are the server's alone, also where an empty directory was there."""
    path = tmp_path / "data"
    if there:
        path.mkdir(mode=0o755)
    for _ in range(2):
        for _ in serve(path):
            assert_private(path)
        assert_private(path)


def test_a_database_that_is_there(tmp_path):
    """The mode that an operator has given to the directory of a database stays, for a group that backs it up."""
    path = tmp_path / "data"
    for _ in serve(path):
        pass
    path.chmod(0o750)
    for _ in serve(path):
        pass
    found = modes(path)
    assert found.pop("data") == 0o750
    assert set(found.values()) == {0o600}


def test_what_looks_after_the_data(tmp_path):
    """A backup, what is restored of it, and what is repaired or kept aside are the owner's alone."""
    path, saved, restored = tmp_path / "data", tmp_path / "saved", tmp_path / "restored"
    for server in serve(path, "--admin-port", 0):
        done("backup", saved, "--admin-url", server.admin_url)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    done("restore", saved, "--data-dir", restored)
    assert_private(restored)
    done("compact", "--data-dir", restored)
    assert_private(restored)
    path = tmp_path / "harmed"
    os.umask(0o077)
    fill(path, 20)
    os.umask(0o022)
    (path / "CURRENT").write_bytes(b"nonsense")
    done("repair", "--data-dir", path)
    for each in tmp_path.iterdir():
        if each.name.startswith("harmed"):
            assert_private(each)


@pytest.mark.parametrize("mode", ["660", "666"])
def test_a_unix_socket(mode, tmp_path):
    """A Unix socket has the permissions that are asked for: who connects to it is somebody else."""
    path = tmp_path / "socket"
    server = Server("--data-dir", tmp_path / "data", "--address", f"unix:{path}", "--socket-mode", mode, port=None)
    try:
        assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)
        assert server.stop() == 0
    finally:
        server.end()
