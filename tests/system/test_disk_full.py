"""A disk that is full, fails or is read-only, and a bounded store.

Nothing acknowledged is lost, refusals are honest, and service comes back.
"""

import base64
import json
import os
import random
import signal
import subprocess
import time

import pytest
from support import writers
from support.command import BOUND_S, ORIGIN, Server, run
from support.disks import fill_up
from support.maintenance import run_ok
from support.scraping import scrape
from support.waiting import until

from tornado_signal.operator.fullness import RESOURCES
from tornado_signal.stores.leveldb import files

OFFER = base64.b64encode(random.Random(1).randbytes(150_000)).decode()  # LevelDB cannot compress it
# Where the disk fails before the server knows that it is full, clients come back sooner.
FAILING = {"offer": OFFER[:60_000], "waits": ("1", "10")}
# Root can write everywhere. Without this capability it can write only to its own directories, like other users.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


class Publisher:
    def __init__(self, server, offer=OFFER, waits=("10",)):
        self.server, self.offer, self.waits = server, offer, waits
        self.kept = {}  # the numbers of the acknowledged offers, by code

    def publish(self):
        number = len(self.kept)
        body = {"info": str(number), "offer": f"{number} {self.offer}"}
        status, headers, content = self.server.exchange("/lobby/offer", body)
        found = json.loads(content)
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        if status == 200:
            self.kept[found["code"]] = number
        else:
            assert (status, found) == (503, {"error": "Service unavailable"})
            assert headers["Retry-After"] in self.waits
        return status

    def until(self, status):
        until(lambda: self.publish() == status, pause_s=0.2 if status == 200 else 0)

    def more(self, count):
        """Publish until as many more are acknowledged."""
        wanted = len(self.kept) + count
        until(lambda: self.publish() and len(self.kept) == wanted, pause_s=0)

    def check(self, server=None):
        """Check that all acknowledged sessions are listed in order, and that refused ones are complete or absent."""
        sessions = (server or self.server).call("/lobby/sessions")[1]["sessions"]
        numbers = {session["code"]: session["info"] for session in sessions}
        assert all(numbers[code] == str(number) for code, number in self.kept.items())
        assert all(each["offer"] == f"{each['info']} {self.offer}" for each in sessions)
        created = [session["createdAt"] for session in sessions]
        assert created == sorted(created, reverse=True)


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


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_nothing_acknowledged_is_lost_over_three_full_disks(durability, small_disk, start):
    server = start("--durability", durability, data=small_disk / "data")
    with writers.Writers(server.url, "full", padding=OFFER[:10_000]) as peers:
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
    assert server.stop() == 0
    assert peers.wrong == []
    known, _ = writers.compare_stopped(small_disk / "data", peers.sessions)
    assert known > 3 * 50 / 8


def remount(path, how):
    """Remount. The kernel remounts to `ro` only while no file is open for writing, between two attempts to reopen."""
    command = ["mount", "-o", f"remount,{how}", str(path)]
    until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)


def test_read_only_disk_refuses_writes_and_loses_nothing(small_disk, start):
    data = small_disk / "data"
    with Server("--data-dir", data, "--admin-port", 0, prefix=AS_A_USER) as server:
        publisher = Publisher(server, **FAILING)
        publisher.more(20)
        data.chmod(0o555)
        publisher.until(503)  # open files can still be written. LevelDB fails when it needs its next file
        remount(small_disk, "ro")
        assert [publisher.publish() for _ in range(3)] == [503] * 3
        assert server.ask_admin("/readyz")[0] == 503
        assert server.ask_admin("/healthz")[0] == 200
        assert server.call("/health")[0] == 200
        remount(small_disk, "rw")
        assert publisher.publish() == 503
        data.chmod(0o755)
        until(lambda: server.ask_admin("/readyz")[0] == 200, BOUND_S)
        publisher.more(20)
        publisher.check()
        assert server.stop() == 0
        assert any("still refusing requests" in line for line in server.log)
    again = start(data=data)
    publisher.check(again)
    assert again.stop() == 0


@pytest.mark.slow
def test_own_sessions_do_not_fill_the_disk(small_disk, serve):
    server = serve("--session-timeout-ms", 5000)
    publisher = Publisher(server)
    publisher.until(503)
    code, number = [*publisher.kept.items()][-1]
    assert number > 20
    assert gauge(server, "store_full") == 1
    assert server.call("/poll", {"code": code, "side": "answerer"})[1]["offer"] == f"{number} {OFFER}"
    assert code in server.codes()
    assert server.call("/refresh", {"code": code, "side": "offerer"})[0] == 200
    assert server.call("/withdraw", {"code": code, "side": "offerer"})[0] == 200
    until(lambda: server.ask_admin("/readyz") == (200, {"status": "ok", "full": ["disk"]}))
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


@pytest.mark.parametrize("command", ["serve", "check"])
def test_ballast_is_released_on_a_full_disk(command, small_disk, serve):
    server = serve("--session-timeout-ms", 3000)
    Publisher(server).more(20)
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
    assert server.ask_admin("/readyz")[0] in (200, 503)
    (small_disk / "others").unlink()
    Publisher(server).until(200)
    until((small_disk / "data" / files.BALLAST).exists)
    assert server.stop() == 0


def test_withdrawals_work_while_others_fill_the_disk(small_disk, serve):
    server = serve()
    publisher = Publisher(server)
    publisher.more(20)
    fill_up(small_disk / "others")
    for code in publisher.kept:
        owner = {"code": code, "side": "offerer"}
        assert until(lambda owner=owner: (found := server.call("/withdraw", owner)[0]) != 503 and found) == 200
    publisher.until(503)  # the first write that does not fit makes the server delete the ballast
    (small_disk / "others").unlink()
    publisher.until(200)
    assert server.stop() == 0
