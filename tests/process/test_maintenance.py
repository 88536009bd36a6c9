"""The commands that look after the data, against running servers and stopped ones, and who may read its files."""

import json
import os
import shutil
import socket
import stat

import pytest
from support.command import ORIGIN, begin, run
from support.maintenance import names, run_ok, run_refused
from support.redis_servers import free_port
from support.waiting import output, run_command

ADMIN = ("--admin-port", 0)


def test_commands_find_the_server_by_its_settings(start, tmp_path):
    port, address = str(free_port()), ("--admin-address", "127.0.0.2")
    variables = {"TORNADO_SIGNAL_ADMIN_PORT": port, "TORNADO_SIGNAL_DATA_DIR": "here/deeper"}
    server = start(**variables)
    server.offer()
    (tmp_path / "signal.toml").write_text(f"admin_port = {port}\ndata_dir = 'here/deeper'\n")
    for flags, options in ((("--config", "signal.toml"), {}), (("--admin-port", port), {}), ((), variables)):
        shown = json.loads(run_ok("admin", "status", *flags, cwd=tmp_path, **options))
        assert shown["store"]["origins"][0]["origin"] == ORIGIN
    assert "debug" in run_ok("admin", "log-level", "--level", "debug", "--config", "signal.toml", cwd=tmp_path)
    server.end()
    start(*address, **variables)
    assert "processes" in run_ok("admin", "status", "--admin-port", port, *address)
    assert names(tmp_path) == ["here", "signal.toml"]


def test_check_creates_no_database(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        said = run_refused("check", "--data-dir", name, cwd=tmp_path)
        assert said == f"there is no database in {name}; name its directory with --data-dir"
    assert (names(tmp_path), names(tmp_path / "empty")) == (["empty"], [])


def test_command_without_a_server_gives_advice(start, tmp_path):
    port = free_port()
    said = run_refused("admin", "status", "--admin-port", port, cwd=tmp_path)
    assert said == (
        f"no server responds at http://127.0.0.1:{port} (Connection refused); start it, or name its admin listener "
        "with --admin-port or --admin-url"
    )
    assert "--admin-port or --admin-url" in run_refused("admin", "status", cwd=tmp_path)
    said = run_refused("admin", "status", "--admin-port", 0, cwd=tmp_path)
    assert said == "with --admin-port 0 only the server's log contains the port; name it with --admin-url"
    server = start(*ADMIN)
    for action in ("status", "drain"):
        said = run_refused("admin", action, "--admin-url", server.url, cwd=tmp_path)
        assert said.startswith(f"the server at {server.url} is not the admin listener of a tornado-signal; name that")
    assert names(tmp_path) == ["data"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("greeting", [b"SSH-2.0-x\r\n", b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"])
def test_command_does_not_wait_for_another_server_to_close(greeting, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = begin("admin", "status", "--admin-url", url, cwd=tmp_path)
        try:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(greeting)
                assert "is not the admin listener" in process.communicate()[1]
        finally:
            process.kill()
            process.wait()


@pytest.mark.needs("curl")
@pytest.mark.parametrize("token", ["", "0123456789abcdef"])
def test_maintenance_from_other_machines_requires_the_token(token, network, start, tmp_path):
    named = []
    if token:
        (tmp_path / "token").write_text(f"{token}\n")
        named = ["--admin-token-file", tmp_path / "token"]
    server = start("--admin-port", 0, "--admin-address", "0.0.0.0", *named, prefix=network)
    assert ("only health and metrics without --admin-token-file" in "".join(server.log)) == (not token)
    port = server.admin_url.rpartition(":")[2]

    def status(host, path, *options):
        ask = ("curl", "-s", "-o", tmp_path / "answer", "-w", "%{http_code}", *options, f"http://{host}:{port}{path}")
        return output(run_command(*network, *ask))

    shown = ("-X", "POST", "-d", '{"level": "info"}', "-H", f"Authorization: Bearer {token or 'x'}")
    for host in ("192.0.2.1", "127.0.0.1"):
        for path in ("/metrics", "/healthz", "/readyz"):
            assert status(host, path) == "200"
        path = "/actions/log-level"
        assert status(host, path, "-X", "POST", "-H", "Host: 127.0.0.1") == ("401" if token else "403")
        assert status(host, path, *shown, "-H", "Origin: http://127.0.0.1") == "403"
        assert status(host, path, *shown) == ("200" if token else "403")

    done = run("admin", "drain", "--admin-url", f"http://192.0.2.1:{port}", prefix=network)
    missing = "requires its token" if token else "set --admin-token-file on the server and for this command"
    assert missing in done.stderr


# Files are readable by their owner only, also without systemd, because they hold people's addresses.


@pytest.fixture(autouse=True)
def umask():
    """The usual umask, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path):
    return {str(each.relative_to(path.parent)): stat.S_IMODE(each.stat().st_mode) for each in (path, *path.rglob("*"))}


def assert_private(path):
    found = modes(path)
    assert found.pop(path.name) == 0o700
    assert found
    assert set(found.values()) == {0o600}, found


def test_files_of_the_data_directory_are_private_and_a_changed_mode_is_kept(start, tmp_path):
    def serve(*arguments, check=lambda path: None):
        server = start(*arguments)
        server.offer()
        check(path)
        assert server.stop() == 0

    path = tmp_path / "data"
    path.mkdir(mode=0o755)
    for _ in range(2):
        serve(check=assert_private)
        assert_private(path)
    path.chmod(0o750)  # for a group that makes backups
    serve()
    found = modes(path)
    assert found.pop("data") == 0o750
    assert set(found.values()) == {0o600}
    shutil.rmtree(path)
    serve()
    run_ok("check", "--data-dir", path)
    assert_private(path)
    (path / "CURRENT").write_bytes(b"nonsense")
    serve("--start-empty-if-damaged")
    directories = [*tmp_path.glob("data*")]
    assert len(directories) == 2
    for each in directories:
        assert_private(each)
