"""A disk that is really full, or fails: nothing acknowledged is lost, refusals are honest, service comes back."""

import subprocess

import pytest
from support import writers
from support.command import BOUND_S, ORIGIN
from support.disks import fill_up
from support.full_disks import OFFER, check, publish_until, wait_until_ready


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_full_and_free_again(durability, small_disk, start):
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
def test_a_disk_that_fails_to_sync(start):
    server = start("--admin-port", 0)
    kept = {}
    publish_until(server, kept, lambda status: len(kept) == 5)
    command = ["strace", "-f", "-p", str(server.process.pid), "-e", "inject=fdatasync:error=EIO", "-o", "/dev/null"]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
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
