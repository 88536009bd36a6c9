"""The installed commands that look after the data, against running servers and stopped ones."""

import asyncio
import contextlib
import copy
import io
import json
import os
import pty
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
import uuid

import pytest
from support import writers
from support.caring import LONG_MS, OTHER, SECRETS, data_files, done, entries, fill, names, noise, refused, servers
from support.command import BOUND_S, COMMAND, ORIGIN, Server, environment, run
from support.disks import mounted
from support.stores import open_leveldb

from tornado_signal.maintenance.backup import Packer, unpack
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import directory, layout

pytest_plugins = ["support.networks"]


@pytest.fixture
def start():
    """A function that starts a server; none of them outlives the test."""
    with servers() as starting:
        yield starting


async def holds(path, before, now):
    """Open a store and prove that it holds what had been acknowledged before, and nothing that was never asked for.

    Args:
        path: its directory.
        before: the sessions as the writers knew them then.
        now: the same, later.
    """
    store = await open_leveldb(path, timeout_ms=LONG_MS)
    try:
        store.check()
        for old, new in zip(before, now, strict=False):
            if old.code is None:
                continue
            answerer, offerer = [await store.read(old.origin, old.code, side) for side in Side]
            assert offerer.description == old.offer
            assert answerer.description == old.answer if old.answered else answerer.description in (None, new.answer)
            for side, news in ((Side.OFFERER, offerer), (Side.ANSWERER, answerer)):
                found = [text for _, text in news.candidates]
                assert found[: len(old.acknowledged[side])] == old.acknowledged[side]
                assert writers.subsequence(found, new.asked[side])
        return sum(old.code is not None for old in before)
    finally:
        await store.close()


# Backup and restore.


@pytest.mark.timeout(120)
def test_a_backup_under_load(start, tmp_path):
    """All that was acknowledged before a backup began is in it; the server goes on, and serves what is restored."""
    server = start("--data-dir", tmp_path / "data", "--session-timeout-ms", LONG_MS)
    peers = writers.Writers(server.url, "backup", padding="x" * 3000)
    backups = []
    try:
        for number in range(3):
            await_some(peers, 300)
            before = copy.deepcopy(peers.sessions)
            dest = tmp_path / f"{number}.backup"
            backups.append((dest, before, done("backup", dest, "--admin-url", server.admin_url)))
            await_some(peers, 1)
    finally:
        peers.stop()
    assert peers.wrong == []
    assert server.stop() == 0
    for dest, before, said in backups:
        path = dest.with_suffix(".data")
        sessions, size = map(int, re.fullmatch(rf"{dest}: (\d+) sessions, (\d+) bytes\n", said).groups())
        assert (dest.stat().st_size, dest.stat().st_mode & 0o777) == (size, 0o600)
        assert done("restore", dest, "--data-dir", path) == f"{path}: {sessions} sessions restored from {dest}\n"
        assert 30 < asyncio.run(holds(path, before, peers.sessions)) <= sessions
    assert [name for name in names(tmp_path) if name.startswith(".")] == []

    again = start("--data-dir", path, "--session-timeout-ms", LONG_MS)
    session = next(each for each in before if each.code)
    body = {"code": str(uuid.UUID(bytes=session.code)), "side": "answerer"}
    status, found = again.call("/poll", body, origin=session.origin)
    assert (status, found["offer"]) == (200, session.offer)
    assert again.stop() == 0


def await_some(peers, count):
    """Wait until so much more has been acknowledged than by now."""
    while peers.acknowledgements.acquire(blocking=False):
        pass
    for _ in range(count):
        assert peers.acknowledgements.acquire(timeout=BOUND_S), peers.wrong


def test_a_backup_is_the_data(start, tmp_path):
    """Restored, a backup is the directory that it was made of, to the byte; but its numbers count anew for clients."""
    data, dest, path = tmp_path / "data", tmp_path / "all.backup", tmp_path / "restored"
    fill(data, 500)
    server = start("--data-dir", data, "--session-timeout-ms", LONG_MS)
    done("backup", dest, "--admin-url", server.admin_url)
    assert server.stop() == 0
    done("restore", dest, "--data-dir", path)
    assert entries(path) == entries(data)
    with directory.opened(path) as db, directory.opened(data) as old:
        restored, original = (each.get(layout.IDENTITY_KEY) for each in (db, old))
    assert restored != original
    assert path.stat().st_mode & 0o777 == 0o700
    assert done("check", "--data-dir", path) == f"{path} is sound\n"


def test_a_stream_goes_on_over_a_restored_backup(start, tmp_path):
    """A client that comes back to a stream with a cursor from after the backup begins anew with what there is."""
    server = start("--data-dir", tmp_path / "data")
    kept = server.offer()
    done("backup", tmp_path / "b", "--admin-url", server.admin_url)
    for _ in range(20):
        server.offer()
    cursor = last_id(server, None, 21)
    assert server.stop() == 0
    done("restore", tmp_path / "b", "--data-dir", tmp_path / "restored")
    server = start("--data-dir", tmp_path / "restored")
    new = [server.offer() for _ in range(3)]
    assert [each["code"] for each in events(server, cursor, 4)] == [kept, *new]


def events(server, last, count):
    """So many `session` events of a stream of the topic `lobby`, after an id."""
    return [json.loads(data) for _, data in stream(server, last, count)]


def last_id(server, last, count):
    """The id of the last of so many events."""
    return list(stream(server, last, count))[-1][0]


def stream(server, last, count):
    """Ids and data of so many events."""
    headers = {"Origin": ORIGIN} | ({"Last-Event-ID": last} if last else {})
    request = urllib.request.Request(f"{server.url}/lobby/events", headers=headers)
    with urllib.request.urlopen(request, timeout=BOUND_S) as response:
        fields = {}
        while count:
            name, _, value = response.readline().decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
                continue
            if fields.get("event") == "session":
                count -= 1
                yield fields["id"], fields["data"]
            fields = {}


def test_the_settings_find_the_server(tmp_path):
    """With the same settings as the server's, from environment or file, a command finds it without another word."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
    variables = {"TORNADO_SIGNAL_ADMIN_PORT": port, "TORNADO_SIGNAL_DATA_DIR": "here"}
    server = Server(cwd=tmp_path, **variables)
    try:
        server.offer()
        assert "1 sessions" in done("backup", "one", cwd=tmp_path, **variables)
        (tmp_path / "signal.toml").write_text(f"admin_port = {port}\ndata_dir = 'here'\n")
        assert "1 sessions" in done("backup", "two", "--config", "signal.toml", cwd=tmp_path)
        assert "1 sessions" in done("backup", "three", "--admin-port", port, cwd=tmp_path)
        assert json.loads(done("inspect", cwd=tmp_path, **variables))["source"] == f"http://127.0.0.1:{port}"
        assert json.loads(done("inspect", "--admin-port", port, cwd=tmp_path))["sessions"] == 1
        assert "bytes before" in done("compact", "--config", "signal.toml", cwd=tmp_path)
    finally:
        server.end()
    assert "1 sessions restored" in done("restore", "one", cwd=tmp_path, TORNADO_SIGNAL_DATA_DIR="there")
    assert names(tmp_path) == ["here", "one", "signal.toml", "there", "three", "two"]


def test_what_is_overwritten(start, tmp_path):
    """A backup overwrites nothing unless it is told to, and then only a file, and only by a whole backup."""
    server = start("--data-dir", tmp_path / "data")
    server.offer()
    dest = tmp_path / "dest"
    dest.write_text("precious")
    asking = ("--admin-url", server.admin_url)
    assert refused("backup", dest, *asking) == f"{dest} exists; name another file, or overwrite it with --force"
    assert (
        refused("backup", "--force", tmp_path, *asking) == f"{tmp_path} is not a file; name one that is to be written"
    )
    said = refused("backup", tmp_path / "missing" / "dest", *asking)
    assert said == f"cannot write {tmp_path}/missing/dest: No such file or directory; mend that, or name another file"
    assert "no server answers" in refused("backup", "--force", dest, "--admin-port", unused_port())
    assert dest.read_text() == "precious"
    assert "1 sessions" in done("backup", "--force", dest, *asking)
    assert dest.read_bytes().startswith(b"tornado-signal backup 1\n")
    assert names(tmp_path) == ["data", "dest"]


def unused_port():
    """A port on which nobody listens."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return taken.getsockname()[1]


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem with room for one MiB."""
    with mounted(tmp_path / "disk", 1) as path:
        yield path


def test_a_full_disk(start, small_disk, tmp_path):
    """Where there is no room, a backup, a restore and a repair say so, and leave everything as it was."""
    data = tmp_path / "data"
    fill(data, 100, offer=noise(40_000))
    server = start("--data-dir", data, "--session-timeout-ms", LONG_MS)
    said = refused("backup", small_disk / "dest", "--admin-url", server.admin_url)
    assert said == f"cannot write {small_disk}/dest: No space left on device; mend that, or name another file"
    assert names(small_disk) == []
    done("backup", tmp_path / "dest", "--admin-url", server.admin_url)
    said = refused("restore", tmp_path / "dest", "--data-dir", small_disk / "data")
    assert said.startswith(f"cannot restore {tmp_path}/dest into {small_disk}/data: ")
    assert "No space left on device" in said
    assert names(small_disk) == []
    assert server.stop() == 0

    fill(small_disk / "data", 10, offer=noise(40_000))
    (small_disk / "data" / "CURRENT").write_bytes(b"nonsense")
    before = data_files(small_disk / "data")
    said = refused("repair", "--data-dir", small_disk / "data")
    assert re.fullmatch(rf"cannot repair {small_disk}/data: that needs \d+ bytes free beside it; make room, .*", said)
    assert data_files(small_disk / "data") == before
    assert names(small_disk) == ["data"]


@pytest.mark.parametrize("end", ["killed", "stopped", "interrupted", "terminated"])
def test_a_backup_that_is_cut_short(end, start, tmp_path):
    """Killed, server or command, in the middle of a backup: an error, and no file. One that stops ends it."""
    data = tmp_path / "data"
    fill(data, 1500, offer=noise(40_000))
    server = start("--data-dir", data, "--session-timeout-ms", LONG_MS)
    (tmp_path / "backups").mkdir()
    command = [COMMAND, "backup", tmp_path / "backups" / "dest", "--admin-url", server.admin_url]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as backup:
        end_s = time.monotonic() + BOUND_S
        while not any(file.stat().st_size > 1_000_000 for file in (tmp_path / "backups").iterdir()):
            assert time.monotonic() < end_s
            assert backup.poll() is None
        if end in ("killed", "stopped"):
            server.process.send_signal(signal.SIGKILL if end == "killed" else signal.SIGTERM)
        else:
            backup.send_signal(signal.SIGINT if end == "interrupted" else signal.SIGTERM)
        printed, said = backup.communicate(timeout=BOUND_S)
    if end == "stopped" and backup.returncode == 0:  # the server lets it end if it can
        assert done("inspect", tmp_path / "backups" / "dest")
        assert server.wait() == 0
        return
    assert (backup.returncode, printed, names(tmp_path / "backups")) == (1, "", [])
    if end in ("killed", "stopped"):
        assert re.fullmatch(rf"tornado-signal: the backup from {server.admin_url} is not whole: .*\n", said), said
        server.wait()
    else:
        assert said == "tornado-signal: interrupted\n"
        assert server.offer()
        assert server.stop() == 0
        assert not any("ERROR" in line for line in server.log)
    assert done("check", "--data-dir", data) == f"{data} is sound\n"


@pytest.fixture(scope="module")
def backup(tmp_path_factory):
    """A backup of a hundred sessions, and its bytes."""
    path = tmp_path_factory.mktemp("backup")
    fill(path / "data", 100)
    server = Server("--data-dir", path / "data", "--admin-port", 0, "--session-timeout-ms", LONG_MS)
    try:
        done("backup", path / "dest", "--admin-url", server.admin_url)
        assert server.stop() == 0
    finally:
        server.end()
    return (path / "dest").read_bytes()


def flipped(data, at):
    """Bytes with a bit turned."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda data: b"", "it does not begin as one of this version"),
        (lambda data: data[:20_000], "it ends too soon"),
        (lambda data: data[:-1], "it has been altered"),
        (lambda data: data + b"\n", "it has been altered"),
        (lambda data: flipped(data, len(data) // 2), "it has been altered|it ends too soon"),
        (lambda data: flipped(data, len(data) - 1), "it has been altered"),
        (lambda data: without_a_session(data), r"its parts do not agree \(.*\)"),
    ],
)
def test_a_damaged_backup(harm, why, backup, tmp_path):
    """A backup that was cut short or altered is not restored, and leaves nothing behind."""
    (tmp_path / "dest").write_bytes(harm(backup))
    said = refused("restore", "dest", "--data-dir", "data", cwd=tmp_path)
    assert re.fullmatch(f"dest is damaged: ({why}); nothing was restored, take another backup", said), said
    assert names(tmp_path) == ["dest"]
    if "agree" not in why:
        assert re.fullmatch(f"dest is no sound backup: ({why})", refused("inspect", "dest", cwd=tmp_path))


def without_a_session(data):
    """A backup whose sum is right and in which the head of a session is missing."""
    entries = list(unpack(io.BytesIO(data).read))
    heads = [at for at, (key, _) in enumerate(entries) if key[:1] == layout.SESSIONS and key.endswith(layout.HEAD)]
    del entries[heads[-1]]
    packer = Packer()
    return packer.begin() + packer.pack(entries) + packer.end()


def test_a_backup_of_a_later_version(backup, tmp_path):
    """A backup of a format that this version does not know is refused with what to do."""
    later = [
        (key, layout.pack_number(2) if key == layout.FORMAT_KEY else value)
        for key, value in unpack(io.BytesIO(backup).read)
    ]
    packer = Packer()
    (tmp_path / "dest").write_bytes(packer.begin() + packer.pack(later) + packer.end())
    said = refused("restore", "dest", "--data-dir", "data", cwd=tmp_path)
    assert said == "the backup is of another version of tornado-signal; restore it with that version"
    assert names(tmp_path) == ["dest"]


def test_restoring_goes_only_where_nothing_is(start, backup, tmp_path):
    """A directory with anything in it, or in use, is not touched; an empty one is filled, a missing one is made."""
    (tmp_path / "dest").write_bytes(backup)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    (tmp_path / "empty").mkdir(mode=0o755)
    os.chown(tmp_path / "empty", 4711, 4712)
    server = start("--data-dir", tmp_path / "used")
    said = refused("restore", "dest", "--data-dir", "full", cwd=tmp_path)
    assert said == "full is not empty; move it away, or choose another --data-dir"
    said = refused("restore", "dest", "--data-dir", "used", cwd=tmp_path)
    assert said == "used is in use by a running server; stop it, or choose another --data-dir"
    said = refused("restore", "missing", "--data-dir", "new", cwd=tmp_path)
    assert "No such file or directory" in said
    assert server.stop() == 0
    assert "is not empty" in refused("restore", "dest", "--data-dir", "used", cwd=tmp_path)
    for name in ("empty", "new", "deep/er"):
        assert done("restore", "dest", "--data-dir", name, cwd=tmp_path) == f"{name}: 100 sessions restored from dest\n"
        assert done("check", "--data-dir", name, cwd=tmp_path) == f"{name} is sound\n"
    assert {(each.stat().st_uid, each.stat().st_gid) for each in (tmp_path / "empty").iterdir()} == {(4711, 4712)}
    assert names(tmp_path) == ["deep", "dest", "empty", "full", "new", "used"]


# Inspect.


def test_inspect_tells_numbers_and_nothing_else(start, tmp_path):
    """Of a stopped directory, of the server that has it open, of a backup: the same numbers, and no word of a peer."""
    data = tmp_path / "data"
    codes = fill(data, 3000)
    stopped = done("inspect", "--data-dir", data)
    server = start("--data-dir", data, "--session-timeout-ms", LONG_MS)
    running = done("inspect", "--data-dir", data, "--admin-url", server.admin_url)
    done("backup", tmp_path / "dest", "--admin-url", server.admin_url)
    saved = done("inspect", tmp_path / "dest")
    assert server.stop() == 0
    numbers = []
    for text, source in ((stopped, data), (running, server.admin_url), (saved, tmp_path / "dest")):
        assert not any(word in text for word in SECRETS.values())
        found = json.loads(text)
        assert found.pop("source") == str(source)
        assert found.pop("size_bytes") > 100_000
        numbers.append(found)
    assert numbers[0] == numbers[1] == numbers[2]
    found = numbers[0]
    assert (found["sessions"], found["answered"], found["unanswered"]) == (3000, 1000, 2000)
    assert (found["candidates"], found["origins"], found["expired"]) == (3000, 2, 0)
    by_origin = {origin: sum(of == origin for of, _ in codes) for origin in (ORIGIN, OTHER)}
    assert {each["origin"]: each["sessions"] for each in found["largest_origins"]} == by_origin
    assert (found["topics"], len(found["largest_topics"])) == (100, 20)
    assert len(json.loads(done("inspect", "--data-dir", data, "--most", 3))["largest_topics"]) == 3
    shown = on_a_terminal("inspect", "--data-dir", data)
    assert "3000 sessions: 2000 unanswered, 1000 answered, 0 expired and not swept yet" in shown
    assert re.search(r"ORIGIN +TOPIC +UNANSWERED\r\n", shown)
    assert re.search(rf"{ORIGIN} +{by_origin[ORIGIN]} ", shown)
    assert not any(word in shown for word in SECRETS.values())
    assert json.loads(on_a_terminal("inspect", "--data-dir", data, "--json"))["sessions"] == 3000


def on_a_terminal(*arguments):
    """What a command that must succeed prints on a terminal."""
    parent, child = pty.openpty()
    with subprocess.Popen(
        [COMMAND, *map(str, arguments)], env=environment(), stdout=child, stderr=subprocess.STDOUT
    ) as command:
        os.close(child)
        shown = b""
        with contextlib.suppress(OSError):  # the terminal has no other end any more
            while piece := os.read(parent, 1 << 16):
                shown += piece
        os.close(parent)
        assert command.wait(BOUND_S) == 0, shown
    return shown.decode()


def test_names_do_nothing_to_a_terminal(tmp_path):
    """Whoever names a topic or an origin cannot write to the operator's terminal; long names are cut."""

    async def filling():
        store = await open_leveldb(tmp_path / "data", timeout_ms=LONG_MS)
        await store.create("\x9b31m", "\x1b]0;owned\x07\r\n\0é" + "x" * 200, "i", "o")
        await store.close()

    asyncio.run(filling())
    shown = on_a_terminal("inspect", "--data-dir", tmp_path / "data")
    assert not re.search(r"[^\r\n -~…é]", shown)
    assert r"\x9b31m" in shown
    assert r"\x1b]0;owned\x07\r\n\x00é" in shown
    assert max(map(len, shown.splitlines())) < 150


# Which directory, which server.


def test_what_is_in_use_is_left_alone(start, tmp_path):
    """Commands for stopped servers refuse a directory that is in use, with what to do; the server does not notice."""
    data = tmp_path / "data"
    server = start("--data-dir", data)
    server.offer()
    before = names(data)
    for command in ("check", "repair"):
        assert (
            refused(command, "--data-dir", data)
            == f"{data} is in use by another process; stop it, or choose another --data-dir"
        )
    for command in ("inspect", "compact"):
        said = refused(command, "--data-dir", data)
        assert (
            said
            == f"{data} is in use by a running server; stop that, or give it and this command the same --admin-port"
        )
    assert names(data) == before
    assert server.stop() == 0


@pytest.mark.parametrize("command", ["inspect", "check", "compact", "repair"])
def test_nothing_is_made(command, tmp_path):
    """A directory that is not there, or that has no database, is not made into one."""
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        said = refused(command, "--data-dir", name, cwd=tmp_path)
        assert said == f"there is no database in {name}; name its directory with --data-dir"
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")] == ["empty"]


def test_no_server(start, tmp_path):
    """A command that needs a server says so in one sentence, whatever answers instead, or nobody."""
    port = unused_port()
    said = refused("backup", "x", "--admin-port", port, cwd=tmp_path)
    assert said == (
        f"no server answers at http://127.0.0.1:{port} (Connection refused); start it, or say where its admin listener "
        "is, with --admin-port or --admin-url"
    )
    said = refused("backup", "x", cwd=tmp_path)
    assert said == "the running server makes the backup: give it an --admin-port, and name the same one here"
    said = refused("backup", "x", "--admin-port", 0, cwd=tmp_path)
    assert said == "with --admin-port 0 only the server's log knows the port; name it with --admin-url"
    server = start("--data-dir", tmp_path / "data")
    for command in (["backup", "x"], ["inspect"], ["compact"]):
        said = refused(*command, "--admin-url", server.url, cwd=tmp_path)
        assert said.startswith(f"what answers at {server.url} is not the admin listener of a tornado-signal; say where")
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"])
def test_a_stranger_at_the_port(answer, tmp_path):
    """Something else at the port is told apart, whatever it says."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def answering():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=answering)
        thread.start()
        said = refused("backup", "x", "--admin-port", listening.getsockname()[1], cwd=tmp_path)
        thread.join(BOUND_S)
    assert "is not the admin listener" in said or "no server answers" in said
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backup"], "the following arguments are required: DEST"),
        (["restore"], "the following arguments are required: SOURCE"),
        (["inspect", "--most", "1001"], "argument --most: '1001': expected a whole number from 0 to 1000"),
        (["compact", "--admin-url", "https://x"], "argument --admin-url: 'https://x': expected http://HOST:PORT"),
        (["check", "--port", "1"], "unrecognized arguments: --port 1"),
        (["repair", "now"], "unrecognized arguments: now"),
        (["check", "--data", "x"], "unrecognized arguments: --data x"),
    ],
)
def test_wrong_usage(arguments, said, tmp_path):
    """A wrong command line is exit status 2, as with `serve`, and so is a wrong setting from the environment."""
    ended = run(*arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    ended = run("check", cwd=tmp_path, TORNADO_SIGNAL_PROT="1")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "TORNADO_SIGNAL_PROT" in ended.stderr


# Compact.


def test_compact(start, tmp_path):
    """Of a stopped directory or through the server: what expired no longer takes space, and both sizes are told."""
    data = tmp_path / "data"
    fill(data, 200, offer=noise(10_000), timeout_ms=1)
    server = start("--data-dir", data, "--sweep-interval-ms", 10)
    wait_until_swept(server)
    sizes(done("compact", "--data-dir", data, "--admin-url", server.admin_url), server.admin_url)
    server.offer()
    assert server.stop() == 0
    fill(data, 200, offer=noise(10_000), timeout_ms=1)
    before, after = sizes(done("compact", "--data-dir", data), data)
    assert after > 2_000_000 < before  # what has expired is still there: nobody has swept
    server = start("--data-dir", data, "--sweep-interval-ms", 10)
    wait_until_swept(server)
    server.stop(signal.SIGKILL)
    before, after = sizes(done("compact", "--data-dir", data), data)
    assert after < 100_000
    assert json.loads(done("inspect", "--data-dir", data))["sessions"] == 1


def sizes(said, name):
    """The sizes that `compact` says."""
    return map(int, re.fullmatch(rf"{name}: (\d+) bytes before, (\d+) bytes after\n", said).groups())


def wait_until_swept(server):
    """Wait until nothing that has expired is left."""
    end_s = time.monotonic() + BOUND_S
    while json.loads(done("inspect", "--admin-url", server.admin_url))["expired"]:
        assert time.monotonic() < end_s


# The admin listener at other addresses.


def test_the_admin_listener_of_another_address(start, tmp_path):
    """The commands find it where the settings say that it is."""
    server = start("--data-dir", tmp_path / "data", "--admin-port", 0, "--admin-address", "127.0.0.2")
    server.offer()
    host, _, port = server.admin_url.removeprefix("http://").rpartition(":")
    assert host == "127.0.0.2"
    assert "sessions" in done("inspect", "--admin-port", port, "--admin-address", host)


@pytest.mark.parametrize("token", ["", "0123456789abcdef"])
def test_what_other_machines_may_ask_for(token, spawn, tmp_path):
    """A listener for a network shows its numbers there; backups are for those that show the token, if there is one."""
    flags = ["--port", 0, "--data-dir", tmp_path / "data", "--admin-port", 0, "--admin-address", "0.0.0.0"]
    named = []
    if token:
        (tmp_path / "token").write_text(f"{token}\n")
        named = ["--admin-token-file", tmp_path / "token"]
    server = spawn(COMMAND, "serve", *flags, *named, stderr=subprocess.PIPE)
    said = [server.stderr.readline() for _ in range(2 if token else 3)]
    if not token:
        assert "without --admin-token-file it makes no backups" in said.pop(0)
    ports = [re.search(r":(\d+)$", line)[1] for line in said]

    def status(host, path, *options):
        answer = tmp_path / "answer"
        ask = ("curl", "-s", "-o", answer, "-w", "%{http_code}", *options, f"http://{host}:{ports[1]}{path}")
        return spawn(*ask, stdout=subprocess.PIPE).communicate(timeout=BOUND_S)[0]

    shown = ("-X", "POST", "-H", f"Authorization: Bearer {token or 'x'}")
    for host in ("192.0.2.1", "127.0.0.1"):
        for path in ("/metrics", "/healthz", "/readyz"):
            assert status(host, path) == "200"
        for path in ("/backup", "/compact"):
            assert status(host, path, "-X", "POST", "-H", "Host: 127.0.0.1") == ("401" if token else "403")
            assert status(host, path, *shown, "-H", "Origin: http://127.0.0.1") == "403"
            assert status(host, path, *shown) == ("200" if token else "403")

    def said_to(*command):
        url = ("--admin-url", f"http://192.0.2.1:{ports[1]}")
        return "".join(
            spawn(COMMAND, *command, *url, stdout=subprocess.PIPE, stderr=subprocess.PIPE).communicate(timeout=BOUND_S)
        )

    if token:
        assert "sessions" in said_to("inspect", *named)
        assert "asks for its token" in said_to("compact")
        (tmp_path / "token").write_text("another-0123456789")
        assert "asks for its token" in said_to("backup", tmp_path / "backup", *named)
    else:
        assert "give it and this command an --admin-token-file" in said_to("compact")
