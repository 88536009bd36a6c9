"""The log: formats, priorities, the access log, and no content of peers."""

import contextlib
import http.client
import ipaddress
import json
import logging
import os
import re
import signal
import socket
import sys
from urllib.parse import urlsplit

import pytest
from support.command import BOUND_S, begin, run
from support.documents import blocks
from support.redis_servers import free_port
from support.rpc import RpcClient
from support.service import NO_SUCH_CODE, ORIGIN, request
from support.traffic import SECRETS, send, traffic
from support.waiting import accepts, until
from support.y_webrtc import RawClient

from tornado_signal.system import logs

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)

# Python imports this before the command starts: an internal error whose message quotes the request.
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
    """A record as `logging` makes it, of an error that was raised here if there is one."""
    exc_info = None
    if error:
        try:
            raise error
        except type(error):
            exc_info = sys.exc_info()
    made = logging.LogRecord(name, level, "file", 1, message, arguments, exc_info)
    if fields:
        made.fields = fields
    return made


def lines(server):
    assert server.stop() == 0
    return [json.loads(line) for line in server.log]


def test_line_of_text_has_time_level_logger_message_and_fields():
    made = record("it is %d", 5)
    made.created = 1_900_000_000.1234
    assert logs.Formatter().format(made) == "2030-03-17T17:46:40.123Z INFO tornado_signal.some: it is 5"
    assert logs.Formatter(journal=True).format(made) == "<6>INFO tornado_signal.some: it is 5"
    assert logs.Formatter(journal=True, worker=2).format(made) == "<6>INFO tornado_signal.some: it is 5 worker=2"
    values = {"é/:x": "é/:x", "two words": '"two words"', "": '""', 'say "a"': r'"say \"a\""', "a=b": '"a=b"'}
    values |= {"a\nb\x85": r'"a\nb\x85"', "a\N{NO-BREAK SPACE}b": r'"a\xa0b"'}
    for value, written in values.items():
        made = record("it", fields={"a": value, "b": 2})
        assert logs.Formatter(journal=True).format(made) == f"<6>INFO tornado_signal.some: it a={written} b=2"


def test_strangers_texts_cannot_control_a_terminal_or_forge_a_line():
    texts = ("two\nlines", "\x1b[2J", "\x9b2J", "\u202e", "\u2028", "\x7f\0")
    for text in texts:
        line = logs.Formatter().format(record("operator at %s", text, fields={"sub": text}))
        assert line.isprintable()
        assert line.count("operator at") == 1
    made = record("a line\nand \x1b[2J", name=logs.PROGRAM, level=logging.ERROR)  # an error of several lines
    assert logs.Formatter().format(made) == "tornado-signal: a line\nand \\x1b[2J"


def test_line_of_json_is_one_line_with_the_time_in_utc():
    line = logs.Formatter("json").format(record("two\nlines", level=logging.WARNING, fields={"a": 1}))
    assert "\n" not in line
    found = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found.pop("time"))
    assert found == {"level": "warning", "logger": "tornado_signal.some", "message": "two\nlines", "a": 1}


def test_each_line_of_a_record_has_its_priority_in_the_journal():
    for level, priority in ((10, 7), (20, 6), (25, 5), (30, 4), (40, 3), (50, 2)):
        made = record("two\nlines", level=level, error=KeyError("x"))
        text = logs.Formatter(journal=True).format(made).split("\n")
        assert len(text) > 4
        assert [line[:3] for line in text] == [f"<{priority}>"] * len(text)
        (line,) = logs.Formatter("json", journal=True).format(made).split("\n")
        assert line.startswith(f"<{priority}>{{")


@pytest.mark.parametrize("form", ["text", "json"])
def test_traceback_omits_the_error_message(form):
    formatter = logs.Formatter(form)
    line = formatter.format(record("it failed", error=ValueError("5ec1e7")))
    assert "5ec1e7" not in line
    assert "ValueError" in line
    assert "in record" in line
    assert "5ec1e7" in formatter.format(record("it failed", error=ValueError("5ec1e7"), name="x.system.boundary"))


def test_journal_is_recognized_by_device_and_inode(tmp_path):
    with open(tmp_path / "log", "w") as stream:
        found = os.fstat(stream.fileno())
        right = f"{found.st_dev}:{found.st_ino}"
        assert logs.to_journal(stream, {"JOURNAL_STREAM": right})
        for wrong in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": right + "1"}, {"JOURNAL_STREAM": "x"}):
            assert not logs.to_journal(stream, wrong)
    assert not logs.to_journal(stream, {"JOURNAL_STREAM": right})  # closed


def test_log_contains_nothing_that_peers_send(start):
    server = start("--log-level", "debug", "--access-log")
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
        headers = {"X_Hidden": "hidden", "X_Request_Id": "hidden"}
        server.exchange(path, body, method=method, origin="https://hidden.example", **headers)
    send(server, b"POST /hidden HTTP/1.1\r\nHost: hidden\r\nContent-Length: hidden\r\n\r\nhidden")
    assert server.stop() == 0
    text = "".join(server.log)
    assert text.count("/:topic/offer") >= 3
    assert not [word for word in [*SECRETS[:2], code, "example"] if word in text.replace(server.url, "").lower()]
    requests = [line for line in server.log if "tornado_signal.requests" in line]
    assert len(requests) == len(asked) + len(many) + 3  # including requests that the transport refused


# Run the command as systemd does, with its standard error going to what looks like the journal.
TO_THE_JOURNAL = ("bash", "-c", 'export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec "$0" "$@"')


def test_defect_is_one_record_with_the_request_id_and_each_line_in_the_journal_has_its_priority(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    server = start("--access-log", prefix=TO_THE_JOURNAL, PYTHONPATH=str(tmp_path))
    assert re.fullmatch(r"<6>INFO tornado_signal\.process\.listeners: listening on \S+\n", server.log[2])
    body = {"code": "5ec1e700-0000-4000-8000-000000000000", "side": "offerer"}
    status, headers, _ = server.exchange("/poll?hidden", body, origin="https://hidden.example")
    (name,) = headers.get_all("X-Request-Id")
    assert status == 500
    assert server.stop() == 0
    text = "".join(server.log)
    assert not [word for word in ("hidden", "5ec1e7") if word in text.replace(str(tmp_path), "").lower()]
    assert len(re.findall(r"ValueError(?!\()", text)) == 1  # but for the line of code that is shown
    assert "in broken" in text
    assert all(re.match("<[36]>", line) for line in server.log)
    wrong = [line for line in server.log if line.startswith("<3>")]
    assert wrong[0].startswith("<3>ERROR tornado_signal.service.request_context: POST /poll failed: request " + name)
    assert (wrong[1], wrong[-1]) == ("<3>Traceback (most recent call last):\n", "<3>ValueError\n")
    assert sum(" ERROR " in line or "<3>ERROR " in line for line in server.log) == 1
    assert next(line for line in server.log if "tornado_signal.requests" in line).startswith("<6>INFO ")


def test_access_log_has_a_line_for_each_request_as_the_documentation_shows(start):
    server = start("--log-format", "json", "--access-log")
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
        status, headers, answer = server.exchange(path, *body, method=method)
        (name,) = headers.get_all("X-Request-Id")
        said = {"method": method, "endpoint": endpoint, "status": status, "bytes": len(answer), "id": name}
        expected.append(said | ({"reason": reason} if reason else {}))
    answer = send(server, b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n").decode()
    name = re.search("X-Request-Id: (.*)\r\n", answer)[1]
    expected.append({"status": 400, "id": name, "reason": "transport"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S) as client:  # a stream: at its end
        client.sendall(f"GET /lobby/events HTTP/1.0\r\nHost: x\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
        received = b""
        while received.count(b"\n\n") < 3:
            chunk = client.recv(65536)
            assert chunk, received
            received += chunk
    found = [line for line in lines(server) if line["logger"] == "tornado_signal.requests"]
    block, body = received.split(b"\r\n\r\n", 1)
    name = re.search("X-Request-Id: (.*)\r\n", block.decode())[1]
    said = {"method": "GET", "endpoint": "/:topic/events", "status": 200, "bytes": len(body), "id": name}
    expected.append(said)
    (example,) = blocks("monitoring", "Log", "json")
    shown, logged, differing = json.loads(example), found[6], dict.fromkeys(("time", "ms", "id"))
    assert (list(shown), shown | differing) == (list(logged), logged | differing)
    for line in found:
        assert line.pop("message") == "request"
        assert line.pop("level") == "info"
        assert line.pop("time")
        assert line.pop("logger")
        assert 0 < line.pop("ms", 1) < BOUND_S * 1000
    assert found == expected


SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_access_log_names_the_span_of_requests_streams_and_websockets(start):
    server = start("--log-format", "json", "--access-log")
    invalid = ["", "hidden", SPAN.upper(), SPAN + "-00", "ff" + SPAN[2:], re.sub("4bf9.*36", "0" * 32, SPAN), SPAN[:-4]]
    invalid += [SPAN + ' level="error"', SPAN + "\t\x85", f"{SPAN},{SPAN}"]
    invalid.append(SPAN.replace("4", "٤").encode().decode("latin-1"))
    for value in (SPAN, *invalid):
        for path in ("/health", "/lobby/sessions?wait=0.01"):
            assert server.exchange(path, Traceparent=value)[0] == 200
    assert server.exchange("/lobby/offer", {}, Traceparent=SPAN)[0] == 400

    def send_raw(method, path, *lines):
        sent = [f"{method} {path} HTTP/1.0", "Host: x", f"Origin: {ORIGIN}", f"traceparent: {SPAN}", *lines, "", ""]
        return send(server, "\r\n".join(sent).encode())

    assert b" 200 " in send_raw("GET", "/health", f"traceparent: {SPAN}")
    assert b" 400 " in send_raw("GET", "/health", " hidden")  # it would begin a line of its own in the log
    assert b" 200 " in send_raw("HEAD", "/lobby/events")
    url, headers = server.url.replace("http", "ws", 1), {"traceparent": SPAN}
    async with RpcClient(url + "/ws", ORIGIN, additional_headers=headers) as client:
        await client.call("topics")
        await client.refused("poll", code=NO_SUCH_CODE, side="offerer")
        await client.call("subscribe", topic="lobby")
    async with RawClient(url + "/y-webrtc", ORIGIN, additional_headers=headers) as client:
        await client.send({"type": "ping"})
        await client.receive()
    async with RpcClient(url + "/ws", ORIGIN, additional_headers={"traceparent": SPAN + "x"}) as client:
        await client.call("health")
    found = [line for line in lines(server) if line["logger"] == "tornado_signal.requests"]
    expected = [SPAN, SPAN, *[None] * 2 * len(invalid), SPAN, None, None, SPAN]
    assert [line.get("traceparent") for line in found[: len(expected)]] == expected
    assert "hidden" not in "".join(server.log)
    later = [(line["method"], line["endpoint"], line.get("traceparent")) for line in found[len(expected) - 1 :]]
    named = [("HEAD", "/:topic/events"), ("GET", "/ws"), ("WS", "/topics"), ("WS", "/poll"), ("WS", "subscribe")]
    named += [("WS", "/:topic/events"), ("GET", "/y-webrtc"), ("WS", "/y-webrtc")]
    assert {*later} == {(*each, SPAN) for each in named} | {("GET", "/ws", None), ("WS", "/health", None)}


def test_without_access_log_a_request_has_a_line_only_at_debug_and_without_an_origin(start):
    server = start("--log-level", "debug")
    traffic(server)
    status, _, body = server.exchange("/lobby/sessions", origin=None)
    assert (status, body) == (400, b'{"error":"Missing or invalid required parameter: Origin"}')
    assert server.stop() == 0
    said = "DEBUG tornado_signal.http.request: GET /:topic/sessions has no Origin; send the header Origin: https://HOST"
    assert [line for line in server.log if line.endswith(f"{said}\n")] != []
    lines = [line for line in server.log if not re.search("swept|no Origin|clients are", line)]
    assert [line for line in lines if "request" in line] == []
    assert len(lines) == 5  # ICE servers, room, listening, stopping, stopped


def test_addresses_are_logged_if_enabled(start):
    server = start("--log-format", "json", "--trusted-proxies", "127.0.0.1", "--access-log", "addresses")
    server.offer()
    for path in ("/health", "/lobby/sessions?wait=0.1"):
        server.exchange(path, X_Forwarded_For="203.0.113.9")
    found = [line.get("address") for line in lines(server) if line.get("method")]
    assert found == ["127.0.0.1", "203.0.113.9", "203.0.113.9"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_operator_error_is_one_formatted_line(form, tmp_path):
    flags = ["--port", "0", "--data-dir", "/proc/no/such/place", "--log-format", form]
    done = run("serve", *flags, prefix=TO_THE_JOURNAL, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    if form == "text":
        assert line.startswith("<3>tornado-signal: cannot open the database")
    else:
        found = json.loads(line.removeprefix("<3>"))
        assert (found["level"], found["logger"]) == ("error", "tornado-signal")
        assert found["message"].startswith("cannot open the database")


def test_unread_log_stops_nothing_and_lost_records_are_counted(start):
    """The pipe of standard error is not read, as behind a collector that hangs."""
    server = start("--admin-port", "0", "--access-log", "--log-format", "json")
    url = urlsplit(server.url)
    with contextlib.closing(http.client.HTTPConnection(url.hostname, url.port, timeout=BOUND_S)) as connection:
        for _ in range(1000):
            connection.request("GET", "/health", headers={"Origin": ORIGIN})
            assert connection.getresponse().read()
    _, _, metrics = server.exchange("/metrics", base=server.admin_url)
    dropped = int(re.search(rb"^tornado_signal_log_dropped_records_total (\d+)", metrics, re.MULTILINE)[1])
    assert 0 < dropped < 1000
    server.log = [server.process.stderr.readline() for _ in range(1000 - dropped)]  # no line is cut
    assert {message for each in lines(server) if (message := each["message"])} > {"request"}
    notice = json.loads(server.log[1000 - dropped])
    assert notice["level"] == "warning"
    assert notice["message"] == f"{dropped} log records were dropped because standard error was not read"


def test_rest_of_a_cut_record_is_no_part_of_the_next_line():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", buffering=0) as reader:
        handler = logs.StandardErrorHandler()
        handler.setStream(stream)
        handler.emit(record("x" * 1_000_000))
        assert handler.dropped == 1
        while len(reader.read(1 << 20)) == 1 << 20:
            pass
        handler.emit(record("next"))
        handler.setStream(sys.__stderr__)
        rest, notice, line, end = reader.read(1 << 20).split(b"\n")
    assert (rest, end) == (b"", b"")
    assert notice == b"1 log records were dropped because standard error was not read"
    assert line == b"next"


def test_server_without_standard_streams_runs_and_stops(tmp_path):
    port = free_port()
    with begin("serve", "--port", port, cwd=tmp_path, prefix=["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh"]) as process:
        try:
            until(lambda: accepts(port))
            assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
            process.terminate()
            assert process.wait(BOUND_S) == 0
        finally:
            process.kill()


def test_signals_without_a_meaning_are_logged_and_ignored(start):
    server = start()
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        server.process.send_signal(number)
        assert f"{number.name} is ignored" in server.process.stderr.readline()
    assert server.stop() == 0


async def test_request_ids_reveal_nothing_about_other_requests(service):
    one = service.shared.log
    names = [one.request_id({}, "") for _ in range(10_000)]
    assert len(set(names)) == 10_000
    assert all(len({name[place] for name in names}) == 16 for place in range(16))
    async with service.connect() as connection:  # nor do those of pipelined requests
        await connection.send(request("GET", "/health") * 3)
        names = {(await connection.receive()).headers["X-Request-Id"] for _ in range(3)}
    assert len(names) == 3


async def test_request_id_of_a_trusted_proxy_is_kept_and_any_other_replaced(start_service):
    networks = LOOPBACK, (), (ipaddress.ip_network("10.0.0.0/8"),)
    trusting, *others = [await start_service(trusted_proxies=each) for each in networks]
    for name in ("a", "!", "~" * 128, 'a"b=c', "3f6d-4a"):
        for path in ("/health", "/nowhere", "/lobby/sessions?wait=0.01"):
            response = await trusting.call("GET", path, headers=[("X-Request-Id", name)])
            assert response.headers.get_list("X-Request-Id") == [name]
    invalid = [(trusting, name) for name in ("", "~" * 129, "a b", "é", "a\tb")]
    for service, name in [*invalid, *((each, "mine") for each in others)]:
        response = await service.call("GET", "/health", headers=[("X-Request-Id", name)])
        (given,) = response.headers.get_list("X-Request-Id")
        assert re.fullmatch("[0-9a-f]{16}", given)
