"""Servers with a disk filled by sessions or by other files, and with a bounded store."""

import base64
import json
import random
import signal
import time

import pytest
from support.command import BOUND_S, ORIGIN, run
from support.disks import fill_up
from support.maintenance import run_ok
from support.scraping import scrape
from support.waiting import until

from tornado_signal.operator.fullness import RESOURCES
from tornado_signal.stores.leveldb import files

MIB = 1 << 20
OFFER = base64.b64encode(random.Random(1).randbytes(150_000)).decode()  # LevelDB cannot make it smaller


class Publisher:
    """Publishes offers at a server, and knows what it has said."""

    def __init__(self, server):
        self.server = server
        self.codes = []

    def publish(self):
        status, headers, content = self.server.exchange("/lobby/offer", {"info": "i", "offer": OFFER})
        found = json.loads(content)
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        if status == 200:
            self.codes.append(found["code"])
        else:
            assert (status, found, headers["Retry-After"]) == (503, {"error": "Service unavailable"}, "10")
        return status

    def until(self, status):
        until(lambda: self.publish() == status, pause_s=0.2 if status == 200 else 0)


@pytest.fixture
def serve(small_disk, start):
    """A function that starts a server on that disk, with an admin listener."""
    return lambda *arguments: start("--admin-port", 0, *arguments, data=small_disk / "data")


def failures(server):
    """Stop the server, and return the failures in its log. Being full does not count."""
    assert server.stop() == 0
    lines = [line for line in server.log if "operator.fullness: " not in line]
    return [line for line in lines if "ERROR" in line or "WARNING" in line or "Traceback" in line]


def gauge(server, name, *labels):
    return scrape(server.admin_url).one(name, *labels)


def test_own_sessions_do_not_fill_the_disk(small_disk, serve):
    server = serve("--session-timeout-ms", 5000)
    publisher = Publisher(server)
    publisher.until(503)
    code = publisher.codes[-1]
    assert len(publisher.codes) > 20
    assert gauge(server, "store_full") == 1
    assert server.call("/poll", {"code": code, "side": "answerer"})[1]["offer"] == OFFER
    assert code in server.codes()
    assert server.call("/refresh", {"code": code, "side": "offerer"})[0] == 200
    assert server.call("/withdraw", {"code": code, "side": "offerer"})[0] == 200
    readiness = until(
        lambda: (found := server.call("/readyz", base=server.admin_url, origin=None))[1].get("full") and found
    )
    assert readiness == (200, {"status": "ok", "full": ["disk"]})
    assert gauge(server, "full", "disk") == 1
    publisher.until(200)
    for _ in range(3):  # under pressure that does not end
        publisher.until(503)
        publisher.until(200)
    until(lambda: not gauge(server, "full", "disk"))
    assert gauge(server, "store_full") == 0
    assert failures(server) == []
    said = [line.partition("operator.fullness: ")[2] for line in server.log if "operator.fullness: " in line]
    assert said[0] == f"clients are refused: {RESOURCES['disk']}\n"
    assert said[-1].startswith("clients are served again: disk had no room for ")
    assert run_ok("check", "--data-dir", small_disk / "data").endswith("is sound\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_full_store_is_intact_and_full_after_a_restart(number, small_disk, serve):
    server = serve()
    publisher = Publisher(server)
    publisher.until(503)
    server.stop(number)
    run_ok("check", "--data-dir", small_disk / "data")
    server = serve()
    assert sorted(server.codes()) == sorted(publisher.codes)
    Publisher(server).until(503)
    assert failures(server) == []


@pytest.mark.parametrize("command", ["serve", "check"])
def test_ballast_is_released_on_a_full_disk(command, small_disk, serve):
    server = serve("--session-timeout-ms", 3000)
    publisher = Publisher(server)
    for _ in range(20):
        assert publisher.publish() == 200
    server.stop(signal.SIGKILL)
    assert (small_disk / "data" / files.BALLAST).exists()
    fill_up(small_disk / "others")
    if command != "serve":
        ended = run(command, "--data-dir", small_disk / "data")
        assert ended.returncode == 0, ended
        assert "No space" not in ended.stderr  # but the ballast may be back, if what was deleted has made room for it
    time.sleep(3)
    server = serve("--session-timeout-ms", 3000)
    assert Publisher(server).publish() == 503
    assert server.codes() == []
    assert server.call("/readyz", base=server.admin_url, origin=None)[0] in (200, 503)
    (small_disk / "others").unlink()
    Publisher(server).until(200)
    until((small_disk / "data" / files.BALLAST).exists)
    assert server.stop() == 0


def test_withdrawals_work_while_others_fill_the_disk(small_disk, serve):
    server = serve()
    publisher = Publisher(server)
    for _ in range(20):
        assert publisher.publish() == 200
    fill_up(small_disk / "others")
    for code in publisher.codes:
        owner = {"code": code, "side": "offerer"}
        assert until(lambda owner=owner: (found := server.call("/withdraw", owner)[0]) != 503 and found) == 200
    publisher.until(503)  # the first write that does not fit makes the server delete the ballast
    (small_disk / "others").unlink()
    publisher.until(200)
    assert server.stop() == 0


def test_store_stays_near_its_bound(tmp_path, start):
    most = 8 * MIB
    server = start("--admin-port", 0, "--max-store-bytes", most, "--session-timeout-ms", 3000)
    publisher = Publisher(server)
    assert gauge(server, "store_max_bytes") == most
    largest, before, changes = 0, 200, 0
    until(lambda: publisher.publish() == 503 and gauge(server, "full", "store"))
    end_s = time.monotonic() + 2 * BOUND_S
    while changes < 3:  # full, and back, and full
        assert time.monotonic() < end_s
        status = publisher.publish()
        changes += status != before
        before = status
        largest = max(largest, files.size_bytes(tmp_path / "data"))
        if status == 503:
            time.sleep(0.05)
    assert largest < 3 * most  # what is being merged is there twice
    publisher.until(200)
    assert failures(server) == []
