"""Made-up bytes and operations: what must never come of them does not, in five thousand of them."""

import re
import subprocess
from pathlib import Path

import pytest

from . import fuzzing

INPUTS = 5_000  # others in each run; the command of the documentation sends a million


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_that_must_never_come_comes():
    command = [Path(__file__).with_name("fuzz"), "--inputs", str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) inputs", done.stdout)[1]) >= INPUTS
    statuses = dict(re.findall(r"(\d{3}): (\d+)", done.stdout))
    assert sum(map(int, statuses.values())) > INPUTS / 2
    assert int(statuses["200"]) > INPUTS / 20


JSON = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
FINE = JSON % (b"200 OK", 2, b"{}")
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n:\n\n\r\n"


def looked_at(raw):
    found = fuzzing.responses(raw)
    for response in found:
        fuzzing.check(*response)
    return [status for status, *_ in found]


@pytest.mark.parametrize(
    ("raw", "statuses"),
    [
        (b"", []),
        (FINE + JSON % (b"404 Not Found", 15, b'{"error": "x"}\n') + FINE, [200, 404, 200]),
        (FINE[:-2] + FINE, [200, 200]),  # the first one to a HEAD
        (b"HTTP/1.1 100 Continue\r\n\r\n" + FINE, [200]),
        (FINE + STREAM, [200, 200]),
        (STREAM.replace(b"Transfer-Encoding: chunked\r\n", b"").replace(b"3\r\n", b""), [200]),  # to HTTP/1.0
    ],
)
def test_answers_to_get_and_head_and_streams_left_are_fine(raw, statuses):
    assert looked_at(raw) == statuses


@pytest.mark.parametrize(
    "raw",
    [
        JSON % (b"500 Internal Server Error", 14, b'{"error": "x"}'),
        JSON % (b"503 Service Unavailable", 14, b'{"error": "x"}'),
        JSON % (b"404 Not Found", 13, b'{"other": ""}'),
        JSON % (b"200 OK", 2, b"{]"),
        JSON % (b"200 OK", 3, b"{}"),
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
        STREAM.replace(b"text/event-stream", b"application/json"),
        b"<html>",
        FINE + b"Traceback",
    ],
)
def test_server_errors_foreign_pages_and_answers_cut_off_are_wrong(raw):
    with pytest.raises(fuzzing.Wrong):
        looked_at(raw)
