"""Commands that root starts in a directory of another user, who wants root to write to files of the system."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.command import run
from support.maintenance import fill

pytestmark = pytest.mark.needs("root")

USER, GROUP = 23_456, 23_457
COMMANDS = (("check",), ("serve", "--check", "--port", 0), ("serve", "--port", 0, "--admin-port", 0))


@pytest.fixture
def home():
    """A directory of the user. Everybody can enter those above it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        os.chmod(above, 0o755)
        path = Path(above) / "home"
        path.mkdir(0o700)
        os.chown(path, USER, GROUP)
        yield path


def own(path):
    for each in (path, *path.rglob("*")):
        os.chown(each, USER, GROUP, follow_symlinks=False)


@pytest.fixture
def data(home):
    path = home.parent / "data"
    fill(path, 3)
    own(path)
    return path.rename(home / "data")


def owners(path):
    found = [os.lstat(each) for each in (path, *path.rglob("*"))]
    return {(status.st_uid, status.st_gid) for status in found}


@pytest.mark.parametrize("command", COMMANDS, ids=["check", "serve-check", "serve"])
def test_nothing_but_regular_files_is_accepted(command, data, home):
    system = home.parent / "authorized_keys"
    for name in [f"MANIFEST-{number:06}" for number in range(1, 40)] + [f"{number:06}.log" for number in range(1, 40)]:
        if not (data / name).exists():
            (data / name).symlink_to(system)
    own(data)
    for content in (None, "a key of root\n"):
        if content is not None:
            system.write_text(content)
        done = run(*command, "--data-dir", data)
        assert done.returncode == 1
        assert "is not a regular file; remove it, or choose another --data-dir" in done.stderr
        assert (system.read_text() if content else system.exists()) == (content or False)
    assert owners(data) == {(USER, GROUP)}
    for kind in (os.mkfifo, os.mkdir):
        shutil.rmtree(data)
        data.mkdir()
        kind(data / "CURRENT")
        own(data)
        assert "is not a regular file" in run(*command, "--data-dir", data).stderr


@pytest.mark.parametrize("command", COMMANDS[:2], ids=["check", "serve-check"])
@pytest.mark.parametrize("private", [False, True], ids=["open", "closed"])
def test_files_keep_their_owner_also_in_a_directory_that_only_root_can_enter(private, command, data, home):
    if private:  # as /var/lib/private of systemd
        home.parent.chmod(0o700)
    before = {path.name for path in data.iterdir()}
    done = run(*command, "--data-dir", data)
    assert (done.returncode, f"running as user {USER} and group {GROUP}" in done.stderr) == (0, True), done
    assert {path.name for path in data.iterdir()} - before
    assert owners(data) == {(USER, GROUP)}


def test_server_is_a_process_of_the_owner(data, start):
    server = start("--admin-port", 0, "--data-dir", data)
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert f"\nUid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status
    assert f"\nGid:\t{GROUP}\t{GROUP}\t{GROUP}\t{GROUP}\n" in status
    assert "\nGroups:\t \n" in status
    assert server.offer() in server.codes()
    assert server.exchange("/metrics", base=server.admin_url, origin=None)[0] == 200
    assert server.stop() == 0
    assert owners(data) == {(USER, GROUP)}


@pytest.mark.parametrize("command", COMMANDS[1:], ids=["serve-check", "serve"])
def test_sockets_are_opened_by_the_owner(command, data, home):
    done = run(*command, "--data-dir", data, "--address", f"unix:{home.parent}/socket")
    assert (done.returncode, "Permission denied" in done.stderr) == (1, True), done
    done = run("serve", "--check", "--data-dir", data, "--address", "unix:socket", cwd=home)
    assert (done.returncode, f"listener: unix:{home}/socket" in done.stdout) == (0, True), done


@pytest.mark.parametrize("way", ["data", "parent"])
def test_link_to_a_directory_of_root_is_opened_as_its_owner(way, home):
    """The user can replace a directory by a link between two steps of a command."""
    above = home.parent / "system"
    fill(above / "data", 3)
    before = {path: path.stat() for path in above.rglob("*")}
    named = home / way
    named.symlink_to(above / "data" if way == "data" else above)
    os.chown(named, USER, GROUP, follow_symlinks=False)
    for command in COMMANDS:
        done = run(*command, "--data-dir", named if way == "data" else named / "data")
        assert (done.returncode, f"running as user {USER}" in done.stderr) == (1, True)
        assert "Permission denied" in done.stderr
    assert {path: path.stat() for path in above.rglob("*")} == before


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_directory_of_root_that_others_can_write_is_refused(mode, home):
    data = home.parent / "data"
    fill(data, 3)
    os.chown(data, 0, GROUP)
    data.chmod(mode)
    for command in COMMANDS:
        done = run(*command, "--data-dir", data)
        assert done.returncode == 1
        assert f"other users than root can write to {data}" in done.stderr
    data.chmod(0o750)
    assert run("check", "--data-dir", data).returncode == 0


def test_links_in_a_circle_are_refused(home):
    for name, target in (("a", "b"), ("b", "a")):
        (home.parent / name).symlink_to(target)
    for command in COMMANDS:
        done = run(*command, "--data-dir", home.parent / "a")
        assert (done.returncode, "cannot open the database" in done.stderr) == (1, True), done
