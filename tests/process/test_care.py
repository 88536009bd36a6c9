"""The installed commands that look after the data, against running servers and stopped ones."""

import asyncio
import copy
import io
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import writers
from support.caring import LONG_MS, OTHER, SECRETS, data_files, done, entries, fill, names, noise, refused
from support.command import BOUND_S, COMMAND, ORIGIN, Server, environment
from support.disks import mounted
from support.redis_servers import free_port
from support.redis_traffic import until
from support.stores import open_leveldb
from support.terminal import Terminal

from tornado_signal.maintenance.backup import Packer, unpack
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import directory, layout

pytest_plugins = ["support.networks"]

ADMIN = ("--admin-port", 0)
LONG = ("--session-timeout-ms", LONG_MS)
DAMAGED = "dest is damaged: {}; nothing was restored, take another backup".format


async def holds(path, before, now):
    """Prove that a store has what writers knew to be acknowledged `before`, and nothing that they did not ask for."""
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


@pytest.mark.timeout(120)
def test_a_backup_under_load_has_all_that_was_acknowledged_before(start, tmp_path):
    server = start(*ADMIN, *LONG)
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

    again = start("--data-dir", path, *LONG)
    session = next(each for each in before if each.code)
    body = {"code": str(uuid.UUID(bytes=session.code)), "side": "answerer"}
    status, found = again.call("/poll", body, origin=session.origin)
    assert (status, found["offer"]) == (200, session.offer)
    assert again.stop() == 0


def await_some(peers, count):
    """Wait until more has been acknowledged than by now."""
    while peers.acknowledgements.acquire(blocking=False):
        pass
    for _ in range(count):
        assert peers.acknowledgements.acquire(timeout=BOUND_S), peers.wrong


def test_a_restored_backup_is_the_same_to_the_byte_but_for_the_identity(start, tmp_path):
    data, dest, path = tmp_path / "data", tmp_path / "all.backup", tmp_path / "restored"
    fill(data, 500)
    server = start(*ADMIN, *LONG)
    done("backup", dest, "--admin-url", server.admin_url)
    assert server.stop() == 0
    done("restore", dest, "--data-dir", path)
    assert entries(path) == entries(data)
    with directory.opened(path) as db, directory.opened(data) as old:
        restored, original = (each.get(layout.IDENTITY_KEY) for each in (db, old))
    assert restored != original
    assert path.stat().st_mode & 0o777 == 0o700
    assert done("check", "--data-dir", path) == f"{path} is sound\n"


def test_a_cursor_later_than_the_restored_backup_begins_with_what_there_is(start, tmp_path):
    server = start(*ADMIN)
    kept = server.offer()
    done("backup", tmp_path / "b", "--admin-url", server.admin_url)
    for _ in range(20):
        server.offer()
    cursor, _ = session_events(server, 21)[-1]
    assert server.stop() == 0
    done("restore", tmp_path / "b", "--data-dir", tmp_path / "restored")
    server = start("--data-dir", "restored")
    new = [server.offer() for _ in range(3)]
    assert [code for _, code in session_events(server, 4, cursor)] == [kept, *new]


def session_events(server, count, since=None):
    """Ids and codes of `session` events of the stream of the topic `lobby`, after an id."""
    headers = {"Origin": ORIGIN} | ({"Last-Event-ID": since} if since else {})
    request = urllib.request.Request(f"{server.url}/lobby/events", headers=headers)
    found = []
    with urllib.request.urlopen(request, timeout=BOUND_S) as response:
        while len(found) < count:
            lines = iter(lambda: response.readline().decode().strip(), "")
            fields = dict(line.partition(": ")[::2] for line in lines)
            if fields.get("event") == "session":
                found.append((fields["id"], json.loads(fields["data"])["code"]))
    return found


def test_commands_find_the_server_by_its_settings(start, tmp_path):
    port, address = str(free_port()), ("--admin-address", "127.0.0.2")
    variables = {"TORNADO_SIGNAL_ADMIN_PORT": port, "TORNADO_SIGNAL_DATA_DIR": "here"}
    server = start(**variables)
    server.offer()
    assert "1 sessions" in done("backup", "one", cwd=tmp_path, **variables)
    (tmp_path / "signal.toml").write_text(f"admin_port = {port}\ndata_dir = 'here'\n")
    assert "1 sessions" in done("backup", "two", "--config", "signal.toml", cwd=tmp_path)
    assert "1 sessions" in done("backup", "three", "--admin-port", port, cwd=tmp_path)
    assert json.loads(done("inspect", cwd=tmp_path, **variables))["source"] == f"http://127.0.0.1:{port}"
    assert json.loads(done("inspect", "--admin-port", port, cwd=tmp_path))["sessions"] == 1
    assert "bytes before" in done("compact", "--config", "signal.toml", cwd=tmp_path)
    server.end()
    start(*address, **variables)
    assert "sessions" in done("inspect", "--admin-port", port, *address)
    assert "1 sessions restored" in done("restore", "one", cwd=tmp_path, TORNADO_SIGNAL_DATA_DIR="there")
    assert names(tmp_path) == ["here", "one", "signal.toml", "there", "three", "two"]


def test_a_backup_overwrites_only_a_file_and_only_with_force(start, tmp_path):
    server = start(*ADMIN)
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
    assert "no server answers" in refused("backup", "--force", dest, "--admin-port", free_port())
    assert dest.read_text() == "precious"
    assert "1 sessions" in done("backup", "--force", dest, *asking)
    assert dest.read_bytes().startswith(b"tornado-signal backup 1\n")
    assert names(tmp_path) == ["data", "dest"]


def test_a_full_disk_leaves_everything_as_it_was(start, tmp_path):
    data, disk = tmp_path / "data", tmp_path / "disk"
    fill(data, 100, offer=noise(40_000))
    server = start(*ADMIN, *LONG)
    with mounted(disk, 1):
        said = refused("backup", disk / "dest", "--admin-url", server.admin_url)
        assert said == f"cannot write {disk}/dest: No space left on device; mend that, or name another file"
        assert names(disk) == []
        done("backup", tmp_path / "dest", "--admin-url", server.admin_url)
        said = refused("restore", tmp_path / "dest", "--data-dir", disk / "data")
        assert said.startswith(f"cannot restore {tmp_path}/dest into {disk}/data: ")
        assert "No space left on device" in said
        assert names(disk) == []
        assert server.stop() == 0

        fill(disk / "data", 10, offer=noise(40_000))
        (disk / "data" / "CURRENT").write_bytes(b"nonsense")
        before = data_files(disk / "data")
        said = refused("repair", "--data-dir", disk / "data")
        assert re.fullmatch(rf"cannot repair {disk}/data: that needs \d+ bytes free beside it; make room, .*", said)
        assert data_files(disk / "data") == before
        assert names(disk) == ["data"]


@pytest.mark.parametrize("end", ["killed", "stopped", "interrupted", "terminated"])
def test_a_backup_that_is_interrupted_leaves_no_file(end, start, tmp_path):
    data = tmp_path / "data"
    fill(data, 1500, offer=noise(40_000))
    server = start(*ADMIN, *LONG)
    (tmp_path / "backups").mkdir()
    command = [COMMAND, "backup", tmp_path / "backups" / "dest", "--admin-url", server.admin_url]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as backup:
        until(lambda: any(file.stat().st_size > 1_000_000 for file in (tmp_path / "backups").iterdir()))
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
    server = Server("--data-dir", path / "data", *ADMIN, *LONG)
    try:
        done("backup", path / "dest", "--admin-url", server.admin_url)
        assert server.stop() == 0
    finally:
        server.end()
    return (path / "dest").read_bytes()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda data: b"", "it does not begin as one of this version"),
        (lambda data: data[:20_000], "it ends too soon"),
        (lambda data: data[:-1], "it has been altered"),
        (lambda data: data + b"\n", "it has been altered"),
        (lambda data: data[:9000] + bytes([data[9000] ^ 1]) + data[9001:], "it has been altered|it ends too soon"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "it has been altered"),
    ],
)
def test_a_backup_that_was_cut_short_or_altered_is_not_restored(harm, why, backup, tmp_path):
    (tmp_path / "dest").write_bytes(harm(backup))
    assert re.fullmatch(DAMAGED(f"({why})"), refused("restore", "dest", "--data-dir", "data", cwd=tmp_path))
    assert re.fullmatch(f"dest is no sound backup: ({why})", refused("inspect", "dest", cwd=tmp_path))
    assert names(tmp_path) == ["dest"]


def without_a_session(entries):
    heads = [at for at, (key, _) in enumerate(entries) if key[:1] == layout.SESSIONS and key.endswith(layout.HEAD)]
    return entries[: heads[-1]] + entries[heads[-1] + 1 :]


def of_a_later_format(entries):
    return [(key, layout.pack_number(2) if key == layout.FORMAT_KEY else value) for key, value in entries]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_a_session, DAMAGED(r"its parts do not agree \(.*\)")),
        (of_a_later_format, "the backup is of another version of tornado-signal; restore it with that version"),
    ],
)
def test_a_whole_backup_of_what_cannot_be_served_is_not_restored(change, reason, backup, tmp_path):
    packer = Packer()
    changed = change(list(unpack(io.BytesIO(backup).read)))
    (tmp_path / "dest").write_bytes(packer.begin() + packer.pack(changed) + packer.end())
    assert re.fullmatch(reason, refused("restore", "dest", "--data-dir", "data", cwd=tmp_path))
    assert names(tmp_path) == ["dest"]


@pytest.mark.needs("root")
def test_a_restore_goes_only_where_nothing_is(start, backup, tmp_path):
    (tmp_path / "dest").write_bytes(backup)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    (tmp_path / "empty").mkdir(mode=0o755)
    os.chown(tmp_path / "empty", 4711, 4712)
    server = start("--data-dir", "used")
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


def test_inspect_has_the_same_numbers_of_each_source_and_no_word_of_a_peer(start, tmp_path):
    data = tmp_path / "data"
    codes = fill(data, 3000)
    stopped = done("inspect", "--data-dir", data)
    server = start(*ADMIN, *LONG)
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
    shown = on_a_terminal(data)
    assert "3000 sessions: 2000 unanswered, 1000 answered, 0 expired and not swept yet" in shown
    assert re.search(r"ORIGIN +TOPIC +UNANSWERED\n", shown)
    assert re.search(rf"{ORIGIN} +{by_origin[ORIGIN]} ", shown)
    assert not any(word in shown for word in SECRETS.values())
    assert json.loads(on_a_terminal(data, "--json"))["sessions"] == 3000


def on_a_terminal(data, *flags):
    """What `inspect` prints of a directory on a terminal."""
    with Terminal(COMMAND, "inspect", "--data-dir", data, *flags, env=environment()) as terminal:
        shown, status = terminal.rest()
    assert status == 0
    return shown


def test_inspect_escapes_and_cuts_names_on_a_terminal(tmp_path):
    async def filling():
        store = await open_leveldb(tmp_path / "data", timeout_ms=LONG_MS)
        await store.create("\x9b31m", "\x1b]0;owned\x07\r\n\0é" + "x" * 200, "i", "o")
        await store.close()

    asyncio.run(filling())
    shown = on_a_terminal(tmp_path / "data")
    assert not re.search(r"[^\n -~…é]", shown)
    assert r"\x9b31m" in shown
    assert r"\x1b]0;owned\x07\r\n\x00é" in shown
    assert max(map(len, shown.splitlines())) < 150


def test_a_directory_in_use_is_left_alone(start, tmp_path):
    data = tmp_path / "data"
    server = start(*ADMIN)
    server.offer()
    before = names(data)
    same_port = "stop that, or give it and this command the same --admin-port"
    for commands, said in (
        (("check", "repair"), f"{data} is in use by another process; stop it, or choose another --data-dir"),
        (("inspect", "compact"), f"{data} is in use by a running server; {same_port}"),
    ):
        assert [refused(command, "--data-dir", data) for command in commands] == [said, said]
    assert names(data) == before
    assert server.stop() == 0


@pytest.mark.parametrize("command", ["inspect", "check", "compact", "repair"])
def test_no_command_makes_a_database(command, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        said = refused(command, "--data-dir", name, cwd=tmp_path)
        assert said == f"there is no database in {name}; name its directory with --data-dir"
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")] == ["empty"]


def test_a_command_without_its_server_says_what_to_do(start, tmp_path):
    port = free_port()
    said = refused("backup", "x", "--admin-port", port, cwd=tmp_path)
    assert said == (
        f"no server answers at http://127.0.0.1:{port} (Connection refused); start it, or say where its admin listener "
        "is, with --admin-port or --admin-url"
    )
    said = refused("backup", "x", cwd=tmp_path)
    assert said == "the running server makes the backup: give it an --admin-port, and name the same one here"
    said = refused("backup", "x", "--admin-port", 0, cwd=tmp_path)
    assert said == "with --admin-port 0 only the server's log knows the port; name it with --admin-url"
    server = start(*ADMIN)
    for command in (["backup", "x"], ["inspect"], ["compact"]):
        said = refused(*command, "--admin-url", server.url, cwd=tmp_path)
        assert said.startswith(f"what answers at {server.url} is not the admin listener of a tornado-signal; say where")
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"])
def test_something_else_at_the_port_is_recognized(answer, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:

        def answering():
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread.submit(answering)
        said = refused("backup", "x", "--admin-port", listening.getsockname()[1], cwd=tmp_path)
    assert "is not the admin listener" in said or "no server answers" in said
    assert names(tmp_path) == []


def test_compact_frees_the_room_of_what_was_swept(start, tmp_path):
    data = tmp_path / "data"
    sweeping = (*ADMIN, "--sweep-interval-ms", 10)

    def swept(server):
        until(lambda: not json.loads(done("inspect", "--admin-url", server.admin_url))["expired"])

    def compacted(where, *flags):
        said = done("compact", "--data-dir", data, *flags)
        return map(int, re.fullmatch(rf"{where}: (\d+) bytes before, (\d+) bytes after\n", said).groups())

    fill(data, 200, offer=noise(10_000), timeout_ms=1)
    server = start(*sweeping)
    swept(server)
    compacted(server.admin_url, "--admin-url", server.admin_url)
    server.offer()
    assert server.stop() == 0
    fill(data, 200, offer=noise(10_000), timeout_ms=1)
    before, after = compacted(data)
    assert after > 2_000_000 < before  # what has expired is still there: nobody has swept
    server = start(*sweeping)
    swept(server)
    server.stop(signal.SIGKILL)
    before, after = compacted(data)
    assert after < 100_000
    assert json.loads(done("inspect", "--data-dir", data))["sessions"] == 1


@pytest.mark.needs("curl")
@pytest.mark.parametrize("token", ["", "0123456789abcdef"])
def test_other_machines_see_numbers_and_need_the_token_for_backups(token, spawn, tmp_path):
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
