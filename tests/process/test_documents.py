"""The documentation keeps its word: every command of it runs, and its tables are those of the package."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from support.checkout import copy_checkout
from support.command import BOUND_S, COMMAND, Server, environment
from support.documents import ADDRESS, all_blocks, blocks, pages, sections
from support.networks import NETWORK
from support.paths import ROOT
from support.service import declared
from websockets.sync.client import connect

import tornado_signal
from tornado_signal import errors
from tornado_signal.http import assets
from tornado_signal.http.errors import STATUS
from tornado_signal.stores.leveldb import layout

# What would run this test inside itself: how it is tried instead.
NEEDS_CARE = {
    "tests/run": ["tests/run", "--version"],
    "tests/bench/run": ["tests/bench/run", "--help"],
    "tests/soak/run --minutes 30 --peers 2000 --plot soak.svg": ["tests/soak/run", "--help"],
    "tests/hostile/run": ["tests/hostile/run", "--help"],
    "tests/hostile/fuzz --inputs 1000000": ["tests/hostile/fuzz", "--help"],
    "tests/run all": ["tests/run", "all", "--version"],
    "tests/lint": ["bash", "-n", "tests/lint"],
    "AS=somebody tests/machine tests/run": ["bash", "-n", "tests/machine"],
    "tests/run -k poll -x": ["tests/run", "-k", "poll", "-x", "--collect-only", "-q", "tests/http/test_handlers.py"],
    ".ci/run": ["bash", "-n", ".ci/run"],
    ".venv/bin/mkdocs build": [".venv/bin/mkdocs", "--version"],  # test_site.py does it
}


def table(page, heading, first):
    """The rows of a table that begins with a column of this name, as lists of cells."""
    text = sections(page)[heading]
    rows = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)[1].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def expected(text):
    """A pattern for an output in which … stands for what differs each time."""
    return ".+".join(map(re.escape, text.split("…")))


# The commands.

# A member of the room that says one thing and ends with the answer.
GREETER = """
import asyncio
from tornado_signal.client.peers import Peers
from tornado_signal.client.room import Joined, Message


async def main():
    async with Peers("http://127.0.0.1:3000", "https://app.example", info="greeter") as peers:
        async with peers.room("lobby") as room:
            async for event in room:
                match event:
                    case Joined(peer):
                        room.send("hello", peer)
                    case Message(peer, data):
                        print(f"{peer.name}: {data}")
                        return


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout of one's own."""
    copy = tmp_path_factory.mktemp("documents") / "tornado-signal"
    copy_checkout(copy)
    return copy


def bash(script, cwd, **variables):
    """Run a block; its output. Every command of it has to end well."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        env=environment(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


class Running:
    """The server, started as the quickstart says; `log` is what it writes."""

    def __init__(self, script, cwd, prefix=(), **variables):
        *before, last = script.split("&& ")  # bash becomes the server, so that a signal reaches it
        self.process = subprocess.Popen(
            [*prefix, "bash", "-euo", "pipefail", "-c", "&& ".join([*before, f"exec {last}"])],
            cwd=cwd,
            env=environment(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = ""
        while not (found := re.search(r"listening on (http://\S+)", self.log)):
            line = self.process.stderr.readline()
            self.log += line
            if not line:
                self.stop()
                raise AssertionError(self.log)
        self.url = found[1]

    def stop(self):
        """End it; its exit status."""
        self.process.terminate()
        self.process.communicate(timeout=BOUND_S)
        return self.process.returncode


@pytest.fixture(scope="module")
def installed(checkout):
    """The checkout after the one command that installs and runs the server, and what that command was."""
    (script,) = blocks("quickstart", "Start a server", "sh")
    running = Running(script, checkout, TORNADO_SIGNAL_PORT="0")
    yield checkout, running
    assert running.stop() == 0


def test_every_block_is_tried():
    """Each page has as many blocks as are tried, here or where it is said; the README repeats some of the pages."""
    languages = ("sh", "html", "python", "ini", "yaml", "")
    found = {page: len([each for each, _ in all_blocks(text) if each in languages]) for page, text in pages().items()}
    assert {page: count for page, count in found.items() if count} == {
        "README": 6,
        "browser-client": 1,  # browser/test_client_js
        "command-line": 2,
        "containers": 11,  # system/test_containers builds and runs the same
        "contributing": 5,
        "design": 2,
        "http-api": 1,
        "maintenance": 2,  # system/test_systemd_real, too
        "monitoring": 1,  # system/test_monitoring
        "python": 2,
        "quickstart": 6,  # one of them in browser/test_client_js
        "scaling": 6,  # system/test_several_servers, system/test_systemd; the first says what these do
        "settings": 1,
        "systemd": 3,  # system/test_systemd_real
        "turn": 1,  # system/test_systemd
        "websocket-api": 1,
    }
    shown = [block for page, text in pages().items() if page != "README" for block in all_blocks(text)]
    assert [block for block in all_blocks(pages()["README"]) if block not in shown] == []


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_peers_with_curl(installed):
    """The one command installs and runs the server; the examples print what the quickstart says, but time and codes."""
    checkout, running = installed
    assert (checkout / "data" / "CURRENT").exists()
    rest = blocks("quickstart", "Be two peers with curl", "sh", "json")
    script = "".join(rest[::2]).replace(ADDRESS, running.url)
    assert script.count(running.url) == 1
    assert "3000" not in script
    # Each answer ends without a line break; the page shows each on a line of its own.
    printed = bash(script.replace("curl -s ", "curl -s -w '\\n' "), checkout).splitlines()
    wanted = "".join(rest[1::2]).splitlines()
    assert len(printed) == len(wanted) == 6
    for line, pattern in zip(printed, wanted, strict=True):
        assert re.fullmatch(expected(pattern), line), line


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_news_without_polling(installed):
    """A waiting request is answered at once; the example prints what the page says, that answer among the others."""
    checkout, running = installed
    script, answers = blocks("http-api", "News without polling", "sh", "json")
    names = blocks("quickstart", "Be two peers with curl", "sh")[0].splitlines()[0]
    whole = f"{names}\n{script}".replace(ADDRESS, running.url)
    # Two of them print at the same time, and each of these its answer first and then the line break.
    printed = bash(whole.replace("curl -s ", "curl -s -w '\\n' "), checkout).replace("}{", "}\n{").split()
    wanted = [expected(pattern) for pattern in answers.splitlines()]
    assert len(printed) == len(wanted) == 3
    assert printed[-1] == '{"success":true}'
    assert all(any(re.fullmatch(pattern, line) for line in printed) for pattern in wanted)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_real_peers(installed, tmp_path):
    """The two peers of the quickstart find each other at its address and say what it says they do."""
    checkout, _ = installed
    (script,) = blocks("quickstart", "Two real peers", "sh")
    install, script = script.split("\n", 1)
    bash(install, checkout)
    root = os.geteuid() == 0
    unshare = ["unshare", "-n" if root else "-rn", "sh", "-c", NETWORK]
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as network:
        assert network.stdout.readline() == "ready\n"
        enter = ["nsenter", f"--target={network.pid}", "--net", *([] if root else ["--user", "--preserve-credentials"])]
        running = Running(
            ".venv/bin/tornado-signal serve", checkout, enter, TORNADO_SIGNAL_DATA_DIR=str(tmp_path / "data")
        )
        assert running.url == ADDRESS
        done = subprocess.run(
            [*enter, "bash", "-euo", "pipefail", "-c", script],
            cwd=checkout,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
            check=True,
        )
        assert running.stop() == 0
    assert sorted(re.findall("heard: (.*)", done.stdout)) == ["hello from A", "hello from B"]
    assert sorted(re.findall("(offerer|answerer) of", done.stdout)) == ["answerer", "offerer"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_from_python(tmp_path):
    """The program joins a peer; with the one line that the page names it is that peer. The other one is in a room."""
    (joiner,) = blocks("python", "Connect two programs", "python")
    assert len([line for line in joiner.splitlines() if line]) <= 10
    line = re.search(r"`(async for [^`]*)`", sections("python")["Connect two programs"])[1]
    publisher, changed = re.subn(r"async with await peers\.join.*", line, joiner)
    assert changed == 1
    root = os.geteuid() == 0
    unshare = ["unshare", "-n" if root else "-rn", "sh", "-c", NETWORK]
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as network:
        assert network.stdout.readline() == "ready\n"
        enter = ["nsenter", f"--target={network.pid}", "--net", *([] if root else ["--user", "--preserve-credentials"])]
        running = Running(f"{COMMAND} serve", tmp_path, enter)
        assert running.url == ADDRESS

        def begin(program):
            return subprocess.Popen([*enter, sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)

        programs = publishing, joining = [begin(program) for program in (publisher, joiner)]
        try:
            assert joining.communicate(timeout=100)[0] == "hello\n"
            assert publishing.stdout.readline() == "hello\n"
            assert joining.returncode == 0
            echo = begin(blocks("python", "Be in a room", "python")[0])
            programs.append(echo)
            greeter = begin(GREETER)
            programs.append(greeter)
            assert greeter.communicate(timeout=100)[0] == "Echo: hello\n"
            assert [echo.stdout.readline() for _ in range(2)] == ["greeter is here\n", "greeter has left\n"]
        finally:
            for program in programs:
                program.kill()
                program.communicate()
            stopped = running.stop()
        assert stopped == 0


def test_one_websocket(tmp_path):
    """What the page sends has the answers and events that it shows, those of one request in any order."""
    (lines,) = blocks("websocket-api", "WebSocket API", "")
    server = Server("--data-dir", tmp_path / "data")
    try:
        with connect(f"{server.url.replace('http', 'ws')}/ws", origin="https://app.example") as socket_:
            for sent, *wanted in (part.splitlines() for part in lines.split("-> ")[1:]):
                socket_.send(sent)
                received = [socket_.recv(BOUND_S) for _ in wanted]
                for text in wanted:
                    assert any(re.fullmatch(expected(text.removeprefix("<- ")), each) for each in received), received
        assert server.stop() == 0
    finally:
        server.end()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_from_a_shell(installed):
    """Two commands are two peers; the others run, and what they leave is a manual page."""
    checkout, running = installed
    peers, others = blocks("command-line", "Use a server", "sh")
    script = (peers + others).replace(ADDRESS, running.url)
    assert script.count(running.url) == 1
    first, *_, measured = bash(script, checkout).splitlines()
    assert first == "answer to: offer of alice"
    assert '"count": 3' in measured
    assert (checkout / "tornado-signal.1").read_text().startswith(".TH TORNADO-SIGNAL 1 ")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_help_check_and_version(installed, tmp_path):
    """The three commands of the page on settings run, and say what they should."""
    checkout, _ = installed
    (script,) = blocks("settings", "Settings", "sh")
    help_, check, version = [
        bash(line, checkout, TORNADO_SIGNAL_PORT="0", TORNADO_SIGNAL_DATA_DIR=str(tmp_path / "data"))
        for line in script.splitlines()
    ]
    assert "--data-dir" in help_
    assert check.startswith("settings: can be used\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)? \(([0-9a-f]{40}|unknown)\)\n", version)


@pytest.mark.slow
def test_look_after_it(tmp_path):
    """What is to be typed while the server runs works then, and what is to be typed when it is stopped, then."""
    running, stopped = [text.splitlines() for text in blocks("maintenance", "Backup and repair", "sh")]
    units = "tornado-signal.socket tornado-signal"
    assert [stopped.pop(0), stopped.pop()] == [f"sudo systemctl {verb} {units}" for verb in ("stop", "start")]
    (tmp_path / "var/backups").mkdir(parents=True)
    data = tmp_path / "var/lib/tornado-signal/data"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])

    def typed(lines):
        script = "\n".join(lines).replace("sudo /opt/tornado-signal/bin/tornado-signal", str(COMMAND))
        script = script.replace(" /var/", f" {tmp_path}/var/").replace("sudo ", "").replace("9100", port)
        return bash(script, tmp_path)

    server = Server("--admin-port", port, "--data-dir", data)
    try:
        code = server.offer()
        printed = typed(running)
        assert printed.startswith(f"{tmp_path}/var/backups/tornado-signal.backup: 1 sessions, ")
        assert re.search(r"^http://127.0.0.1:\d+: \d+ bytes before, \d+ bytes after$", printed, re.MULTILINE)
        assert '"sessions": 1' in printed
        assert server.stop() == 0
    finally:
        server.end()
    printed = typed(stopped).splitlines()
    assert [line.removeprefix(str(data)) for line in printed] == [
        " is sound",
        " is sound, nothing was changed",
        f": 1 sessions restored from {tmp_path}/var/backups/tornado-signal.backup",
    ]
    server = Server("--data-dir", data)
    try:
        assert server.codes() == [code]
        assert server.stop() == 0
    finally:
        server.end()


@pytest.mark.slow
def test_work_on_it():
    """The commands for working on it exist and understand what the page tells them."""
    lines = "".join(blocks("contributing", "Contributing", "sh")).splitlines()
    assert lines == list(NEEDS_CARE)
    for line in lines:
        assert os.access(ROOT / line.split()[0], os.X_OK)
        subprocess.run(NEEDS_CARE[line], cwd=ROOT, stdout=subprocess.DEVNULL, timeout=100, check=True)


# The tables.


def test_endpoints():
    """The page's endpoints are those of the table of routes, with their methods."""
    rows = [
        re.fullmatch(r"`([A-Z]+) (\S+)`", cells[0]).groups() for cells in table("http-api", "Endpoints", "endpoint")
    ]
    routes = {path.replace("{topic}", ":topic"): method for path, method in declared().items()}
    routes |= dict.fromkeys([*assets.CLIENT, "/demo", "/ws", "/asyncapi.json"], "GET")
    assert len(rows) == len(routes)
    assert {path: method for method, path in rows} == routes


def test_errors():
    """The page's errors are those that the server has, with their statuses and texts."""
    made = {errors.InvalidParameter: ("…",), errors.MethodNotAllowed: ((),), errors.Unavailable: ("x",)}
    made[errors.TooMany] = ("x", 1)
    texts = {(str(status), f"`{kind(*made.get(kind, ()))}`") for kind, status in STATUS.items()}
    rows = [tuple(cells[:2]) for cells in table("http-api", "Errors", "status")]
    assert len(rows) == len(set(rows))
    assert set(rows) == texts | {("500", "`Internal server error`")}


def test_keys():
    """The page's table of keys is that of the module that packs them."""
    (keys,) = blocks("design", "Keys", "")
    assert keys == "".join(re.findall(r"^ {4}(.*\n)", layout.__doc__, re.MULTILINE))


def test_the_picture_shows_every_part():
    """Every module and folder of the package is in the picture, but for what builds it."""
    (picture,) = blocks("design", "The picture", "")
    parts = {
        path.stem for path in Path(tornado_signal.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()
    }
    parts -= {"__init__", "__pycache__", "_build", "_version"}
    assert {part for part in parts if not re.search(rf"\b{part}\b", picture)} == set()


def test_what_they_point_at_is_there():
    """Files and folders that the documentation names exist, and so do what the README's links lead to."""
    text = "".join(pages().values())
    named = set(
        re.findall(r"`((?:tests|systemd|docs|tornado_signal|\.ci)/[\w./-]*|[A-Z]+(?:\.md)?)(?: --\w.*)?`", text)
    )
    named -= {"OPTIONS", "HEAD", "GET", "POST", "WS", "F", "I", "M", "S", "L", "G", "E"}
    assert {"tests/peer.py", "systemd/", "tornado_signal/", "CHANGELOG.md", "LICENSE", ".ci/run"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", pages()["README"]):
        assert (ROOT / path).is_file(), path
        headings = sections(Path(path).stem) if anchor else ()
        assert not anchor or anchor in [slugify(heading, "-") for heading in headings], f"{path}#{anchor}"
