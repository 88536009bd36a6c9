"""The commands for users, as processes: against real servers, through pipes and on a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest
from support.command import BOUND_S, COMMAND, ORIGIN, Server, environment, run
from support.terminal import Terminal

NOBODY = "http://127.0.0.1:1"
CODE = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class Tenant:
    """A server as one origin sees it that no other test uses."""

    offer, codes = Server.offer, Server.codes

    def __init__(self, server):
        self.url, self.origin, self._server = server.url, f"https://{uuid.uuid4()}.example", server

    def call(self, path, body=None):
        return self._server.call(path, body, origin=self.origin)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server that no test stops."""
    running = Server("--data-dir", tmp_path_factory.mktemp("shared") / "data")
    yield running
    running.end()


@pytest.fixture
def server(shared):
    """A server that has nothing yet."""
    return Tenant(shared)


@pytest.fixture
def alone(start):
    """A server of a test's own, which it may stop."""
    return start()


@pytest.fixture
def ask(server):
    """A function that runs a command against the server to its end."""
    return lambda *arguments: run(*arguments, SIGNAL_URL=server.url, SIGNAL_ORIGIN=server.origin)


@pytest.fixture
def begin():
    """A function that begins a command against a server; what it is told goes to its standard input."""
    begun = []

    def popen(server, *arguments, told=None):
        process = subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            env=environment(SIGNAL_URL=server.url, SIGNAL_ORIGIN=server.origin),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        if told is not None:
            process.stdin.write(told)
            process.stdin.close()
            process.stdin = None
        return process

    yield popen
    for each in begun:
        each.kill()
        each.communicate()


def code_of(process):
    """The code that a command says on standard error."""
    return re.fullmatch(f"code: ({CODE})\n", process.stderr.readline())[1]


def restart(start, server, number=signal.SIGKILL):
    """End a server and start it again on its port."""
    server.stop(number)
    return start(port=server.url.rsplit(":", 1)[1])


def metrics_of(server):
    """The metrics of a server."""
    with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=BOUND_S) as response:
        return response.read().decode()


# Listings.


def test_listings_for_programs(ask, server):
    """Through a pipe topics and sessions are JSON, one a line, in the words of the API."""
    code = server.offer("lobby", "alice\x1b[2J", "o")
    server.offer("zoo%2F%C3%A9", "bob", "o")
    topics = ask("topics")
    assert (topics.returncode, topics.stderr) == (0, "")
    assert [json.loads(each) for each in topics.stdout.splitlines()] == [
        {"topic": "lobby", "count": 1},
        {"topic": "zoo/é", "count": 1},
    ]
    sessions = ask("sessions", "lobby")
    assert (sessions.returncode, sessions.stderr) == (0, "")
    assert [json.loads(sessions.stdout)] == server.call("/lobby/sessions")[1]["sessions"]
    assert json.loads(sessions.stdout)["code"] == code
    assert ask("sessions", "nobody").stdout == ""


def test_many_topics(ask, server):
    """Topics come from all pages."""
    names = [f"t{number:04}" for number in range(1001)]
    for name in names:
        server.offer(name)
    assert [json.loads(each)["topic"] for each in ask("topics").stdout.splitlines()] == names


def test_listings_for_people(server):
    """On a terminal they are tables, whose columns line up and in which nobody else steers the terminal."""
    codes = [server.offer("lobby", info, "o") for info in ("alice\x1b[2J\n", "日本", "x" * 1000)]
    variables = environment(SIGNAL_URL=server.url, SIGNAL_ORIGIN=server.origin)
    with Terminal(COMMAND, "sessions", "lobby", env=variables) as terminal:
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
    with Terminal(COMMAND, "topics", env=variables) as terminal:
        assert terminal.rest() == ("TOPIC  SESSIONS\nlobby         3\n", 0)
    with Terminal(COMMAND, "topics", "--json", env=variables) as terminal:
        assert terminal.rest() == ('{"topic": "lobby", "count": 3}\n', 0)


# What can go wrong.


@pytest.mark.parametrize(
    ("arguments", "variables", "reason"),
    [
        (["topics", "--url", "ftp://x"], {}, "argument --url: 'ftp://x': expected the address of a server"),
        (["topics", "--url", "http://x:65536"], {}, "argument --url: 'http://x:65536': expected"),
        (["topics", "--origin", "https://x/"], {}, "argument --origin: 'https://x/': expected an origin"),
        (["topics"], {"SIGNAL_URL": "x"}, "environment variable SIGNAL_URL = 'x': expected the address of a server"),
        (["topics"], {"SIGNAL_ORIGIN": "*"}, "environment variable SIGNAL_ORIGIN = '*': expected an origin"),
        (["sessions"], {}, "the following arguments are required: TOPIC"),
        (["sessions", ""], {}, "argument TOPIC: '': expected a topic of 1 to 256 characters"),
        (["sessions", "x" * 257], {}, "expected a topic of 1 to 256 characters"),
        (["offer", "lobby", "--wait", "soon"], {}, "argument --wait: 'soon': expected a number of seconds"),
        (["offer", "lobby", "--candidate", ""], {}, "argument --candidate: '': expected some text"),
        (["ping", "--count", "0"], {}, "argument --count: '0': expected a whole number from 1 to 100000"),
        (["completion", "sh"], {}, "invalid choice: 'sh'"),
    ],
)
def test_wrong_usage(arguments, variables, reason):
    """A wrong command line or environment is exit status 2 and a line that says what was wrong."""
    done = run(*arguments, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["topics"], ["sessions", "lobby"], ["watch"], ["watch", "lobby"], ["answer", "lobby"], ["ping"]]
)
def test_nobody_is_there(arguments):
    """A server that cannot be reached is exit status 1 and one sentence, at once."""
    done = run(*arguments, "--url", NOBODY)
    wanted = f"cannot reach {NOBODY}: Connection refused; is the server running, and is --url right?"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"tornado-signal: {wanted}\n")


def test_a_live_view_of_nobody():
    """On a terminal watching a server that cannot be reached ends with the same sentence."""
    with Terminal(COMMAND, "watch", "lobby", "--url", NOBODY, env=environment()) as terminal:
        shown, status = terminal.rest()
    assert status == 1
    assert shown.endswith("Connection refused; is the server running, and is --url right?\n")
    assert "Traceback" not in shown


def test_a_refusal(server, begin):
    """What the server refuses is exit status 1 and the server's own words."""
    done = begin(server, "offer", "lobby", told="x" * 300_000)
    assert done.communicate(timeout=BOUND_S) == ("", "tornado-signal: the server says: 413 Request body too large\n")
    assert done.returncode == 1


def test_a_defect(tmp_path, server):
    """A defect of a command is exit status 3 with a traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import json\ndef dumps(fields): raise ZeroDivisionError('unforeseen')\njson.dumps = dumps\n"
    )
    server.offer()
    done = run("topics", "--url", server.url, "--origin", server.origin, PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    assert done.stderr.endswith("ZeroDivisionError: unforeseen\n")


def test_the_first_server_that_works(server):
    """Of several servers the first that works is used, from the flag and from the environment."""
    server.offer()
    several = f"{NOBODY},{server.url}"
    assert run("topics", "--url", several, "--origin", server.origin).stdout == '{"topic": "lobby", "count": 1}\n'
    assert run("topics", SIGNAL_URL=several, SIGNAL_ORIGIN=server.origin).stdout == '{"topic": "lobby", "count": 1}\n'
    assert run("topics", SIGNAL_URL=server.url).stdout == ""  # another origin


def test_the_names_do_not_clash(tmp_path):
    """The variables of these commands are no settings of `serve`, which refuses what it does not know."""
    variables = {"SIGNAL_URL": NOBODY, "SIGNAL_ORIGIN": ORIGIN}
    assert run("serve", "--check", "--port", 0, cwd=tmp_path, **variables).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["topics", "--url", NOBODY], {"tornado", "uvloop", "httptools", "shtab", "aiortc"}),
        (["serve", "--check", "--port", "0"], {"httpx", "shtab", "aiortc"}),
        (["check", "--data-dir", "none"], {"asyncio", "httpx", "tornado", "uvloop", "shtab", "aiortc"}),
        (["--version"], {"asyncio", "plyvel", "plyvel_next", "httpx", "tornado", "uvloop", "shtab", "aiortc"}),
    ],
)
def test_no_command_imports_what_it_does_not_need(arguments, absent, tmp_path):
    """Commands begin fast: none of them imports what another one needs."""
    python = [sys.executable, "-X", "importtime", "-m", "tornado_signal", *arguments]
    done = subprocess.run(python, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    imported = set(re.findall(r"\| +(\w+)$", done.stderr, re.MULTILINE))
    assert "argparse" in imported
    assert imported & absent == set()


# A shell as a peer.

TWO_SHELLS = """
echo "offer of alice" | tornado-signal offer lobby --candidate "alice is here" >answer &
coproc tornado-signal answer lobby --candidate "bob is here"
offer=$(cat <&"${COPROC[0]}")
echo "answer to: $offer" >&"${COPROC[1]}"
exec {COPROC[1]}>&-
wait
cat answer
"""


def test_two_shells(server, tmp_path):
    """Two commands in a shell are two peers: one's offer gets to the other, and the other's answer back."""
    done = subprocess.run(
        ["bash", "-euc", TWO_SHELLS],
        cwd=tmp_path,
        env=environment(
            SIGNAL_URL=server.url, SIGNAL_ORIGIN=server.origin, PATH=f"{COMMAND.parent}:{os.environ['PATH']}"
        ),
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=True,
    )
    assert done.stdout == "answer to: offer of alice\n"
    codes = re.findall(f"code: ({CODE})", done.stderr)
    assert len(codes) == 2
    assert len(set(codes)) == 1
    assert server.codes() == []


def test_offer_and_answer_for_programs(server, begin):
    """With --json both say everything, candidates too; data arrives byte for byte but for the last line break."""
    offerer = begin(server, "offer", "lobby", "--json", "--candidate", "c1", "--candidate", "c2", told="é\nline\n\n")
    code = code_of(offerer)
    answerer = begin(server, "answer", "lobby", "--json", told="an answer")
    assert code_of(answerer) == code
    output, errors = answerer.communicate(timeout=BOUND_S)
    assert (answerer.returncode, errors) == (0, "")
    assert json.loads(output) == {"code": code, "offer": "é\nline\n", "offerCandidates": ["c1", "c2"]}
    output, errors = offerer.communicate(timeout=BOUND_S)
    assert (offerer.returncode, errors) == (0, "")
    assert json.loads(output) == {"code": code, "answer": "an answer", "answerCandidates": []}


def test_answer_a_code(server, begin):
    """A code is answered whatever its topic; a topic that looks like a code is one all the same."""
    code = server.offer("somewhere", offer="by code")
    answerer = begin(server, "answer", code, "--candidate", "c", told="a")
    assert answerer.communicate(timeout=BOUND_S)[0] == "by code\n"
    assert answerer.returncode == 0
    answered = server.call("/poll", {"code": code, "side": "offerer"})
    assert answered == (200, {"answer": "a", "answerCandidates": ["c"]})
    server.offer(code, offer="by topic")
    server.call("/withdraw", {"code": code, "side": "offerer"})
    assert begin(server, "answer", code, told="a").communicate(timeout=BOUND_S)[0] == "by topic\n"


def test_answer_waits_and_takes_the_oldest(server, begin):
    """Without a session `answer` waits for one; of several it takes the one that has waited longest."""
    answerer = begin(server, "answer", "lobby", told="a")
    server.offer("lobby", offer="o")
    assert answerer.communicate(timeout=BOUND_S)[0] == "o\n"
    oldest = server.offer("lobby", offer="old")
    server.offer("lobby", offer="new")
    answerer = begin(server, "answer", "lobby", told="a")
    assert code_of(answerer) == oldest


def test_somebody_else_was_faster(server, begin):
    """When somebody else answers while the answer is being made, that is exit status 1 and a sentence."""
    code = server.offer()
    answerer = begin(server, "answer", "lobby")
    assert code_of(answerer) == code
    assert server.call("/answer", {"code": code, "side": "answerer", "answer": "x"})[0] == 200
    assert answerer.stdout.read() == "o\n"  # standard output has been closed
    _, errors = answerer.communicate("too late", timeout=BOUND_S)
    assert errors == "tornado-signal: another peer has answered the session, or it has ended\n"
    assert answerer.returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_offer(server, begin, number):
    """An offer whose command is interrupted is withdrawn."""
    offerer = begin(server, "offer", "lobby", told="o")
    code = code_of(offerer)
    assert server.codes() == [code]
    offerer.send_signal(number)
    output, errors = offerer.communicate(timeout=BOUND_S)
    assert errors == "tornado-signal: interrupted; the offer has been withdrawn\n"
    assert (offerer.returncode, output, server.codes()) == (1, "", [])


def test_interrupted_while_reading(server, begin):
    """A command that still waits for its input can be interrupted."""
    server.offer()
    answerer = begin(server, "answer", "lobby")
    code_of(answerer)
    answerer.send_signal(signal.SIGINT)
    assert answerer.wait(BOUND_S) == 1
    assert answerer.stderr.read() == "tornado-signal: interrupted\n"


def test_nobody_comes(server, begin):
    """Who waits in vain is told, with exit status 1, and the offer is withdrawn."""
    offerer = begin(server, "offer", "lobby", "--wait", 0.5, told="o")
    code_of(offerer)
    assert offerer.communicate(timeout=BOUND_S) == ("", "tornado-signal: no answer within 0.5 s\n")
    assert (offerer.returncode, server.codes()) == (1, [])
    answerer = begin(server, "answer", "lobby", "--wait", 0.5, told="a")
    assert answerer.communicate(timeout=BOUND_S) == ("", "tornado-signal: no offer within 0.5 s\n")


@pytest.mark.parametrize(
    ("told", "reason"), [("", "there is no offer on standard input"), ("\udcff", "standard input is not UTF-8")]
)
def test_no_offer(server, told, reason):
    """An input that is empty or no text is not published."""
    done = subprocess.run(
        [COMMAND, "offer", "lobby", "--url", server.url],
        input=told.encode(errors="surrogateescape"),
        env=environment(),
        capture_output=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 1
    assert reason in done.stderr.decode()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_peers_over_a_restart(start, begin, number):
    """An offer that waits, and a peer that waits for one, live on when the server ends and is started again."""
    server = start("--admin-port", 0)
    offerer = begin(server, "offer", "lobby", told="o")
    code = code_of(offerer)
    answerer = begin(server, "answer", "another", told="a")
    deadline_s = time.monotonic() + BOUND_S
    while 'waiting_requests{endpoint="/:topic/sessions"} 1.0' not in metrics_of(server):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    first = server.call("/lobby/sessions")[1]["sessions"][0]
    again = restart(start, server, number)
    while again.call("/lobby/sessions")[1]["sessions"][0]["expiresAt"] == first["expiresAt"]:  # until it is taken over
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert again.call("/answer", {"code": code, "side": "answerer", "answer": "after"})[0] == 200
    assert offerer.communicate(timeout=BOUND_S) == ("after\n", "")
    again.offer("another", offer="late")
    assert answerer.communicate(timeout=BOUND_S)[0] == "late\n"


def test_an_offer_whose_command_is_killed(start, begin):
    """It is listed no longer than the server waits for another connection, and is told of as withdrawn."""
    server = start("--hold-grace-ms", 500)
    watching = begin(server, "watch", "lobby")
    offerer = begin(server, "offer", "lobby", told="o")
    code = code_of(offerer)
    assert json.loads(watching.stdout.readline())["code"] == code
    offerer.kill()
    began_s = time.monotonic()
    assert json.loads(watching.stdout.readline()) == {"event": "gone", "code": code, "reason": "withdrawn"}
    assert 0.4 < time.monotonic() - began_s < 5.5  # of the 300 that an offer may live
    assert server.codes() == []


def test_offer_that_is_lost(start, alone, begin):
    """When the server comes back without the session, that is exit status 1 and the server's words."""
    offerer = begin(alone, "offer", "lobby", told="o")
    code_of(offerer)
    alone.stop(signal.SIGKILL)
    start(data="other", port=alone.url.rsplit(":", 1)[1])
    _, errors = offerer.communicate(timeout=BOUND_S)
    assert errors == "tornado-signal: the server says: 404 Session not found, expired, or origin mismatch\n"
    assert offerer.returncode == 1


# Watching.


def test_watch_a_topic_over_a_restart(start, alone, begin):
    """Through a pipe each event is a line, also after the server was killed and started again; SIGINT ends it well."""
    first = alone.offer("lobby", "before")
    watching = begin(alone, "watch", "lobby")
    line = json.loads(watching.stdout.readline())
    assert line == {"event": "session", **alone.call("/lobby/sessions")[1]["sessions"][0]}
    again = restart(start, alone)
    again.call("/withdraw", {"code": first, "side": "offerer"})
    assert json.loads(watching.stdout.readline()) == {"event": "gone", "code": first, "reason": "withdrawn"}
    second = again.offer("lobby", "after")
    assert json.loads(watching.stdout.readline())["code"] == second
    watching.send_signal(signal.SIGINT)
    assert watching.communicate(timeout=BOUND_S) == ("", "")
    assert watching.returncode == 0


def test_watch_all_topics_over_a_restart(start, alone, begin):
    """Without a topic each topic whose count changes is a line."""
    alone.offer("a")
    watching = begin(alone, "watch")
    assert json.loads(watching.stdout.readline()) == {"topic": "a", "count": 1}
    again = restart(start, alone)
    (code,) = again.codes("a")
    again.call("/withdraw", {"code": code, "side": "offerer"})
    assert json.loads(watching.stdout.readline()) == {"topic": "a", "count": 0}


def test_watch_until_nobody_reads(server):
    """When whoever reads has had enough the command ends without a word."""
    server.offer("lobby")
    server.offer("lobby")
    script = f"{COMMAND} watch lobby --url {server.url} --origin {server.origin} | head -n 1; echo ${{PIPESTATUS[0]}}"
    with subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as shell:
        assert json.loads(shell.stdout.readline())["event"] == "session"
        deadline_s = time.monotonic() + BOUND_S
        while shell.poll() is None:  # it notices when it has something to say
            assert time.monotonic() < deadline_s
            server.offer("lobby")
            time.sleep(0.1)
        assert (shell.stdout.read(), shell.stderr.read()) == ("0\n", "")


def test_watch_on_a_terminal(server):
    """On a terminal the listing is drawn anew as peers come and go."""
    variables = environment(SIGNAL_URL=server.url, SIGNAL_ORIGIN=server.origin)
    with Terminal(COMMAND, "watch", "lobby", env=variables) as live, Terminal(COMMAND, "watch", env=variables) as all_:
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


# Measuring.


def test_ping(ask, server, start):
    """`ping` measures each server, says so in JSON or as a table, and leaves nothing behind."""
    done = ask("ping", "--count", 20)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["url"], found["count"]) == (server.url, 20)
    assert 0 < found["min_ms"] <= found["median_ms"] <= found["p99_ms"] < 10_000
    assert ask("topics").stdout == ""
    other = start(data="other")
    both = f"{server.url},{other.url}"
    with Terminal(COMMAND, "ping", "--count", 2, "--url", both, env=environment()) as terminal:
        shown, status = terminal.rest()
    assert status == 0
    head, *rows = shown.splitlines()
    assert re.fullmatch(r"SERVER +COUNT +MIN \(ms\) +MEDIAN \(ms\) +P99 \(ms\)", head)
    assert [row.split()[:2] for row in rows] == [[server.url, "2"], [other.url, "2"]]
    assert len({len(row) for row in [head, *rows]}) == 1


def test_ping_of_a_server_that_stops(alone, begin):
    """A server that goes away in the middle is exit status 1 and a sentence."""
    pinging = begin(alone, "ping", "--count", 100_000)
    deadline_s = time.monotonic() + BOUND_S
    while not alone.call("/topics")[1]["topics"]:
        assert time.monotonic() < deadline_s
    alone.stop(signal.SIGKILL)
    _, errors = pinging.communicate(timeout=BOUND_S)
    assert pinging.returncode == 1
    assert errors.startswith(f"tornado-signal: cannot reach {alone.url}: ")
    assert errors.count("\n") == 1
