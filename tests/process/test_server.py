"""The installed command as a process: settings, listeners, what it refuses, how it stops, and what survives."""

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.command import BOUND_S, call, commit, run
from support.paths import ROOT
from support.rpc import open_socket
from support.scraping import scrape
from support.service import request
from support.service_manager import receive_message, wait_for_message
from support.traffic import send
from support.waiting import until


def refused(done, *reasons):
    """Prove that it ended with exit status 1 and one sentence, without a traceback."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("tornado-signal: ")
    for reason in reasons:
        assert reason in done.stderr


def test_defaults(start, tmp_path):
    server = start()
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", server.url)
    assert server.log[-1].endswith(f"Z INFO tornado_signal.process.listeners: listening on {server.url}\n")
    assert server.call("/") == (200, {"version": commit()})
    status, health = server.call("/health")
    assert (status, health["status"]) == (200, "ok")
    assert abs(health["timestamp"] - time.time() * 1000) < 60_000
    server.offer()
    (listed,) = server.call("/lobby/sessions")[1]["sessions"]
    assert listed["expiresAt"] - listed["createdAt"] == 300_000
    assert (tmp_path / "data" / "CURRENT").exists()
    assert server.admin_url is None
    assert server.stop() == 0
    assert any("ICE servers: none" in line for line in server.log)


async def test_server_has_no_warnings_in_the_development_mode_of_python(start):
    server = start(prefix=[sys.executable, "-X", "dev", "-W", "error"])
    code = server.offer()
    assert server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
    async with open_socket(server) as client:
        code = (await client.call("offer", topic="lobby", info="i", offer="o"))["code"]
        await client.call("answer", code=code, side="answerer", answer="a")
        assert (await client.call("poll", code=code, side="offerer"))["answer"] == "a"
    assert server.stop() == 0
    slow = " WARNING asyncio: Executing "  # on a busy machine
    assert [line for line in server.log if " INFO tornado_signal." not in line and slow not in line] == []


@pytest.mark.parametrize("limit", ["max-connections", "max-connections-per-address"])
def test_idle_connections_are_closed_when_places_are_short(limit, start):
    server = start(f"--{limit}", 5, "--unlimited-addresses", "none")
    raw = b"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n\r\n"
    with contextlib.ExitStack() as stack:

        def ask(sent):
            connection = stack.enter_context(connect(server))
            connection.sendall(sent)
            return connection

        def answered(connection):
            return connection.recv(10_000).startswith(b"HTTP/1.1 200 ")

        busy = ask(raw + raw[:20])
        assert answered(busy)
        idle = []
        for _ in range(10):
            idle.append(ask(raw))
            assert answered(idle[-1])
        closed = idle[:6]
        assert [connection.recv(1) for connection in closed] == [b""] * 6
        for connection in (busy, *idle[6:]):
            connection.sendall(raw[20:] if connection is busy else raw)
            assert answered(connection)


def test_secrets_are_in_variables_or_in_files_that_others_cannot_read(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as public:  # the directories of tests are private
        Path(public).chmod(0o755)
        key, private = Path(public) / "key.secret", tmp_path / "token"
        for file in (key, private):
            file.write_text("s" * 32)
            file.chmod(0o644)
        flags = ("serve", "--check", "--port", 0, "--admin-port", 0)
        keys = ("--auth-keys", key, "--auth-anonymous", "list")
        done = call(*flags, *keys, "--admin-token-file", private, cwd=tmp_path)
        assert done.returncode == 0
        assert "keys of tokens: key (HS256); allowed without a token: list\n" in done.stdout
        assert done.stderr.count("every user of this machine can read it") == 1
        assert f"{key} holds a secret, and every user of this machine can read it; run: chmod o= {key}" in done.stderr
    variables = {"TORNADO_SIGNAL_ADMIN_TOKEN": "t" * 32, "TORNADO_SIGNAL_AUTH_SECRET": "s" * 32}
    done = call(*flags, cwd=tmp_path, **variables)
    assert "admin token: environment variable TORNADO_SIGNAL_ADMIN_TOKEN\n" in done.stdout
    assert "keys of tokens: main (HS256); " in done.stdout
    refused(call(*flags, cwd=tmp_path, TORNADO_SIGNAL_AUTH_SECRET="short"), "AUTH_SECRET must hold one line")


def test_check_opens_and_reports_what_serve_needs(tmp_path):
    flags = ("--stun-servers", "stun:stun.example.com", "--otlp-endpoint", "http://127.0.0.1:9")
    done = call("serve", "--check", "--port", 0, "--admin-port", 0, *flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = r"settings: can be used\nopen files: room for \d+ connections\nspans: to http://127\.0\.0\.1:9\n"
    wanted += r"ICE servers: stun:stun\.example\.com\nlistener: http://127\.0\.0\.1:\d+\n"
    wanted += r"admin listener: http://127\.0\.0\.1:\d+\nstore: data, 0 sessions listed in 0 topics\n"
    assert re.fullmatch(wanted, done.stdout), done.stdout
    assert (tmp_path / "data" / "CURRENT").exists()
    without = call("serve", "--check", "--port", 0, cwd=tmp_path)
    assert "ICE servers: none; peers in different networks cannot connect" in without.stdout


def test_second_server_is_refused_and_check_says_so_and_checks_the_rest(start, tmp_path):
    server = start("--admin-port", 0)
    code = server.offer()
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    port, admin = (found.rpartition(":")[2] for found in (server.url, server.admin_url))
    for taken in (("--port", port), ("--port", port, "--admin-port", admin), ("--port", 0)):
        done = run("serve", "--check", *taken, cwd=tmp_path)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "store: data, in use")
        assert "a running server uses the data, which is not checked" in done.stderr
        assert ("a running server uses the port or socket, which is not checked" in done.stderr) == (port in taken)
    missing = ("--tls-key", "missing", "--tls-certificate", "x")
    refused(run("serve", "--check", "--port", port, *missing, cwd=tmp_path), "x")
    with socket.create_server(("127.0.0.1", 0)) as other:  # of another program
        refused(run("serve", "--check", "--port", other.getsockname()[1], cwd=tmp_path), "Address already in use")
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    refused(call("serve", "--port", 0, cwd=tmp_path), "data is in use by another process", "--data-dir")
    assert server.codes() == [code]
    assert server.stop() == 0
    assert start().codes() == [code]


def test_directory_with_foreign_files_is_refused_and_not_touched(start, tmp_path):
    """A directory with foreign files is refused and unchanged. Remains of a database are not foreign.

    One that holds a database as well is refused by `--check`. A server serves it, and logs a warning.
    """
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    names = ["a", "b.txt", "1.ldb.bak", "CURRENT2", ".hidden"]
    for name in names:
        (data / name).touch()
    for check in (["--check"], []):
        done = call("serve", *check, "--port", 0, cwd=tmp_path)
        refused(done, "data contains files of other programs: ", "1.ldb.bak, CURRENT2 and 2 more; choose another --")
        assert sorted(each.name for each in data.iterdir()) == sorted(names)
        assert data.stat().st_mode & 0o777 == 0o755
    for name in names:
        (data / name).unlink()
    shutil.copy(ROOT / "data" / "README.md", data)
    for _ in range(2):
        server = start()
        server.offer()
        assert server.stop() == 0
    done = call("serve", "--check", "--port", 0, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nstore: data, 2 sessions listed in 1 topics\n" in done.stdout
    (data / "notes").touch()
    refused(call("serve", "--check", "--port", 0, cwd=tmp_path), "notes; choose another --data-dir")
    server = start()
    (warning,) = (line for line in server.log if " WARNING " in line)
    assert "data contains files of other programs: notes; choose another --data-dir" in warning
    assert len(server.codes()) == 2


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_address_of_another_machine_is_refused_by_name(address, tmp_path):
    done = run("serve", "--address", address, "--port", 0, cwd=tmp_path)
    refused(done, f"cannot listen on {address} port 0: ", "an address of this machine", "choose another --address")


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_low_port_needs_a_permission_that_the_message_names(flag, tmp_path):
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("every user may listen on every port")
    without = ["setpriv", "--bounding-set=-net_bind_service"] if os.geteuid() == 0 else []
    done = run("serve", "--port=0", flag, 1, prefix=without, cwd=tmp_path)
    refused(done, "cannot listen on 127.0.0.1 port 1: Permission denied", "CAP_NET_BIND_SERVICE", f"another {flag}")


@pytest.mark.needs("namespace")
@pytest.mark.parametrize("used", [False, True])
def test_directory_on_a_read_only_filesystem_is_refused_by_name(used, start, tmp_path):
    (tmp_path / "data").mkdir()
    if used:
        server = start()
        server.offer()
        server.stop()
    script = 'mount --bind data data && mount -o remount,bind,ro data && exec "$@"'
    namespace = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    for check in (["--check"], []):
        done = run("serve", *check, "--port", 0, prefix=namespace, cwd=tmp_path)
        refused(done, "cannot open the database in data", "--data-dir")


def fill(server, count=120):
    """Publish offers whose listing no buffer holds."""
    for number in range(count):
        server.offer(offer="o" * 100_000, info=str(number))


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), BOUND_S)


def whole(client):
    with client.makefile("rb") as rest:
        return rest.read()


def until_it_accepts_no_connections(server):
    """Wait until the signal to stop has arrived."""
    with contextlib.suppress(ConnectionError):
        while True:
            connect(server).close()


@contextlib.contextmanager
def stalled(server):
    """A client that has asked for a lot and does not read it: a server that stops waits for it."""
    with connect(server) as slow:
        slow.sendall(request("GET", "/lobby/sessions"))
        yield slow, slow.recv(1)


def test_second_signal_ends_the_server_immediately(start):
    server = start("--durability", "os")
    fill(server)
    with stalled(server):
        server.process.send_signal(signal.SIGTERM)
        until_it_accepts_no_connections(server)
        assert server.stop(signal.SIGINT) == 0
    said = [line.split(": ", 1)[1].strip() for line in server.log[-3:]]
    assert said == ["stopping: draining", "stopping at once", "stopped"]
    assert len(start().codes()) == 120


def test_stopping_server_finishes_requests_and_is_not_ready(start):
    server = start("--durability", "os", "--admin-port", 0)
    fill(server)
    with stalled(server) as (slow, begun):
        server.process.send_signal(signal.SIGTERM)
        until_it_accepts_no_connections(server)
        server.process.send_signal(signal.SIGHUP)
        unready = (503, {"status": "unavailable", "reason": "draining"})
        assert server.ask_admin("/readyz") == unready
        assert server.ask_admin("/healthz") == (200, {"status": "ok"})
        body = begun + whole(slow)
    assert server.wait() == 0
    assert not [line for line in server.log if "again" in line]
    assert body.startswith(b"HTTP/1.1 200 ")
    assert body.endswith(b"]}\r\n0\r\n\r\n")
    assert body.count(b'"createdAt"') == 120


def test_drain_delay_warns_load_balancers_and_serves_until_a_second_signal(start):
    server = start("--durability", "os", "--admin-port", 0, "--drain-delay-ms", 5_000)
    code = server.offer()
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.call("/health") == (503, {"error": "Service unavailable"}))
    assert b"\r\nConnection: close\r\n" in send(server, b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: null\r\n\r\n")
    assert server.ask_admin("/readyz")[0] == 503
    assert server.codes() == [code]
    assert server.stop() == 0
    assert any("stopping at once" in line for line in server.log)


def test_service_manager_is_notified_of_each_state(start, manager, tmp_path):
    manager, name = manager
    config = tmp_path / "signal.toml"
    config.write_text("")
    server = start("--config", config, "--admin-port", 0, NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
    ready = wait_for_message(manager, "READY")
    assert ready == {"READY": "1", "STATUS": f"listening on {server.url}, 0 sessions listed"}
    assert server.offer()
    began_s, signs = time.monotonic(), 5
    while receive_message(manager)["STATUS"].endswith(", 0 sessions listed"):
        signs += 1  # one before the next count
    for _ in range(5):
        assert receive_message(manager) == {"WATCHDOG": "1", "STATUS": f"listening on {server.url}, 1 sessions listed"}
    assert time.monotonic() - began_s > 0.1 * signs
    for text, failed in ("max_offer = 1", True), ("", False):
        config.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        assert set(wait_for_message(manager, "RELOADING")) == {"RELOADING", "MONOTONIC_USEC"}
        ready = receive_message(manager)
        assert ready["READY"] == "1"
        assert ("; reload failed, keeping the previous settings: file " in ready["STATUS"]) == failed
        assert scrape(server.admin_url).one("last_reload_successful") == (not failed)
    with connect(server):
        server.process.send_signal(signal.SIGTERM)
        assert wait_for_message(manager, "STOPPING")["STATUS"].startswith("draining, ")
        assert receive_message(manager)["STATUS"].startswith("draining, ")
    assert server.wait() == 0


def test_failed_start_sends_no_ready_notification(start, manager, tmp_path):
    manager, name = manager
    (tmp_path / "file").write_text("")
    for arguments in (["--data-dir", "file"], ["--address", "192.0.2.1"]):
        refused(call("serve", "--port", 0, *arguments, cwd=tmp_path, NOTIFY_SOCKET=name))
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_passed_sockets_replace_address_and_port_and_keep_clients_for_the_next_process(start):
    addresses = [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)]
    names = "tornado-signal.socket:tornado-signal.socket:admin"
    with contextlib.ExitStack() as stack:
        passed = [stack.enter_context(socket.create_server((name, 0), family=kind)) for name, kind in addresses]
        public, other, admin = (each.getsockname()[1] for each in passed)
        server = start("--address", "192.0.2.1", passed=passed, port=1, LISTEN_FDNAMES=names)
        where = [f"http://127.0.0.1:{public}", f"http://[::1]:{other}"]
        assert [line.split(" on ")[1].strip() for line in server.log if "listening" in line][:2] == where
        assert server.admin_url == f"http://127.0.0.1:{admin}"
        for base in where:
            assert server.call("/health", base=base)[0] == 200
        assert server.ask_admin("/readyz")[0] == 200
        server.url, code = where[0], server.offer()
        assert server.stop() == 0
        waiting = [stack.enter_context(connect(server)) for _ in range(100)]
        for client in waiting:
            client.sendall(request("GET", "/lobby/sessions"))
        second = start(passed=passed[:1])
        for client in waiting:
            assert code.encode() in client.recv(4096)
        assert second.stop() == 0


def test_file_of_a_passed_unix_socket_stays(start, tmp_path, monkeypatch):
    path = tmp_path / "signal.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # which keeps the path short enough
        listening.bind(path.name)
        listening.listen()
        server = start(passed=[listening])
        assert server.url == f"unix:{path.name}"
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(BOUND_S)
            client.connect(path.name)
            client.sendall(request("GET", "/health"))
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        assert path.is_socket()
