"""The log: its forms, its priorities, a line for each request if asked for, and never a word of what peers send."""

import contextlib
import ipaddress
import json
import logging
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from support.command import BOUND_S, COMMAND, Server, environment
from support.documents import blocks
from support.service import ORIGIN, head
from support.traffic import SECRETS, send, traffic

from tornado_signal.settings.origins import Origins
from tornado_signal.system import logs

pytest_plugins = ["support.http_fixtures"]

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)

# Python imports this before the command begins: a defect that quotes what it was asked for.
DEFECT = """
import tornado_signal.stores.leveldb.store
async def broken(self, *arguments, **options):
    try:
        {}[repr(arguments)]
    except KeyError as error:
        raise ValueError(f"cannot read {arguments} {options}") from error
tornado_signal.stores.leveldb.store.LevelDBStore.read = broken
"""


def record(message, *arguments, level=logging.INFO, name="tornado_signal.some", error=None, fields=None):
    """A record as `logging` makes it."""
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord(name, level, "file", 1, message, arguments, exc_info)
    if fields:
        made.fields = fields
    return made


def raised(error):
    """An error with a traceback."""
    with contextlib.suppress(type(error)):
        raise error
    return error


@pytest.fixture
def serve(tmp_path):
    """A function that starts the installed command and stops it at the end; its log is whole after `stop`."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **variables):
            started = Server("--data-dir", tmp_path / "data", *arguments, **variables)
            stack.callback(started.end)
            return started

        yield start


def ask(server, method, path, body=None, origin=ORIGIN, **headers):
    """Send a request; its status, its name and its body."""
    data = None if body is None else json.dumps(body).encode()
    sent = ({"Origin": origin} if origin else {}) | {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(server.url + path, data=data, headers=sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=BOUND_S) as response:
            return response.status, response.headers.get_all("X-Request-Id"), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_all("X-Request-Id"), error.read()


def lines(server):
    """The lines of a log of JSON, read."""
    return [json.loads(line) for line in server.log]


# The forms.


def test_text():
    """A line of text: when, how bad, who, what, and more of it by name. The journal says when by itself."""
    made = record("it is %d", 5)
    made.created = 1_900_000_000.1234
    assert logs.Formatter().format(made) == "2030-03-17T17:46:40.123Z INFO tornado_signal.some: it is 5"
    assert logs.Formatter(journal=True).format(made) == "<6>INFO tornado_signal.some: it is 5"
    made = record("it", fields={"a": 1, "b": "/:x"})
    assert logs.Formatter(journal=True).format(made) == "<6>INFO tornado_signal.some: it a=1 b=/:x"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("é/:x", "é/:x"),
        ("two words", '"two words"'),
        ("", '""'),
        ('say "a"', r'"say \"a\""'),
        ("a=b", '"a=b"'),
        ("a\nb\x85", '"a\\nb\x85"'),
        ("a\N{NO-BREAK SPACE}b", '"a\N{NO-BREAK SPACE}b"'),
    ],
)
def test_values(value, written):
    """A value that its end could not be told of is quoted, as JSON."""
    line = logs.Formatter().format(record("it", fields={"a": value, "b": 2}))
    assert line.endswith(f" it a={written} b=2")
    assert "\n" not in line


def test_json():
    """A line of JSON: an object with the time in UTC, and no line break in it whatever it says."""
    line = logs.Formatter("json").format(record("two\nlines", level=logging.WARNING, fields={"a": 1}))
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
    assert found == {"level": "warning", "logger": "tornado_signal.some", "message": "two\nlines", "a": 1}


@pytest.mark.parametrize(
    ("level", "priority"), [("DEBUG", 7), ("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2), (25, 5)]
)
def test_priorities(level, priority):
    """In the journal every line, those of a traceback too, has the priority of its record."""
    level = getattr(logging, level) if isinstance(level, str) else level
    made = record("two\nlines", level=level, error=raised(KeyError("x")))
    text = logs.Formatter(journal=True).format(made).split("\n")
    assert len(text) > 4
    assert [line[:3] for line in text] == [f"<{priority}>"] * len(text)
    (line,) = logs.Formatter("json", journal=True).format(made).split("\n")
    assert line.startswith(f"<{priority}>{{")


@pytest.mark.parametrize("form", ["text", "json"])
def test_tracebacks(form):
    """Of an error its type and where it came from are told, not its words: these may be a peer's."""
    formatter = logs.Formatter(form)
    line = formatter.format(record("it failed", error=raised(ValueError("5ec1e7"))))
    assert "5ec1e7" not in line
    assert "ValueError" in line
    assert "in raised" in line
    assert "5ec1e7" in formatter.format(record("it failed", error=raised(ValueError("5ec1e7")), name="x.__main__"))


def test_what_goes_to_the_journal(tmp_path):
    """The journal is known by device and inode of what is written to, as systemd names them."""
    with open(tmp_path / "log", "w") as stream:
        found = os.fstat(stream.fileno())
        right = f"{found.st_dev}:{found.st_ino}"
        assert logs.to_journal(stream, {"JOURNAL_STREAM": right})
        for wrong in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": right + "1"}, {"JOURNAL_STREAM": "x"}):
            assert not logs.to_journal(stream, wrong)
    assert not logs.to_journal(stream, {"JOURNAL_STREAM": right})  # closed


# The log of a server.


@pytest.mark.parametrize("form", ["text", "json"])
def test_nothing_of_what_peers_send(form, serve):
    """At its most talkative, with a line for each request, the log has no word of what was sent; nor after defects."""
    server = serve("--log-level", "debug", "--log-format", form, "--access-log")
    asked, code = traffic(server)
    secret = {"code": code, "side": "offerer", "secret": "hidden secret of 16"}
    many = [
        ("POST", "/hidden-topic/offer", {"info": "hidden", "offer": "hidden", "secret": "hidden secret of 16"}),
        ("POST", "/answer", secret | {"candidates": ["hidden candidate"]}),
        ("POST", "/answer", {"code": code, "side": "answerer", "candidate": "hidden candidate"}),
        ("POST", "/poll", {"code": code, "side": "offerer", "wait": 0.1, "since": "hidden"}),
        ("POST", "/poll", {"code": code, "side": "offerer", "wait": 0.1}),
        ("GET", "/hidden-topic/sessions?wait=0.1&since=hidden", None),
        ("GET", f"/events?code={code}&side=offerer&secret=hidden", None),
        ("GET", "/%68idden/%ff/%00", None),
    ]
    for method, path, body in many:
        ask(server, method, path, body, "https://hidden.example", X_Hidden="hidden", X_Request_Id="hidden")
    send(server, b"POST /hidden HTTP/1.1\r\nHost: hidden\r\nContent-Length: hidden\r\n\r\nhidden")
    assert server.stop() == 0
    text = "".join(server.log)
    assert text.count("/:topic/offer") >= 3
    assert not [word for word in [*SECRETS[:2], code, "example"] if word in text.replace(server.url, "").lower()]
    requests = [line for line in server.log if "tornado_signal.requests" in line]
    assert len(requests) == len(asked) + len(many) + 3  # what the transport has refused, too


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_defect_one_line(form, serve, tmp_path):
    """A defect leaves one record, by the name that the client knows; it tells where it was, and nothing it was told."""
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    server = serve("--log-format", form, PYTHONPATH=str(tmp_path))
    body = {"code": "5ec1e700-0000-4000-8000-000000000000", "side": "offerer"}
    status, (name,), _ = ask(server, "POST", "/poll?hidden", body, "https://hidden.example")
    assert status == 500
    assert server.stop() == 0
    text = "".join(server.log)
    assert not [word for word in ("hidden", "5ec1e7") if word in text.replace(str(tmp_path), "").lower()]
    assert text.count("POST /poll failed: request " + name) == 1
    assert len(re.findall('ERROR|"error"', text)) == 1
    assert len(re.findall(r"ValueError(?!\()", text)) == 1  # but for the line of code that is shown
    assert "in broken" in text


def test_a_line_for_each_request(serve):
    """Each request has a line with its method, endpoint, status, duration, bytes and name; refused ones say why."""
    server = serve("--log-format", "json", "--access-log")
    expected = []
    for method, path, endpoint, reason, *body in [
        ("GET", "/health", "/health", None),
        ("HEAD", "/health", "/health", None),
        ("OPTIONS", "/health", "/health", None),
        ("POST", "/lobby/offer", "/:topic/offer", None, {"info": "i", "offer": "o"}),
        ("GET", "/lobby/sessions", "/:topic/sessions", None),
        ("GET", "/lobby/sessions?wait=0.1", "/:topic/sessions", None),
        ("POST", "/lobby/offer", "/:topic/offer", "info", {}),
        ("GET", "/no/such/path", "unknown", "path not found"),
        ("DELETE", "/health", "/health", "method not allowed"),
    ]:
        status, (name,), answer = ask(server, method, path, *body)
        said = {"method": method, "endpoint": endpoint, "status": status, "bytes": len(answer), "id": name}
        expected.append(said | ({"reason": reason} if reason else {}))
    answer = send(server, b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n").decode()
    name = re.search("X-Request-Id: (.*)\r\n", answer)[1]
    expected.append({"status": 400, "id": name, "reason": "transport"})
    assert server.stop() == 0
    found = [line for line in lines(server) if line["logger"] == "tornado_signal.requests"]
    for line in found:
        assert line.pop("message") == "request"
        assert line.pop("level") == "info"
        assert line.pop("time")
        assert line.pop("logger")
        assert 0 < line.pop("ms", 1) < BOUND_S * 1000
    assert found == expected


def test_the_line_that_the_documentation_shows(serve):
    """The example on the page is such a line: of the same request, with the same names in the same order."""
    (example,) = blocks("monitoring", "Log", "json")
    server = serve("--log-format", "json", "--access-log")
    assert ask(server, "POST", "/lobby/offer", {})[0] == 400
    assert server.stop() == 0
    (found,) = [line for line in lines(server) if line["message"] == "request"]
    shown = json.loads(example)
    assert list(shown) == list(found)
    differing = {"time", "ms", "id"}
    assert {name: value for name, value in shown.items() if name not in differing} == {
        name: value for name, value in found.items() if name not in differing
    }


def test_a_stream_has_one_line(serve):
    """A stream has its line when it is over, with all the bytes that it has sent."""
    server = serve("--log-format", "json", "--access-log")
    server.offer()
    where = server.url.removeprefix("http://")
    request = f"GET /lobby/events HTTP/1.0\r\nHost: {where}\r\nOrigin: {ORIGIN}\r\n\r\n".encode()
    host, port = where.split(":")
    with socket.create_connection((host, int(port)), timeout=BOUND_S) as client:
        client.sendall(request)
        received = b""
        while received.count(b"\n\n") < 3:
            received += client.recv(65536)
    body = received.split(b"\r\n\r\n", 1)[1]
    assert server.stop() == 0
    found = [line for line in lines(server) if line.get("endpoint") == "/:topic/events"]
    assert [(line["status"], line["bytes"], line["method"]) for line in found] == [(200, len(body), "GET")]


def test_silent_unless_asked(serve):
    """Without `--access-log` no request has a line, and a log of warnings begins with the first of them."""
    server = serve("--log-level", "debug")
    traffic(server)
    assert server.stop() == 0
    assert [line for line in server.log if "request" in line] == []
    assert len([line for line in server.log if "swept" not in line]) == 3  # listening, stopping, stopped


def test_only_what_is_worth_it(tmp_path):
    """With the level at warning, a server that has nothing to complain of says nothing, whoever asks it for lines."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["serve", "--port", str(port), "--log-level", "warning", "--access-log"]
    with subprocess.Popen([COMMAND, *flags], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE) as process:
        deadline_s = time.monotonic() + BOUND_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < deadline_s
        request = urllib.request.Request(f"http://127.0.0.1:{port}/health", headers={"Origin": ORIGIN})
        with urllib.request.urlopen(request, timeout=BOUND_S) as response:
            assert response.status == 200
        process.terminate()
        assert process.communicate(timeout=BOUND_S) == (None, b"")
        assert process.returncode == 0


async def test_off_costs_no_record(service, caplog):
    """While requests have no lines, nothing is made that would then be thrown away."""
    caplog.set_level(logging.DEBUG)
    await service.offer()
    await service.get("/health")
    assert (await service.call("GET", "/nowhere")).status == 404
    assert [each for each in caplog.records if each.name.startswith("tornado")] == []


@pytest.mark.parametrize("asked_for", [True, False])
def test_addresses_if_asked_for(asked_for, serve):
    """Addresses are in the log only if asked for: the client's, by what a trusted proxy says, also after a wait."""
    flags = ["--log-addresses"] if asked_for else []
    server = serve("--access-log", "--log-format", "json", "--trusted-proxies", "127.0.0.1", *flags)
    server.offer()
    for path in ("/health", "/lobby/sessions?wait=0.1"):
        ask(server, "GET", path, X_Forwarded_For="203.0.113.9")
    assert server.stop() == 0
    found = [line.get("address") for line in lines(server) if line.get("method")]
    assert found == (["127.0.0.1", "203.0.113.9", "203.0.113.9"] if asked_for else [None] * 3)
    assert asked_for or "203.0.113" not in "".join(server.log)


# To the journal.


def to_the_journal(*arguments, cwd, **variables):
    """Run the command as systemd does, with its standard error going to what it is told is the journal."""
    script = 'export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec "$0" "$@"'
    command = ["bash", "-c", script, COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, env=environment(**variables), stderr=subprocess.PIPE, text=True)


def test_journal(tmp_path):
    """What a service says has priorities: what goes well, what goes wrong, and each line of it."""
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    flags = ["serve", "--port", 0, "--access-log"]
    with to_the_journal(*flags, cwd=tmp_path, PYTHONPATH=str(tmp_path)) as process:
        first = process.stderr.readline()
        url = re.fullmatch(r"<6>INFO tornado_signal\.server: listening on (\S+)\n", first)[1]
        body = json.dumps({"code": "00000000-0000-4000-8000-000000000000", "side": "offerer"}).encode()
        request = urllib.request.Request(url + "/poll", data=body, headers={"Origin": ORIGIN})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=BOUND_S)
        refused.value.close()
        process.terminate()
        said = process.communicate(timeout=BOUND_S)[1].splitlines()
    assert all(re.match("<[36]>", line) for line in said)
    wrong = [line for line in said if line.startswith("<3>")]
    assert wrong[0].startswith("<3>ERROR tornado_signal.http.call: POST /poll failed: request ")
    assert wrong[1] == "<3>Traceback (most recent call last):"
    assert wrong[-1] == "<3>ValueError"
    assert next(line for line in said if "tornado_signal.requests" in line).startswith("<6>INFO ")


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_last_words(form, tmp_path):
    """What an operator has to mend is one line of the log's form, and an error to the journal."""
    flags = ["serve", "--port", 0, "--data-dir", "/proc/no/such/place", "--log-format", form]
    with to_the_journal(*flags, cwd=tmp_path) as process:
        (line,) = process.communicate(timeout=BOUND_S)[1].splitlines()
    assert process.returncode == 1
    if form == "text":
        assert line.startswith("<3>tornado-signal: cannot open the database")
    else:
        found = json.loads(line.removeprefix("<3>"))
        assert (found["level"], found["logger"]) == ("error", "tornado-signal")
        assert found["message"].startswith("cannot open the database")


# The names of requests.


async def test_every_answer_names_its_request(start_service):
    """Whatever is answered, by whom ever, names its request, once, and no two have the same name."""
    service = await start_service(allowed_origins=Origins(frozenset([ORIGIN])))
    names = []
    for method, path, body, origin in [
        ("GET", "/health", None, ORIGIN),
        ("HEAD", "/", None, ORIGIN),
        ("OPTIONS", "/nowhere", None, ORIGIN),
        ("GET", "/nowhere", None, ORIGIN),
        ("GET", "/health", None, None),
        ("GET", "/health", None, "https://other.example"),
        ("POST", "/lobby/offer", {"info": "i", "offer": "o"}, ORIGIN),
        ("POST", "/lobby/offer", b"x" * 300_000, ORIGIN),
        ("PUT", "/health", None, ORIGIN),
    ]:
        response = await service.call(method, path, body, origin=origin)
        names += response.headers.get_list("X-Request-Id")
        exposed = response.headers.get("Access-Control-Expose-Headers")
        assert exposed == (None if response.status < 300 else "Retry-After, X-Request-Id")
    for data in (b"GARBAGE\r\n\r\n", b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", head("GET", "/", [("X", "x" * 99_999)])):
        names += (await service.raw(data)).headers.get_list("X-Request-Id")
    async with service.connect() as connection:  # pipelined, on one connection
        await connection.send(head("GET", "/health", [("Host", "x"), ("Origin", ORIGIN)]) * 3)
        for _ in range(3):
            names += (await connection.receive()).headers.get_list("X-Request-Id")
    assert len(names) == len(set(names)) == 15
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)


async def test_names_say_nothing(service):
    """Thousands of requests have names of their own, and from these a client cannot count the requests of others."""
    one = service.site.log
    names = [one.request_id({}, "") for _ in range(10_000)]
    assert len(set(names)) == 10_000
    assert all(len({name[place] for name in names}) == 16 for place in range(16))


@pytest.mark.parametrize("sane", ["a", "!", "~" * 128, 'a"b=c', "3f6d-4a"])
async def test_a_trusted_proxy_names_requests(sane, start_service):
    """The name that a trusted proxy gives is kept: in the answer, whatever that is."""
    service = await start_service(trusted_proxies=LOOPBACK)
    for path in ("/health", "/nowhere", "/lobby/sessions?wait=0.01"):
        response = await service.call("GET", path, headers=[("X-Request-Id", sane)])
        assert response.headers.get_list("X-Request-Id") == [sane]


@pytest.mark.parametrize("mad", ["", "~" * 129, "a b", "é", "a\tb"])
async def test_a_name_that_is_none(mad, start_service):
    """What is too long, or has anything but visible ASCII in it, is no name, and another one is made."""
    service = await start_service(trusted_proxies=LOOPBACK)
    response = await service.call("GET", "/health", headers=[("X-Request-Id", mad)])
    (name,) = response.headers.get_list("X-Request-Id")
    assert re.fullmatch("[0-9a-f]{16}", name)


@pytest.mark.parametrize("proxies", [(), (ipaddress.ip_network("10.0.0.0/8"),)])
async def test_nobody_else_names_requests(proxies, start_service):
    """What anybody else calls a request is nothing to this server."""
    service = await start_service(trusted_proxies=proxies)
    response = await service.call("GET", "/health", headers=[("X-Request-Id", "mine")])
    assert response.headers["X-Request-Id"] != "mine"
