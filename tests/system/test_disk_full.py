"""A disk that is full, fails or is read-only: nothing acknowledged is lost, refusals are honest, service comes back."""

import base64
import json
import os
import random
import subprocess
import time

import pytest
from support import writers
from support.command import BOUND_S, ORIGIN, Server
from support.disks import fill_up, injected
from support.scraping import scrape
from support.waiting import until

from tornado_signal.operator.fullness import RESOURCES

OFFER = base64.b64encode(random.Random(1).randbytes(45_000)).decode()  # LevelDB cannot compress it
# Root can write everywhere. Without this capability it can write only to its own directories, like other users.
AS_A_USER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def publish_until(server, kept, done, limit=2000):
    """Publish offers until `done(status)`, add the acknowledged ones to `kept`, and return the last headers."""
    for _ in range(limit):
        number = len(kept)
        body = {"info": str(number), "offer": f"{number} {OFFER}"}
        status, headers, response = server.exchange("/lobby/offer", body)
        if status == 200:
            kept[json.loads(response)["code"]] = number
        else:
            assert (status, json.loads(response)) == (503, {"error": "Service unavailable"})
            time.sleep(0.01)  # the server measures free space only periodically
        if done(status):
            return headers
    raise AssertionError(f"not reached after {limit} offers")


def wait_until_ready(server):
    until(lambda: server.call("/readyz", base=server.admin_url, origin=None)[0] == 200, BOUND_S)


def check(server, kept):
    """Check that all acknowledged sessions are listed in order, and that refused ones are complete or absent."""
    sessions = server.call("/lobby/sessions")[1]["sessions"]
    numbers = {session["code"]: session["info"] for session in sessions}
    assert all(numbers[code] == str(number) for code, number in kept.items())
    assert all(each["offer"] == f"{each['info']} {OFFER}" for each in sessions)
    created = [session["createdAt"] for session in sessions]
    assert created == sorted(created, reverse=True)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_writes_resume_after_a_full_disk_has_space(durability, small_disk, start):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (40 << 20))
    server = start("--durability", durability, "--admin-port", 0, data=small_disk / "data")
    kept = {}
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

    again = start(data=small_disk / "data")
    check(again, kept)
    assert again.stop() == 0


def test_full_disk_without_a_reserve_is_named(small_disk, start):
    server = start("--admin-port", 0, "--min-free-bytes", 0, data=small_disk / "data")
    fill_up(small_disk / "ballast")
    kept = {}
    publish_until(server, kept, lambda status: status == 503)
    until(lambda: scrape(server.admin_url).one("full", "disk"))
    (small_disk / "ballast").unlink()
    wait_until_ready(server)
    publish_until(server, kept, lambda status: status == 200)
    check(server, kept)
    until(lambda: not scrape(server.admin_url).one("full", "disk"))
    assert server.stop() == 0
    begin, end = (line for line in server.log if "operator.fullness: " in line)
    assert RESOURCES["disk"] in begin
    assert "clients are served again: disk had no room" in end


def test_nothing_acknowledged_is_lost_over_three_full_disks(small_disk, start):
    server = start(data=small_disk / "data")
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


@pytest.mark.needs("strace")
def test_failed_sync_refuses_writes(start):
    server = start("--admin-port", 0)
    kept = {}
    publish_until(server, kept, lambda status: len(kept) == 5)
    with injected(server.process, "error=EIO"):
        publish_until(server, kept, lambda status: status == 503)
        publish_until(server, kept, lambda status: status == 503)
    wait_until_ready(server)
    publish_until(server, kept, lambda status: len(kept) == 10)
    check(server, kept)
    assert server.stop() == 0
    assert any("refusing requests until it is reopened" in line for line in server.log)


def remount(path, how):
    """Remount. The kernel remounts to `ro` only while no file is open for writing, between two attempts to reopen."""
    command = ["mount", "-o", f"remount,{how}", str(path)]
    until(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0)


def test_read_only_disk_refuses_writes_and_loses_nothing(small_disk, start):
    data = small_disk / "data"
    server = Server("--data-dir", data, "--admin-port", 0, prefix=AS_A_USER)
    kept = {}
    try:
        publish_until(server, kept, lambda status: len(kept) == 20)
        data.chmod(0o555)
        # Open files can still be written. LevelDB fails when it needs its next file.
        headers = publish_until(server, kept, lambda status: status == 503)
        assert int(headers["Retry-After"]) >= 1
        assert headers["Access-Control-Allow-Origin"].startswith("https://")
        remount(small_disk, "ro")
        for _ in range(3):
            publish_until(server, kept, lambda status: status == 503, limit=1)
        assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 503
        assert server.call("/healthz", base=server.admin_url, origin=None)[0] == 200
        assert server.call("/health")[0] == 200
        remount(small_disk, "rw")
        publish_until(server, kept, lambda status: status == 503, limit=1)
        data.chmod(0o755)
        wait_until_ready(server)
        before = len(kept)
        publish_until(server, kept, lambda status: len(kept) == before + 20)
        check(server, kept)
        assert server.stop() == 0
        assert any("still refusing requests" in line for line in server.log)
    finally:
        server.end()
    again = start(data=data)
    check(again, kept)
    assert again.stop() == 0
