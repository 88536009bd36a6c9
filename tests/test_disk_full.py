"""A disk that is really full, or fails: nothing acknowledged is lost, refusals are honest, service comes back."""

import base64
import http.client
import json
import random
import subprocess
import time
import urllib.parse

import pytest
import writers
from command import BOUND_S, ORIGIN, Server
from disks import fill_up, mounted

SIZE_MIB = 48
OFFER = base64.b64encode(random.Random(1).randbytes(45_000)).decode()  # LevelDB cannot make it smaller


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of its own with little room."""
    with mounted(tmp_path / "disk", SIZE_MIB) as path:
        yield path


def post(server, path, body):
    """Status, headers and JSON of a request."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=BOUND_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Origin": ORIGIN})
        response = connection.getresponse()
        return response.status, response.headers, json.load(response)
    finally:
        connection.close()


def publish_until(server, kept, done, limit=2000):
    """Publish offers until `done(status)`; the acknowledged go to `kept`. Returns the last response's headers."""
    for _ in range(limit):
        number = len(kept)
        status, headers, found = post(server, "/lobby/offer", {"info": str(number), "offer": f"{number} {OFFER}"})
        if status == 200:
            kept[found["code"]] = number
        else:
            assert (status, found) == (503, {"error": "Service unavailable"})
            time.sleep(0.01)  # that there is room again shows once the server has looked
        if done(status):
            return headers
    raise AssertionError(f"never, in {limit} offers")


def wait_until_ready(server):
    """Wait until the store can be written and read."""
    end_s = time.monotonic() + BOUND_S
    while server.call("/readyz", base=server.admin_url, origin=None)[0] != 200:
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_full_and_free_again(durability, small_disk):
    """The disk fills up while offers come in: 503 with Retry-After and CORS, then service again once there is room."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (24 << 20))
    server = Server("--data-dir", str(small_disk / "data"), "--durability", durability, "--admin-port", 0)
    kept = {}
    try:
        headers = publish_until(server, kept, lambda status: status == 503)
        assert int(headers["Retry-After"]) >= 1
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        assert server.process.poll() is None
        before = len(kept)
        assert before > 10

        ballast.unlink()
        wait_until_ready(server)
        publish_until(server, kept, lambda status: len(kept) == before + 20)
        check(server, kept)
        assert server.stop() == 0
    finally:
        server.end()

    again = Server("--data-dir", str(small_disk / "data"))
    try:
        check(again, kept)
        assert again.stop() == 0
    finally:
        again.end()


def test_full_again_and_again(small_disk):
    """Peers that do everything at once go on through three times of a full disk, and nothing acknowledged is lost."""
    server = Server("--data-dir", small_disk / "data")
    peers = writers.Writers(server.url, "full", padding=OFFER[:10_000])
    try:
        for _ in range(3):
            fill_up(small_disk / "ballast")
            for _ in range(30):
                assert peers.refusals.acquire(timeout=BOUND_S), peers.wrong
            (small_disk / "ballast").unlink()
            while peers.acknowledgements.acquire(blocking=False):
                pass
            for _ in range(50):
                assert peers.acknowledgements.acquire(timeout=BOUND_S), peers.wrong
            while peers.refusals.acquire(blocking=False):
                pass
        peers.stop()
        assert server.stop() == 0
    finally:
        server.end()
        peers.stop()
    assert peers.wrong == []
    known, _ = writers.compare_stopped(small_disk / "data", peers.sessions)
    assert known > 3 * 50 / 8


def check(server, kept):
    """Everything acknowledged is there, whole, and in its order; of what was refused, all or nothing."""
    sessions = server.call("/lobby/sessions")[1]["sessions"]
    numbers = {each["code"]: each["info"] for each in sessions}
    assert all(numbers[code] == str(number) for code, number in kept.items())
    assert all(each["offer"] == f"{each['info']} {OFFER}" for each in sessions)
    created = [each["createdAt"] for each in sessions]
    assert created == sorted(created, reverse=True)


def test_a_disk_that_fails_to_sync(tmp_path):
    """Every fdatasync fails for a while: who waited for it gets 503, and once it works again nothing is missing."""
    server = Server("--data-dir", str(tmp_path / "data"), "--admin-port", 0)
    kept = {}
    try:
        publish_until(server, kept, lambda status: len(kept) == 5)
        tracer = subprocess.Popen(
            ["strace", "-f", "-p", str(server.process.pid), "-e", "inject=fdatasync:error=EIO", "-o", "/dev/null"],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while "attached" not in tracer.stderr.readline():
                assert tracer.poll() is None
            publish_until(server, kept, lambda status: status == 503)
            publish_until(server, kept, lambda status: status == 503)
        finally:
            tracer.terminate()
            tracer.communicate(timeout=BOUND_S)
        wait_until_ready(server)
        publish_until(server, kept, lambda status: len(kept) == 10)
        check(server, kept)
        assert server.stop() == 0
        assert any("refusing requests until it is open again" in line for line in server.log)
    finally:
        server.end()
