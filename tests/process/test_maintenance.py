"""The installed commands that look after the data, against running servers and stopped ones."""

import asyncio
import json
import re
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import BOUND_S, COMMAND, ORIGIN, environment
from support.maintenance import LONG_MS, OTHER, SECRETS, fill, names, noise, run_ok, run_refused
from support.redis_servers import free_port
from support.redis_traffic import until
from support.stores import open_leveldb
from support.terminal import Terminal

pytest_plugins = ["support.networks"]

ADMIN = ("--admin-port", 0)
LONG = ("--session-timeout-ms", LONG_MS)


def test_commands_find_the_server_by_its_settings(start, tmp_path):
    port, address = str(free_port()), ("--admin-address", "127.0.0.2")
    variables = {"TORNADO_SIGNAL_ADMIN_PORT": port, "TORNADO_SIGNAL_DATA_DIR": "here"}
    server = start(**variables)
    server.offer()
    (tmp_path / "signal.toml").write_text(f"admin_port = {port}\ndata_dir = 'here'\n")
    assert json.loads(run_ok("inspect", "--config", "signal.toml", cwd=tmp_path))["sessions"] == 1
    assert json.loads(run_ok("inspect", cwd=tmp_path, **variables))["source"] == f"http://127.0.0.1:{port}"
    assert json.loads(run_ok("inspect", "--admin-port", port, cwd=tmp_path))["sessions"] == 1
    assert "bytes before" in run_ok("compact", "--config", "signal.toml", cwd=tmp_path)
    server.end()
    start(*address, **variables)
    assert "sessions" in run_ok("inspect", "--admin-port", port, *address)
    assert names(tmp_path) == ["here", "signal.toml"]


def test_inspect_shows_equal_numbers_for_each_source(start, tmp_path):
    data = tmp_path / "data"
    codes = fill(data, 3000)
    stopped = run_ok("inspect", "--data-dir", data)
    server = start(*ADMIN, *LONG)
    running = run_ok("inspect", "--data-dir", data, "--admin-url", server.admin_url)
    few = json.loads(run_ok("inspect", "--admin-url", server.admin_url, "--most", 3))
    assert [len(few[name]) for name in ("largest_origins", "largest_topics")] == [2, 3]
    assert server.stop() == 0
    numbers = []
    for text, source in ((stopped, data), (running, server.admin_url)):
        assert not any(word in text for word in SECRETS.values())
        found = json.loads(text)
        assert found.pop("source") == str(source)
        assert found.pop("size_bytes") > 100_000
        numbers.append(found)
    assert numbers[0] == numbers[1]
    found = numbers[0]
    assert (found["sessions"], found["answered"], found["unanswered"]) == (3000, 1000, 2000)
    assert (found["candidates"], found["origins"], found["expired"]) == (3000, 2, 0)
    by_origin = {origin: sum(of == origin for of, _ in codes) for origin in (ORIGIN, OTHER)}
    assert {each["origin"]: each["sessions"] for each in found["largest_origins"]} == by_origin
    assert (found["topics"], len(found["largest_topics"])) == (100, 20)
    assert len(json.loads(run_ok("inspect", "--data-dir", data, "--most", 3))["largest_topics"]) == 3
    shown = on_a_terminal(data)
    assert "3000 sessions: 2000 unanswered, 1000 answered, 0 expired and not swept yet" in shown
    assert re.search(r"ORIGIN +TOPIC +UNANSWERED\n", shown)
    assert re.search(rf"{ORIGIN} +{by_origin[ORIGIN]} ", shown)
    assert not any(word in shown for word in SECRETS.values())
    assert json.loads(on_a_terminal(data, "--json"))["sessions"] == 3000


def on_a_terminal(data, *flags):
    """Return the output of `inspect` for a directory on a terminal."""
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


def test_directory_in_use_is_not_touched(start, tmp_path):
    data = tmp_path / "data"
    server = start(*ADMIN)
    server.offer()
    before = names(data)
    same_port = "stop it, or set the same --admin-port for it and this command"
    for commands, said in (
        (("check", "repair"), f"{data} is in use by another process; stop it, or choose another --data-dir"),
        (("inspect", "compact"), f"{data} is in use by a running server; {same_port}"),
    ):
        assert [run_refused(command, "--data-dir", data) for command in commands] == [said] * len(commands)
    assert names(data) == before
    assert server.stop() == 0


@pytest.mark.parametrize("command", ["inspect", "check", "repair", "compact"])
def test_commands_create_no_database(command, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        said = run_refused(command, "--data-dir", name, cwd=tmp_path)
        assert said == f"there is no database in {name}; name its directory with --data-dir"
    assert [str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")] == ["empty"]


def test_command_without_a_server_gives_advice(start, tmp_path):
    port = free_port()
    said = run_refused("inspect", "--admin-port", port, cwd=tmp_path)
    assert said == (
        f"no server responds at http://127.0.0.1:{port} (Connection refused); start it, or name its admin listener "
        "with --admin-port or --admin-url"
    )
    said = run_refused("inspect", "--admin-port", 0, cwd=tmp_path)
    assert said == "with --admin-port 0 only the server's log contains the port; name it with --admin-url"
    server = start(*ADMIN)
    for command in ("inspect", "compact"):
        said = run_refused(command, "--admin-url", server.url, cwd=tmp_path)
        assert said.startswith(f"the server at {server.url} is not the admin listener of a tornado-signal; name that")
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
        said = run_refused("inspect", "--admin-port", listening.getsockname()[1], cwd=tmp_path)
    assert "is not the admin listener" in said or "no server responds" in said
    assert names(tmp_path) == []


def test_compact_frees_the_space_of_swept_sessions(start, tmp_path):
    data = tmp_path / "data"
    sweeping = (*ADMIN, "--sweep-interval-ms", 10)

    def swept(server):
        until(lambda: not json.loads(run_ok("inspect", "--admin-url", server.admin_url))["expired"])

    def compacted(where, *flags):
        said = run_ok("compact", "--data-dir", data, *flags)
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
    assert json.loads(run_ok("inspect", "--data-dir", data))["sessions"] == 1


@pytest.mark.needs("curl")
@pytest.mark.parametrize("token", ["", "0123456789abcdef"])
def test_maintenance_from_other_machines_requires_the_token(token, spawn, tmp_path):
    flags = ["--port", 0, "--data-dir", tmp_path / "data", "--admin-port", 0, "--admin-address", "0.0.0.0"]
    named = []
    if token:
        (tmp_path / "token").write_text(f"{token}\n")
        named = ["--admin-token-file", tmp_path / "token"]
    server = spawn(COMMAND, "serve", *flags, *named, stderr=subprocess.PIPE)
    said = [server.stderr.readline() for _ in range(3 if token else 4)]
    if not token:
        assert "only health and metrics without --admin-token-file" in said.pop(0)
    ports = [found[1] for line in said if (found := re.search(r":(\d+)$", line))]

    def status(host, path, *options):
        answer = tmp_path / "answer"
        ask = ("curl", "-s", "-o", answer, "-w", "%{http_code}", *options, f"http://{host}:{ports[1]}{path}")
        return spawn(*ask, stdout=subprocess.PIPE).communicate(timeout=BOUND_S)[0]

    shown = ("-X", "POST", "-H", f"Authorization: Bearer {token or 'x'}")
    for host in ("192.0.2.1", "127.0.0.1"):
        for path in ("/metrics", "/healthz", "/readyz"):
            assert status(host, path) == "200"
        for path in ("/inspect", "/compact"):
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
        assert "requires its token" in said_to("compact")
        (tmp_path / "token").write_text("another-0123456789")
        assert "requires its token" in said_to("inspect", *named)
    else:
        assert "set --admin-token-file on the server and for this command" in said_to("compact")
