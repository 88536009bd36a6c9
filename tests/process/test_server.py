"""The installed command as a process: settings, listeners, what it refuses, how it stops, and what survives."""

import contextlib
import ipaddress
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support.command import BOUND_S, COMMAND, ORIGIN, Server, at_another_time, environment, passing, run
from support.paths import ROOT
from support.service_manager import told, until_told

from tornado_signal import COMMIT
from tornado_signal.stores.leveldb import layout
from tornado_signal.stores.leveldb.binding import plyvel

pytest_plugins = ["support.service_manager"]


@pytest.fixture
def start(tmp_path):
    """A function that starts the command in an empty directory; none of them outlives the test."""
    started = []

    def starting(*arguments, **options):
        options.setdefault("cwd", tmp_path)
        started.append(Server(*arguments, **options))
        return started[-1]

    yield starting
    for server in started:
        server.end()


def taken_port():
    """A socket that listens, and its port."""
    taken = socket.create_server(("127.0.0.1", 0))
    return taken, taken.getsockname()[1]


def refused(done, *reasons):
    """What the operator can mend is exit status 1 and one sentence, without a traceback."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tornado-signal: ")
    assert "Traceback" not in done.stderr
    for reason in reasons:
        assert reason in last, last
    assert done.stderr.count("\n") == 1, done.stderr


# Settings.


def test_a_server_with_nothing_set_but_its_port(start, tmp_path):
    """The server serves on loopback, keeps its data in ./data, says where it listens, and knows its commit."""
    server = start()
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", server.url)
    assert server.log[-1].endswith(f"Z INFO tornado_signal.server: listening on {server.url}\n")
    assert server.call("/") == (200, {"version": COMMIT})
    status, health = server.call("/health")
    assert (status, health["status"]) == (200, "ok")
    assert abs(health["timestamp"] - time.time() * 1000) < 60_000
    server.offer()
    (listed,) = server.call("/lobby/sessions")[1]["sessions"]
    assert listed["expiresAt"] - listed["createdAt"] == 300_000
    assert (tmp_path / "data" / "CURRENT").exists()
    assert server.admin_url is None
    assert server.stop() == 0


SETTINGS = {
    "address": "127.0.0.2",
    "data-dir": "elsewhere/deeper",
    "session-timeout-ms": 60_000,
    "sweep-interval-ms": 50,
    "durability": "os",
    "codes": "content",
    "allowed-origins": f"{ORIGIN},null",
    "trusted-proxies": "127.0.0.0/8",
    "admin-port": 0,
}


def as_flags(tmp_path):
    return [text for name, value in SETTINGS.items() for text in (f"--{name}", value)], {}


def as_variables(tmp_path):
    return [], {f"TORNADO_SIGNAL_{name.upper().replace('-', '_')}": str(value) for name, value in SETTINGS.items()}


def as_file(tmp_path):
    lines = [f"{name.replace('-', '_')} = {json.dumps(value)}\n" for name, value in SETTINGS.items()]
    (tmp_path / "signal.toml").write_text("".join(lines))
    return ["--config", "signal.toml", "--admin-port", 0], {}  # the flag only tells the test to look for it


@pytest.mark.parametrize("source", [as_flags, as_variables, as_file])
def test_every_setting(source, start, tmp_path):
    """Every setting does what it says, from the command line, the environment and the file."""
    arguments, variables = source(tmp_path)
    server = start(*arguments, **variables)
    assert ipaddress.ip_address(re.search(r"//(.*):", server.url)[1]) == ipaddress.ip_address(SETTINGS["address"])
    code = server.offer()
    assert server.offer(info="other") == code
    assert code[14] == "8"
    (listed,) = server.call("/lobby/sessions")[1]["sessions"]
    assert 60_000 <= listed["expiresAt"] - listed["createdAt"] < 90_000
    assert (tmp_path / "elsewhere" / "deeper" / "CURRENT").exists()
    assert server.call("/topics", origin="null")[0] == 200
    assert server.call("/topics", origin="https://evil.example") == (403, {"error": "Origin not allowed"})
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection((SETTINGS["address"], port), BOUND_S) as connection:
        connection.sendall(
            b"GET /topics HTTP/1.1\r\nHost: x\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n"
            b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: app.example\r\n\r\n"
        )
        with connection.makefile("rb") as response:
            assert b"Access-Control-Allow-Origin: https://app.example\r\n" in response.read()
    assert server.call("/healthz", base=server.admin_url, origin=None) == (200, {"status": "ok"})
    assert server.call("/readyz", base=server.admin_url, origin=None) == (200, {"status": "ok"})
    assert server.admin_url.startswith("http://127.0.0.1:")
    assert server.stop() == 0


def test_a_flag_wins(start, tmp_path):
    """A flag wins over the environment, that over the file."""
    (tmp_path / "signal.toml").write_text("session_timeout_ms = 1000\ncodes = 'content'\ndurability = 'os'\n")
    server = start(
        "--session-timeout-ms",
        3_000_000,
        TORNADO_SIGNAL_CONFIG="signal.toml",
        TORNADO_SIGNAL_SESSION_TIMEOUT_MS="2000",
        TORNADO_SIGNAL_CODES="random",
    )
    server.offer()
    (listed,) = server.call("/lobby/sessions")[1]["sessions"]
    assert listed["expiresAt"] - listed["createdAt"] == 3_000_000
    assert listed["code"][14] == "4"


def test_every_address_of_a_name(start):
    """A host name is listened on at each of its addresses, with one port."""
    server = start("--address", "localhost")
    assert server.call("/health")[0] == 200


# Checks.


def test_check(tmp_path):
    """`--check` opens what `serve` needs, says what that is and is done; what it made can be served from."""
    stun = ("--stun-servers", "stun:stun.example.com")
    done = run("serve", "--check", "--port", 0, "--admin-port", 0, *stun, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    wanted = (
        r"settings: can be used",
        r"open files: room for \d+ connections",
        r"ICE servers: stun:stun\.example\.com, not asked",
        r"store: data, 0 sessions listed in 0 topics",
        r"listener: http://127\.0\.0\.1:\d+",
        r"admin listener: http://127\.0\.0\.1:\d+",
    )
    assert re.fullmatch("".join(rf"{line}\n" for line in wanted), done.stdout), done.stdout
    assert (tmp_path / "data" / "CURRENT").exists()


def test_a_directory_of_something_else(start, tmp_path):
    """A directory with foreign files is refused, and nothing in it changes; what a database leaves is none.

    One that holds a database as well is refused by `--check` only.
    """
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    names = ["a", "b.txt", "1.ldb.bak", "CURRENT2", ".hidden"]
    for name in names:
        (data / name).touch()
    for check in (["--check"], []):
        done = run("serve", *check, "--port", 0, cwd=tmp_path)
        refused(
            done, "data holds what is not the server's: ", "1.ldb.bak, CURRENT2 and 2 more; choose another --data-dir"
        )
        assert sorted(each.name for each in data.iterdir()) == sorted(names)
        assert data.stat().st_mode & 0o777 == 0o755
    for name in names:
        (data / name).unlink()
    shutil.copy(ROOT / "data" / "README.md", data)
    for _ in range(2):
        server = start()
        server.offer()
        assert server.stop() == 0
    done = run("serve", "--check", "--port", 0, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nstore: data, 2 sessions listed in 1 topics\n" in done.stdout
    (data / "notes").touch()
    refused(run("serve", "--check", "--port", 0, cwd=tmp_path), "notes; choose another --data-dir")
    assert len(start().codes()) == 2


def test_check_keeps_the_sessions(start, tmp_path):
    """`--check` leaves the sessions of a server that has stopped as they are."""
    server = start()
    code = server.offer()
    server.stop()
    assert run("serve", "--check", "--port", 0, cwd=tmp_path).returncode == 0
    assert start().codes() == [code]


@pytest.mark.parametrize("check", [["--check"], []])
@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_a_taken_port(flag, check, tmp_path):
    """A taken port is refused with its number and what to do."""
    taken, port = taken_port()
    with taken:
        done = run("serve", *check, *({"--port": 0} | {flag: port}).popitem(), cwd=tmp_path, TORNADO_SIGNAL_PORT="0")
    refused(done, f"port {port}", "in use", f"choose another {flag}")


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid", "2001:db8::1"])
def test_an_address_of_another_machine(address, tmp_path):
    """An address that is not this machine's is refused by name."""
    refused(run("serve", "--address", address, "--port", 0, cwd=tmp_path), f"cannot listen on {address} port 0: ")


@pytest.mark.parametrize("check", [["--check"], []])
def test_a_second_server(check, start, tmp_path):
    """A second server on the same data is refused in one sentence, and the first goes on."""
    first = start()
    code = first.offer()
    done = run("serve", *check, "--port", 0, cwd=tmp_path)
    refused(done, "data is in use by another process", "--data-dir")
    assert first.codes() == [code]
    assert first.stop() == 0
    assert start().codes() == [code]


def file_as_parent(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "data"


def a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def in_proc(tmp_path):
    return Path("/proc/tornado-signal")


def dangling_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    return tmp_path / "link"


@pytest.mark.parametrize("place", [file_as_parent, a_file, in_proc, dangling_link])
def test_a_directory_that_cannot_be_used(place, tmp_path):
    """A data directory that cannot be made is refused by name."""
    path = place(tmp_path)
    refused(run("serve", "--port", 0, "--data-dir", path, cwd=tmp_path), str(path), "--data-dir")


@pytest.fixture
def read_only(tmp_path):
    """A function that runs the command where the directory `data` is mounted read-only, in a namespace of its own."""
    (tmp_path / "data").mkdir(exist_ok=True)
    script = 'mount --bind data data && mount -o remount,bind,ro data && exec "$@"'
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]

    def running(*arguments):
        command = [*unshare, COMMAND, *map(str, arguments)]
        return subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=BOUND_S, check=False
        )

    return running


@pytest.mark.parametrize("used", [False, True])
def test_a_directory_that_cannot_be_written(used, start, read_only):
    """A data directory on a read-only filesystem is refused by name, whether there is a database or not."""
    if used:
        server = start()
        server.offer()
        server.stop()
    for check in (["--check"], []):
        refused(read_only("serve", *check, "--port", 0), "cannot open the database in data", "--data-dir")


# Databases that are not for this version.


def test_a_newer_format(tmp_path):
    """A database of a newer version is refused, with both versions and what to do, and not touched."""
    with plyvel.DB(str(tmp_path / "data"), create_if_missing=True) as db:
        db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT + 1))
    done = run("serve", "--port", 0, cwd=tmp_path)
    refused(done, f"data has format {layout.FORMAT + 1}", f"reads format {layout.FORMAT}", "--data-dir")
    with plyvel.DB(str(tmp_path / "data")) as db:
        assert list(db) == [(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT + 1))]


def test_a_foreign_database(tmp_path):
    """A LevelDB database of another program is refused, and not touched."""
    with plyvel.DB(str(tmp_path / "data"), create_if_missing=True) as db:
        db.put(b"mine", b"precious")
    refused(run("serve", "--port", 0, cwd=tmp_path), "not tornado-signal's", "--data-dir")
    with plyvel.DB(str(tmp_path / "data")) as db:
        assert list(db) == [(b"mine", b"precious")]


def newest(directory, pattern):
    """The newest file of a kind that is not empty."""
    return max((path for path in directory.glob(pattern) if path.stat().st_size), key=lambda path: path.name)


def flip(path, at):
    """Change a few bytes of a file."""
    data = bytearray(path.read_bytes())
    data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    path.write_bytes(data)


def flip_an_offer(data):
    """Change an offer in the log; where the log says how long a write is, it would be taken for one cut off."""
    log = newest(data, "*.log")
    flip(log, log.read_bytes().index(b"7" * 100))


def table(data):
    """The table that holds everything, once the log has been read."""
    assert run("serve", "--check", "--port", 0, cwd=data.parent).returncode == 0
    return newest(data, "*.ldb")


def cut(path):
    """Take away the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


DAMAGES = {
    "the log": flip_an_offer,
    "a table is gone": lambda data: table(data).unlink(),
    "a table is cut short": lambda data: cut(table(data)),
    "the manifest": lambda data: flip(newest(data, "MANIFEST-*"), 10),
    "the manifest is gone": lambda data: newest(data, "MANIFEST-*").unlink(),
    "CURRENT is empty": lambda data: (data / "CURRENT").write_bytes(b""),
    "CURRENT names nothing": lambda data: (data / "CURRENT").write_bytes(b"MANIFEST-999999\n"),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A data directory with sessions in it, after its server was killed."""
    path = tmp_path_factory.mktemp("killed") / "data"
    server = Server("--data-dir", path, "--durability", "os")
    for number in range(20):
        server.offer(offer=str(number) * 100)
    server.stop(signal.SIGKILL)
    server.end()
    return path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database(damage, killed, tmp_path):
    """A damaged database is refused with what to do; test_rescue has more of it, and serves without `--check`."""
    data = shutil.copytree(killed, tmp_path / "data")
    DAMAGES[damage](data)
    refused(run("serve", "--check", "--port", 0, cwd=tmp_path), "database in data", "data")


def test_a_damaged_database_was_moved_away(killed, tmp_path):
    """Where a damaged database was, the server begins anew."""
    data = shutil.copytree(killed, tmp_path / "data")
    flip_an_offer(data)
    shutil.move(data, tmp_path / "aside")
    assert run("serve", "--check", "--port", 0, cwd=tmp_path).returncode == 0


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping(number, start):
    """SIGTERM and SIGINT end the server with exit status 0, also while clients stay connected."""
    server = start("--admin-port", 0)
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), BOUND_S) as idle:
        code = server.offer()
        assert server.stop(number) == 0
        assert idle.recv(1) == b""
    assert [line.split(": ", 1)[1] for line in server.log[-2:]] == ["stopping: draining\n", "stopped\n"]
    assert not [line for line in server.log if " INFO tornado_signal" not in line]
    assert start().codes() == [code]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_under_way_is_answered(number, start):
    """Of requests sent up to the signal each gets an answer or none, and whatever was answered 200 is there later."""
    server = start()
    answered, problems, begun = [], [], threading.Event()

    def publish():
        try:
            while True:
                status, found = server.call("/lobby/offer", {"info": "i", "offer": "o"})
                if status != 200:
                    assert (status, found) == (503, {"error": "Service unavailable"})
                    return
                answered.append(found["code"])
                begun.set()
        except OSError:
            return  # hung up on: it is not answered
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=publish) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert begun.wait(BOUND_S)
    assert server.stop(number) == 0
    for thread in threads:
        thread.join(BOUND_S)
    assert problems == []
    assert set(answered) <= set(start().codes())


def fill(server, count=120):
    """Publish so many offers that no buffer holds their listing."""
    for number in range(count):
        server.offer(offer="o" * 100_000, info=str(number))


def port_of(server):
    return int(server.url.rsplit(":", 1)[1])


def connect(server):
    return socket.create_connection(("127.0.0.1", port_of(server)), BOUND_S)


def asking(path, body=None):
    """A request as bytes."""
    data = b"" if body is None else json.dumps(body).encode()
    line = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n"
    return f"{line}Content-Length: {len(data)}\r\n\r\n".encode() + data


def whole(client):
    """What comes until the server hangs up."""
    with client.makefile("rb") as rest:
        return rest.read()


def until_nobody_is_let_in(server):
    """Wait until the signal to stop has arrived."""
    while True:
        try:
            connect(server).close()
        except ConnectionError:
            return


@contextlib.contextmanager
def stalled(server):
    """A client that has asked for a lot and does not read it: a server that stops waits for it."""
    with connect(server) as slow:
        slow.sendall(asking("/lobby/sessions"))
        yield slow, slow.recv(1)


def test_a_request_in_flight_is_answered(start):
    """A request that the server was working on when the signal came is answered before the server ends."""
    server = start("--durability", "os")
    fill(server)
    with stalled(server) as (slow, begun):
        server.process.send_signal(signal.SIGTERM)
        until_nobody_is_let_in(server)
        body = begun + whole(slow)
    assert server.wait() == 0
    assert body.startswith(b"HTTP/1.1 200 ")
    assert body.endswith(b"]}\r\n0\r\n\r\n")
    assert body.count(b'"createdAt"') == 120


def test_who_has_connected_is_served(start):
    """Clients that were let in before the signal and ask after it get their answer, and learn that it is the last."""
    server = start()
    with connect(server) as fresh, connect(server) as kept:
        kept.sendall(asking("/health"))
        assert kept.recv(4096).startswith(b"HTTP/1.1 200 ")
        server.process.send_signal(signal.SIGTERM)
        until_nobody_is_let_in(server)
        last = False
        while not last:
            kept.sendall(asking("/health"))
            answer = kept.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            last = b"\r\nConnection: close\r\n" in answer
        assert kept.recv(1) == b""
        fresh.sendall(asking("/lobby/offer", {"info": "i", "offer": "o"}))
        answer = whole(fresh)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nConnection: close\r\n" in answer
    assert server.wait() == 0
    assert len(start().codes()) == 1


def test_who_waits_is_answered(start):
    """Hundreds who wait when the signal comes all get the ordinary answer, and their connections end."""
    server = start()
    code = server.offer()
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(connect(server)) for _ in range(500)]
        for client in waiting:
            client.sendall(asking("/poll", {"code": code, "side": "offerer", "wait": 60}))
        for _ in range(2):
            assert server.call("/health")[0] == 200  # which came after them
        assert server.stop() == 0
        for client in waiting:
            head, body = whole(client).split(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b"\r\nConnection: close" in head
            found = json.loads(body)
            assert found["answer"] is None
            assert found["cursor"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hurries(number, start):
    """Where the first signal would wait for a slow client, a second one ends the server at once and cleanly."""
    server = start("--durability", "os")
    fill(server)
    with stalled(server):
        server.process.send_signal(signal.SIGTERM)
        until_nobody_is_let_in(server)
        assert server.stop(number) == 0
    assert [line.split(": ", 1)[1].strip() for line in server.log[-3:]] == [
        "stopping: draining",
        "stopping at once",
        "stopped",
    ]
    assert len(start().codes()) == 120


def test_not_ready_while_it_stops(start):
    """Until the end a server that stops says that it is alive but not ready, and SIGHUP is nothing to it any more."""
    server = start("--durability", "os", "--admin-port", 0)
    fill(server)
    with stalled(server):
        server.process.send_signal(signal.SIGTERM)
        until_nobody_is_let_in(server)
        server.process.send_signal(signal.SIGHUP)
        unready = (503, {"status": "unavailable", "reason": "draining"})
        assert server.call("/readyz", base=server.admin_url, origin=None) == unready
        assert server.call("/healthz", base=server.admin_url, origin=None) == (200, {"status": "ok"})
    assert server.wait() == 0
    assert not [line for line in server.log if "again" in line]


def test_a_delay_before_it_drains(start):
    """Load balancers are told that it is about to stop, everybody else is served; a second signal ends that at once."""
    server = start("--durability", "os", "--admin-port", 0, "--drain-delay-ms", 5_000)
    code = server.offer()
    server.process.send_signal(signal.SIGTERM)
    until_s = time.monotonic() + BOUND_S
    while (said := server.call("/health"))[0] == 200:
        assert time.monotonic() < until_s
    assert said == (503, {"error": "Service unavailable"})
    assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 503
    assert server.codes() == [code]
    assert server.stop() == 0
    assert any("stopping at once" in line for line in server.log)


def test_reading_again(start):
    """SIGHUP leaves the server, its connections and those who wait as they are."""
    server = start()
    code = server.offer()
    with connect(server) as kept, connect(server) as waiting:
        waiting.sendall(asking("/poll", {"code": code, "side": "offerer", "wait": 60}))
        for _ in range(3):
            server.process.send_signal(signal.SIGHUP)
            assert server.process.stderr.readline().endswith(": settings read again, applied: nothing new\n")
            kept.sendall(asking("/health"))
            assert kept.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
        assert b'"answer":"a"' in waiting.recv(4096)
    assert server.stop() == 0


# Under a service manager.


def test_what_the_service_manager_is_told(start, manager, tmp_path):
    """Ready when clients can connect and the store is open, alive by the event loop, reloading and ready, stopping."""
    manager, name = manager
    server = start(NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
    ready = told(manager)
    assert ready == {"READY": "1", "STATUS": f"listening on {server.url}, 0 sessions listed"}
    assert server.offer()
    began_s = time.monotonic()
    for _ in range(5):
        assert told(manager) == {"WATCHDOG": "1", "STATUS": f"listening on {server.url}, 1 sessions listed"}
    assert time.monotonic() - began_s > 0.5
    server.process.send_signal(signal.SIGHUP)
    assert set(until_told(manager, "RELOADING")) == {"RELOADING", "MONOTONIC_USEC"}
    assert told(manager)["READY"] == "1"
    with connect(server):
        server.process.send_signal(signal.SIGTERM)
        assert until_told(manager, "STOPPING")["STATUS"].startswith("draining, ")
        assert told(manager)["STATUS"].startswith("draining, ")
    assert server.wait() == 0


def test_not_ready_before_it_can_serve(start, manager, tmp_path):
    """A server that cannot open its store or its socket has never said that it is ready."""
    manager, name = manager
    (tmp_path / "file").write_text("")
    for arguments in (["--data-dir", "file"], ["--address", "192.0.2.1"]):
        refused(run("serve", "--port", 0, *arguments, cwd=tmp_path, NOTIFY_SOCKET=name))
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


@pytest.fixture
def passed():
    """Sockets to pass on: two for the public listener, one for the admin's."""
    with contextlib.ExitStack() as stack:
        addresses = [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)]
        yield [stack.enter_context(socket.create_server((name, 0), family=kind)) for name, kind in addresses]


def test_passed_sockets(start, passed):
    """Sockets that are passed are served in place of --address and --port, and the one named admin as what it is."""
    public, other, admin = passed
    names = "tornado-signal.socket:tornado-signal.socket:admin"
    server = start("--address", "192.0.2.1", passed=passed, port=1, LISTEN_FDNAMES=names)
    where = [f"http://127.0.0.1:{public.getsockname()[1]}", f"http://[::1]:{other.getsockname()[1]}"]
    assert [line.split(" on ")[1].strip() for line in server.log[:2]] == where
    assert server.admin_url == f"http://127.0.0.1:{admin.getsockname()[1]}"
    for base in where:
        assert server.call("/health", base=base)[0] == 200
    assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 200
    assert server.stop() == 0


def test_a_passed_unix_socket(start, tmp_path, monkeypatch):
    """A Unix socket that is passed is served like any other, and its file stays when the server ends."""
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
            client.sendall(asking("/health"))
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert server.stop() == 0
        assert path.is_socket()


def test_who_comes_while_nobody_serves(start, passed):
    """A passed socket keeps who connects after the end of one process for the next one, and nobody sees a refusal."""
    first = start(passed=passed[:1])
    code = first.offer()
    with contextlib.ExitStack() as stack:
        assert first.stop() == 0
        waiting = [stack.enter_context(connect(first)) for _ in range(100)]
        for client in waiting:
            client.sendall(asking("/lobby/sessions"))
        second = start(passed=passed[:1])
        for client in waiting:
            assert code.encode() in client.recv(4096)
    assert second.stop() == 0


def test_what_was_passed_must_listen(tmp_path):
    """A passed socket that does not listen is refused by its number."""
    with socket.socket() as idle:
        done = subprocess.run(
            [*passing([idle]), COMMAND, "serve"],
            cwd=tmp_path,
            env=environment(LISTEN_FDNAMES="mine"),
            pass_fds=[idle.fileno()],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
    refused(done, "descriptor 3 (mine)", "ListenStream=")


# What survives.


def everything(server, code):
    """All that can be read of a session."""
    return (
        server.call("/topics"),
        server.call("/lobby/sessions"),
        server.call("/poll", {"code": code, "side": "offerer"}),
        server.call("/poll", {"code": code, "side": "answerer"}),
    )


@pytest.mark.parametrize(
    ("number", "durability"), [(signal.SIGTERM, "fsync"), (signal.SIGKILL, "fsync"), (signal.SIGKILL, "os")]
)
def test_sessions_survive(number, durability, start):
    """After a stop, or `kill -9`, and a restart every session is as it was, with every durability."""
    server = start("--durability", durability)
    answered = server.offer()
    open_ = server.offer(info="open")
    for body in (
        {"side": "answerer", "answer": "a"},
        {"side": "answerer", "candidate": "c1"},
        {"side": "answerer", "candidate": "c2"},
        {"side": "offerer", "candidate": "c3"},
    ):
        assert server.call("/answer", {"code": answered, **body})[0] == 200
    before = everything(server, answered)
    assert server.codes() == [open_]
    assert server.stop(number) == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    again = start("--durability", durability)
    assert everything(again, answered) == before
    assert again.call("/answer", {"code": answered, "side": "answerer", "answer": "b"})[0] == 409
    newer = again.offer()
    assert again.codes() == [newer, open_]


def test_sessions_expire_while_nobody_serves(start):
    """A session that expires between two runs of the server is gone with the second, which starts later by a clock."""
    server = start()
    code = server.offer()
    assert server.call("/poll", {"code": code, "side": "offerer"})[0] == 200
    assert server.stop() == 0
    for later, found in ("+290s", 200), ("+301s", 404):
        again = start(**at_another_time(later))
        assert again.call("/poll", {"code": code, "side": "offerer"})[0] == found
        assert len(again.call("/topics")[1]["topics"]) == (found == 200)
        assert again.stop() == 0


def test_a_clock_that_was_put_back(start):
    """After a restart with the clock put back sessions live on, and new ones are not older than they are."""
    server = start()
    old = server.offer()
    assert server.stop() == 0
    again = start(**at_another_time("-1h"))
    new = again.offer()
    assert again.codes() == [new, old]
    newer, older = again.call("/lobby/sessions")[1]["sessions"]
    assert older["createdAt"] <= newer["createdAt"] < older["expiresAt"]
    assert again.stop() == 0


def test_sweeping(start, tmp_path):
    """What has expired is taken off the disk: nothing but the format and the mark is left."""
    server = start("--session-timeout-ms", 100, "--sweep-interval-ms", 10, "--durability", "os")
    for number in range(50):
        code = server.offer(offer="o" * 1000, topic=f"t{number % 5}")
        server.call("/answer", {"code": code, "side": "offerer", "candidate": "c"})
    deadline_s = time.monotonic() + BOUND_S
    while True:
        server.stop()
        with plyvel.DB(str(tmp_path / "data")) as db:
            keys = list(db.iterator(include_value=False))
        if keys == [layout.FORMAT_KEY, layout.IDENTITY_KEY, layout.COUNTERS_KEY]:
            break
        assert time.monotonic() < deadline_s, keys
        server = start("--session-timeout-ms", 100, "--sweep-interval-ms", 10, "--durability", "os")
        for _ in range(20):
            assert server.call("/health")[0] == 200
