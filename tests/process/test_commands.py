"""The commands for users, as processes: against real servers, through pipes and on a terminal."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
import uuid

import pytest
from support import command
from support.command import BOUND_S, CLIENT, COMMAND, Server, call, environment
from support.forked import PROGRAMS
from support.scraping import scrape
from support.terminal import Terminal
from support.waiting import end_all, kill, run_command, until

DEAD_URL = "http://127.0.0.1:1"
CODE = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Tenant:
    """A server as one origin sees it that no other test uses."""

    offer, codes = Server.offer, Server.codes

    def __init__(self, server):
        self.url, self.origin = server.url, f"https://{uuid.uuid4()}.example"
        self.variables = {"SIGNAL_URL": self.url, "SIGNAL_ORIGIN": self.origin}
        self.call = functools.partial(server.call, origin=self.origin)

    def run(self, *arguments, **options):
        return call(*arguments, **self.variables, **options, command=CLIENT)

    def terminal(self, *arguments):
        return Terminal(CLIENT, *arguments, env=environment(**self.variables))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    running = Server("--data-dir", tmp_path_factory.mktemp("shared") / "data")
    yield running
    running.end()


@pytest.fixture
def server(shared):
    return Tenant(shared)


@pytest.fixture
def begin():
    """A function that begins a command against a server, with a text on its standard input if there is one."""

    def beginning(server, *arguments, text=None):
        variables = {"SIGNAL_URL": server.url, "SIGNAL_ORIGIN": server.origin}
        process = command.begin(*arguments, command=CLIENT, stdin=subprocess.PIPE, **variables)
        if text is not None:
            process.stdin.write(text)
            process.stdin.close()
        return process

    with end_all(beginning, kill) as begin:
        yield begin


def ended(process, text=""):
    output, errors = process.communicate(text, timeout=BOUND_S)
    return process.returncode, output, errors


def code_of(process):
    return re.fullmatch(f"code: ({CODE})\n", process.stderr.readline())[1]


def test_listings_are_lines_of_json_through_a_pipe(server):
    code = server.offer("lobby", "alice\x1b[2J", "o")
    server.offer("zoo%2F%C3%A9", "bob", "o")
    topics = server.run("topics")
    assert (topics.returncode, topics.stderr) == (0, "")
    assert [json.loads(each) for each in topics.stdout.splitlines()] == [
        {"topic": "lobby", "count": 1},
        {"topic": "zoo/é", "count": 1},
    ]
    sessions = server.run("sessions", "lobby")
    assert (sessions.returncode, sessions.stderr) == (0, "")
    assert [json.loads(sessions.stdout)] == server.call("/lobby/sessions")[1]["sessions"]
    assert json.loads(sessions.stdout)["code"] == code
    lines = topics.stdout + sessions.stdout
    assert (lines.isascii(), lines.replace("\n", "").isprintable()) == (True, True)
    assert server.run("sessions", "empty").stdout == ""


def test_topics_come_from_all_pages(server):
    names = [f"t{number:04}" for number in range(1001)]
    for name in names:
        server.offer(name)
    assert [json.loads(each)["topic"] for each in server.run("topics").stdout.splitlines()] == names


def test_listings_on_a_terminal_escape_control_characters(server):
    codes = [server.offer("lobby", info, "o") for info in ("alice\x1b[2J\n", "日本", "x" * 1000)]
    with server.terminal("sessions", "lobby") as terminal:
        shown, status = terminal.rest()
    assert status == 0
    head, *rows = shown.splitlines()
    assert head.split() == ["CODE", "INFO", "AGE", "LEFT", "OFFER", "CANDIDATES"]
    assert [row.split()[0] for row in rows] == codes[::-1]
    at = head.index("AGE")
    assert rows[0][:at].split()[1] == "x" * 59 + "…"
    assert rows[1][: at - 2].split()[1] == "日本"  # which takes four columns
    assert rows[2][:at].split()[1] == r"alice\x1b[2J\n"
    assert all(re.fullmatch(r"\d+ s +[45] min +1 +0", row[at:]) for row in (rows[0], rows[2]))
    with server.terminal("topics") as terminal:
        assert terminal.rest() == ("TOPIC  SESSIONS\nlobby         3\n", 0)
    with server.terminal("topics", "--json") as terminal:
        assert terminal.rest() == ('{"topic": "lobby", "count": 3}\n', 0)


def test_offer_and_answer_escape_control_characters_on_a_terminal(server):
    text, shown = "v=0\r\n\x1b]0;title\x07\x9b2J\u202e\n日本", "v=0\n\\x1b]0;title\\x07\\x9b2J\\u202e\n日本\n"
    code = server.offer("lobby", "i", text)
    with server.terminal("answer", code) as terminal:
        terminal.until(re.escape(shown))
        terminal.type("an answer\n\x04")
        assert terminal.rest()[1] == 0
    with server.terminal("offer", "lobby") as terminal:
        terminal.type("an offer\n\x04")
        code = terminal.until(r"code: (\S+)\n")[1]
        server.call("/answer", {"code": code, "side": "answerer", "answer": text})
        assert terminal.rest() == (shown, 0)


@pytest.mark.parametrize(
    "arguments", [["topics"], ["sessions", "lobby"], ["watch"], ["watch", "lobby"], ["answer", "lobby"], ["ping"]]
)
def test_unreachable_server_is_named(arguments):
    done = call(*arguments, "--url", DEAD_URL, command=CLIENT)
    wanted = f"cannot reach {DEAD_URL}: Connection refused; is the server running, and is --url right?"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"tornado-signal-client: {wanted}\n")
    if "watch" in arguments:
        with Terminal(CLIENT, *arguments, "--url", DEAD_URL, env=environment()) as terminal:
            shown, status = terminal.rest()
        assert (status, shown.endswith(f"{wanted}\n"), "Traceback" in shown) == (1, True, False)


def test_proxy_that_fails_is_named(monkeypatch):
    monkeypatch.setenv("http_proxy", DEAD_URL)
    monkeypatch.delenv("no_proxy", raising=False)
    done = call("topics", "--url", "http://signal.example", command=CLIENT)
    wanted = f"cannot reach http://signal.example through the proxy {DEAD_URL}: Connection refused"
    hint = "does the proxy work, or does the server's host belong into no_proxy?"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"tornado-signal-client: {wanted}; {hint}\n")


@pytest.mark.parametrize("program", [COMMAND, CLIENT])
def test_reader_of_the_output_may_leave(program):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = command.run("completion", "bash", command=program, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_defect_is_exit_status_3_with_a_traceback(server, monkeypatch):
    server.offer()
    # Not `json.dumps` itself: httpx, which the command imports, would keep it.
    monkeypatch.setattr("tornado_signal_client.cli.terminal.json", types.SimpleNamespace(dumps=lambda fields: 1 / 0))
    done = server.run("topics")
    assert (done.returncode, done.stderr.endswith("ZeroDivisionError: division by zero\n")) == (3, True)


def test_first_server_that_works_is_used(server):
    server.offer()
    several = f"{DEAD_URL},{server.url}"
    listed = '{"topic": "lobby", "count": 1}\n'
    assert call("topics", "--url", several, "--origin", server.origin, command=CLIENT).stdout == listed
    assert call("topics", SIGNAL_URL=several, SIGNAL_ORIGIN=server.origin, command=CLIENT).stdout == listed
    assert call("topics", SIGNAL_URL=server.url, command=CLIENT).stdout == ""  # another origin


@pytest.mark.parametrize(
    ("program", "arguments", "absent"),
    [
        (CLIENT, ["topics", "--url", DEAD_URL], {"tornado", "uvloop", "httptools", "shtab", "aiortc"}),
        (CLIENT, ["--help"], {"asyncio", "httpx", "websockets", "shtab", "aiortc"}),
        (COMMAND, ["serve", "--check", "--port", "0"], {"httpx", "shtab", "opentelemetry", "requests", "google"}),
        (COMMAND, ["check", "--data-dir", "none"], {"asyncio", "httpx", "tornado", "uvloop", "shtab"}),
        (COMMAND, ["health", "--port", "1"], {"asyncio", "http", "httpx", "ssl"}),
        (COMMAND, ["--version"], {"asyncio", "plyvel", "plyvel_next", "httpx", "tornado", "uvloop", "shtab"}),
    ],
)
def test_commands_import_only_what_they_need(program, arguments, absent, tmp_path):
    python = [sys.executable, "-X", "importtime", "-m", PROGRAMS[program.name].removesuffix(".__main__"), *arguments]
    done = subprocess.run(python, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    imported = set(re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE))
    assert "argparse" in imported
    assert imported & absent == set()


@pytest.mark.parametrize(("program", "package"), [(CLIENT, "clients/python"), (COMMAND, ".")])
def test_completion_without_its_package_names_the_extra(program, package, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = call("completion", "bash", command=program)
    install = f"in the checkout: pip install '{package}[completion]'"
    assert (done.returncode, done.stderr) == (1, f"{program.name}: completion needs shtab; {install}\n")


TWO_SHELLS = """
echo "offer of alice" | tornado-signal-client offer lobby --candidate "alice is here" >answer &
coproc tornado-signal-client answer lobby --candidate "bob is here"
offer=$(cat <&"${COPROC[0]}")
echo "answer to: $offer" >&"${COPROC[1]}"
exec {COPROC[1]}>&-
wait
cat answer
"""


def test_commands_in_two_shells_connect_two_peers(server, tmp_path):
    variables = environment(**server.variables, PATH=f"{COMMAND.parent}:{os.environ['PATH']}")
    done = run_command("bash", "-euc", TWO_SHELLS, cwd=tmp_path, env=variables, timeout=BOUND_S)
    assert (done.returncode, done.stdout) == (0, "answer to: offer of alice\n")
    one, other = re.findall(f"code: ({CODE})", done.stderr)
    assert one == other
    assert server.codes() == []


def test_json_output_has_all_messages_of_the_other_peer(server, begin):
    offerer = begin(server, "offer", "lobby", "--json", "--candidate", "c1", "--candidate", "c2", text="é\nline\n\n")
    code = code_of(offerer)
    done = server.run("answer", "lobby", "--json", input=b"an answer")
    assert (done.returncode, done.stderr) == (0, f"code: {code}\n")
    assert json.loads(done.stdout) == {"code": code, "offer": "é\nline\n", "offerCandidates": ["c1", "c2"]}
    status, output, errors = ended(offerer)
    assert (status, errors) == (0, "")
    assert json.loads(output) == {"code": code, "answer": "an answer", "answerCandidates": []}


def test_answer_accepts_a_code_and_a_topic_that_looks_like_a_code(server):
    code = server.offer("somewhere", offer="by code")
    assert server.run("answer", code, "--candidate", "c", input=b"a").stdout == "by code\n"
    answered = server.call("/poll", {"code": code, "side": "offerer"})
    assert answered == (200, {"answer": "a", "answerCandidates": ["c"]})
    server.offer(code, offer="by topic")
    server.call("/withdraw", {"code": code, "side": "offerer"})
    assert server.run("answer", code, input=b"a").stdout == "by topic\n"


def test_answer_waits_for_a_session_and_takes_the_oldest(server, begin):
    answerer = begin(server, "answer", "lobby", text="a")
    server.offer("lobby", offer="o")
    assert ended(answerer)[1] == "o\n"
    oldest = server.offer("lobby", offer="old")
    server.offer("lobby", offer="new")
    assert server.run("answer", "lobby", input=b"a").stderr == f"code: {oldest}\n"


def test_session_that_another_peer_answers_meanwhile_is_exit_status_1(server, begin):
    code = server.offer()
    answerer = begin(server, "answer", "lobby")
    assert code_of(answerer) == code
    assert server.call("/answer", {"code": code, "side": "answerer", "answer": "x"})[0] == 200
    assert answerer.stdout.read() == "o\n"  # standard output has been closed
    said = "tornado-signal-client: another peer has answered the session, or it has ended\n"
    assert ended(answerer, "too late") == (1, "", said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_offer_whose_command_is_interrupted_is_withdrawn_and_that_of_another_peer_stays(server, begin, number):
    offerer = begin(server, "offer", "lobby", text="o")
    code = code_of(offerer)
    assert server.codes() == [code]
    offerer.send_signal(number)
    assert ended(offerer) == (1, "", "tornado-signal-client: interrupted; the offer has been withdrawn\n")
    assert server.codes() == []
    code = server.offer()
    answerer = begin(server, "answer", "lobby")  # it reads its input
    assert code_of(answerer) == code
    answerer.send_signal(signal.SIGINT)
    assert answerer.wait(BOUND_S) == 1
    assert answerer.stderr.read() == "tornado-signal-client: interrupted\n"
    assert server.codes() == [code]


@pytest.mark.parametrize(
    ("command", "text", "reason"),
    [
        (("offer", "--wait", 0.1), b"o", "no answer within 0.1 s"),
        (("answer", "--wait", 0.1), b"a", "no offer within 0.1 s"),
        (("offer",), b"", "standard input is empty; it must contain the offer"),
        (("offer",), b"\xff", "the offer on standard input is not UTF-8"),
        (("offer",), b"x" * 300_000, "the server says: 413 Request body too large"),
    ],
)
def test_timeout_refusal_or_unusable_input_is_exit_status_1_and_leaves_no_offer(command, text, reason, server):
    name, *flags = command
    done = server.run(name, "lobby", *flags, input=text)
    assert (done.returncode, done.stdout, server.codes()) == (1, "", [])
    assert done.stderr.splitlines()[-1] == f"tornado-signal-client: {reason}"


def listed(server, topic):
    (session,) = server.call(f"/{topic}/sessions")[1]["sessions"]
    return session


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_waiting_commands_survive_a_restart(start, begin, number):
    server = start("--admin-port", 0)
    offerer = begin(server, "offer", "lobby", text="o")
    code = code_of(offerer)
    answerer = begin(server, "answer", "another", text="a")
    until(lambda: scrape(server.admin_url).all("waiting_requests").get(("/:topic/sessions",)) == 1)
    first = server.offer("watched")
    topic, topics = watching = [begin(server, "watch", "watched"), begin(server, "watch")]
    assert json.loads(topic.stdout.readline()) == {"event": "session", **listed(server, "watched")}
    for name in ("lobby", "watched"):
        assert json.loads(topics.stdout.readline()) == {"topic": name, "count": 1}
    expires_at = listed(server, "lobby")["expiresAt"]
    server.stop(number)
    again = start(port=server.port)
    again.call("/withdraw", {"code": first, "side": "offerer"})
    assert json.loads(topic.stdout.readline()) == {"event": "gone", "code": first, "reason": "withdrawn"}
    assert json.loads(topics.stdout.readline()) == {"topic": "watched", "count": 0}
    until(lambda: listed(again, "lobby")["expiresAt"] != expires_at)  # it is taken over
    assert again.call("/answer", {"code": code, "side": "answerer", "answer": "after"})[0] == 200
    assert ended(offerer)[:2] == (0, "after\n")  # on a busy machine with a warning about the restart
    assert json.loads(topics.stdout.readline()) == {"topic": "lobby", "count": 0}
    for each in watching:
        each.send_signal(signal.SIGINT)
        assert ended(each)[:2] == (0, "")
    again.offer("another", offer="late")
    assert ended(answerer)[1] == "late\n"


def test_offer_of_a_killed_command_ends_soon(start, begin):
    server = start("--hold-grace-ms", 500)
    watching = begin(server, "watch", "lobby")
    offerer = begin(server, "offer", "lobby", text="o")
    code = code_of(offerer)
    assert json.loads(watching.stdout.readline())["code"] == code
    began_s = time.monotonic()
    offerer.kill()
    assert json.loads(watching.stdout.readline()) == {"event": "gone", "code": code, "reason": "withdrawn"}
    assert 0.5 <= time.monotonic() - began_s < BOUND_S  # of the 300 that an offer may live
    assert server.codes() == []


def test_watch_ends_silently_when_its_reader_closes(server):
    server.offer("lobby")
    script = f"{CLIENT} watch lobby | head -n 1; echo ${{PIPESTATUS[0]}}"
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(**server.variables)}
    with subprocess.Popen(["bash", "-c", script], text=True, **options) as shell:
        assert json.loads(shell.stdout.readline())["event"] == "session"
        until(lambda: server.offer("lobby") and shell.poll() is not None)  # it notices when it has something to say
        assert (shell.stdout.read(), shell.stderr.read()) == ("0\n", "")


def test_listing_on_a_terminal_is_updated(server):
    with server.terminal("watch", "lobby") as live, server.terminal("watch") as all_:
        live.until(r"\x1b\[H\x1b\[Jlobby: 0 waiting")
        code = server.offer("lobby", "alice")
        live.until(rf"lobby: 1 waiting.*\n\nCODE .*\n{code}  alice ")
        all_.until(r"\x1b\[H\x1b\[J1 topics.*\n\nTOPIC  SESSIONS\nlobby         1\n")
        server.call("/withdraw", {"code": code, "side": "offerer"})
        live.until("lobby: 0 waiting")
        all_.until("0 topics")
        for terminal in (live, all_):
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.rest()[1] == 0


def test_ping_measures_each_server_and_leaves_no_session(server, start):
    done = server.run("ping", "--count", 20)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["url"], found["count"]) == (server.url, 20)
    assert 0 < found["min_ms"] <= found["median_ms"] <= found["p99_ms"] < 10_000
    assert server.run("topics").stdout == ""
    other = start()
    both = f"{server.url},{other.url}"
    with server.terminal("ping", "--count", 2, "--url", both) as terminal:
        shown, status = terminal.rest()
    assert status == 0
    head, *rows = shown.splitlines()
    assert re.fullmatch(r"SERVER +COUNT +MIN \(ms\) +MEDIAN \(ms\) +P99 \(ms\)", head)
    assert [row.split()[:2] for row in rows] == [[server.url, "2"], [other.url, "2"]]
    assert len({len(row) for row in [head, *rows]}) == 1


def test_ping_names_a_server_that_stops(start, begin):
    server = start()
    pinging = begin(server, "ping", "--count", 100_000)
    until(lambda: server.call("/topics")[1]["topics"])
    server.stop(signal.SIGKILL)
    status, _, errors = ended(pinging)
    assert status == 1
    assert re.fullmatch(rf"tornado-signal-client: cannot reach {server.url}: .*\n", errors)
