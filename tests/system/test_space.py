"""The room of a store: how much it may hold, how much of the disk stays free, and the ballast (issue 12, point 1)."""

import asyncio
import base64
import contextlib
import errno
import itertools
import os
import random
import signal
import time

import pytest
from support.caring import done
from support.command import BOUND_S, ORIGIN, Server, run
from support.disks import fill_up, mounted
from support.full_disks import post
from support.scraping import scrape
from support.service import OTHER
from support.stores import TIMEOUT_MS

from tornado_signal.errors import Unavailable
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import files
from tornado_signal.stores.leveldb import space as spaces
from tornado_signal.stores.leveldb.space import RETRY_AFTER_S, Space
from tornado_signal.stores.leveldb.sweeper import Sweeper

pytest_plugins = ["support.http_fixtures"]

MIB = 1 << 20
SIZE_MIB = 64
OFFER = base64.b64encode(random.Random(1).randbytes(150_000)).decode()  # LevelDB cannot make it smaller


@pytest.fixture
def disk(tmp_path):
    """A filesystem of its own with little room."""
    with mounted(tmp_path / "disk", SIZE_MIB) as path:
        yield path


@pytest.fixture
def place(disk):
    """A directory on it."""
    path = disk / "data"
    path.mkdir()
    return path


def fits(space, size):
    """Whether so many bytes are admitted."""
    try:
        space.admit(size)
    except Unavailable:
        return False
    return True


# The room itself.


def test_something_else_in_the_place_of_the_ballast(place):
    """What is called like the ballast and is none stays, and the disk is measured all the same."""
    (place / files.BALLAST).mkdir()
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    assert space.free_bytes == SIZE_MIB * MIB
    assert (place / files.BALLAST).is_dir()


def test_a_small_disk(place):
    """Of a small disk a quarter stays free, and half of that is ballast; a larger one keeps what is wanted."""
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    assert space.reserve_bytes == SIZE_MIB * MIB // 4
    ballast = place / files.BALLAST
    assert ballast.stat().st_size == ballast.stat().st_blocks * 512 == space.reserve_bytes // 2
    assert space.size_bytes == 0
    assert space.free_bytes == (SIZE_MIB - SIZE_MIB // 8) * MIB
    space = Space(place, reserve_bytes=MIB)
    space.measure()
    assert (space.reserve_bytes, ballast.stat().st_size) == (MIB, MIB // 2)


def test_what_stays_free(place, disk):
    """Others fill the disk: below the reserve nothing is published, and what is free decides, not what was."""
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    assert fits(space, MIB)
    assert not space.full
    assert not fits(space, 20 * MIB)  # which would be written twice, and again to merge it
    (disk / "others").write_bytes(b"\0" * 41 * MIB)
    assert fits(space, MIB)
    space.measure()
    assert not fits(space, 0)
    assert space.full
    (disk / "others").unlink()
    space.measure()
    assert not space.full


def test_the_ballast_goes_and_comes(place, disk):
    """It is given up once there is less free than the reserve, and made again when there is plenty."""
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    ballast = place / files.BALLAST
    space.give_up_ballast()
    assert ballast.exists()
    fill_up(disk / "others")
    space.give_up_ballast()
    assert not ballast.exists()
    space.measure()
    assert not ballast.exists()
    assert space.full
    os.truncate(disk / "others", 33 * MIB)
    space.measure()
    assert not ballast.exists()  # it would take what is free to the reserve again
    os.truncate(disk / "others", 30 * MIB)
    space.measure()
    assert ballast.stat().st_size == 8 * MIB
    assert space.free_bytes == (SIZE_MIB - 30 - 8) * MIB


def test_no_reserve(place, disk):
    """Without a reserve there is no ballast, and a disk may be filled up."""
    space = Space(place)
    space.measure()
    assert not (place / files.BALLAST).exists()
    (disk / "others").write_bytes(b"\0" * 63 * MIB)
    space.measure()
    assert fits(space, MIB)
    assert not space.full


@pytest.mark.parametrize("name", ["EOPNOTSUPP", "EINVAL", "ENOSPC", "EDQUOT", "EPERM"])
def test_a_disk_that_reserves_nothing(name, place, monkeypatch):
    """A filesystem that cannot reserve room for a file has no ballast, and no file is left of it."""

    def refused(descriptor, offset, size):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(spaces.os, "posix_fallocate", refused)
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    assert list(place.iterdir()) == []
    assert space.free_bytes == SIZE_MIB * MIB


def test_a_ballast_that_was_cut_short(place):
    """What a crash has left of a ballast is made whole."""
    (place / files.BALLAST).write_bytes(b"\0" * 1000)
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    assert (place / files.BALLAST).stat().st_size == 8 * MIB


def test_a_directory_that_is_gone(place):
    """While there is no directory, as when it is moved aside, what was measured before stays, and nothing fails."""
    space = Space(place, reserve_bytes=64 * MIB)
    space.measure()
    before = space.size_bytes, space.free_bytes
    files.remove_ballast(place)
    place.rmdir()
    space.measure()
    space.give_up_ballast()
    assert (space.size_bytes, space.free_bytes) == before


def test_what_it_may_hold(tmp_path):
    """Beyond the bound of its size nothing is published; the ballast is not counted."""
    space = Space(tmp_path, most_bytes=10 * MIB, reserve_bytes=MIB)
    (tmp_path / "table").write_bytes(b"\0" * 8 * MIB)
    space.measure()
    assert space.size_bytes == 8 * MIB
    assert fits(space, 2 * MIB)
    assert not fits(space, 2 * MIB + 1)
    assert not space.full
    (tmp_path / "table").write_bytes(b"\0" * 10 * MIB)
    space.measure()
    assert space.full
    assert space.capacity_bytes == 10 * MIB


def test_between_two_measurements(tmp_path):
    """What is on its way counts until it is written and measured, and once only."""
    space = Space(tmp_path, most_bytes=10 * MIB)
    space.measure()
    space.submitted(6 * MIB)
    assert not fits(space, 5 * MIB)
    space.measure()  # nothing is written yet
    assert not fits(space, 5 * MIB)
    assert not space.stale
    (tmp_path / "log").write_bytes(b"\0" * 6 * MIB)
    space.written(6 * MIB)
    assert space.stale
    space.measure()
    assert not space.stale
    assert fits(space, 4 * MIB)
    assert not fits(space, 4 * MIB + 1)


def test_what_was_never_written(tmp_path):
    """After a failure nothing is on its way any more."""
    space = Space(tmp_path, most_bytes=10 * MIB)
    space.measure()
    space.submitted(9 * MIB)
    assert not fits(space, 2 * MIB)
    space.failed()
    space.measure()
    assert fits(space, 10 * MIB)


# In a store.


async def test_changes_that_wait_for_their_write_count(open_store, under, tmp_path):
    """What gathers while a write is slow does not go beyond the bound, however much comes at one moment."""
    (tmp_path / "data").mkdir()
    store = open_store(space=Space(tmp_path / "data", most_bytes=4 * MIB))
    one = under(store)
    waiting = [one.create(offer=f"{number} " + "o" * 100_000) for number in range(200)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [each for each in found if isinstance(each, Unavailable)]
    assert 35 <= len(found) - len(refused) <= 41
    assert {each.retry_after_s for each in refused} == {RETRY_AFTER_S}


async def test_a_full_store_and_back(open_store, under, clock, tmp_path):
    """Offers, answers and candidates are refused; all else goes on; once all has expired there is room again."""
    (tmp_path / "data").mkdir()
    space = Space(tmp_path / "data", most_bytes=3 * MIB)
    store = open_store(space=space)
    one = under(store)
    code = await one.create()
    other = await one.create()
    rng = random.Random(1)
    with contextlib.suppress(Unavailable):
        while True:
            await one.create(offer=rng.randbytes(50_000).hex())
    assert space.full
    assert store.size_bytes() < 4 * MIB
    large = "x" * MIB
    for refused in (one.answer(code, large), one.add(code, Side.OFFERER, large), one.create(offer=large)):
        with pytest.raises(Unavailable):
            await refused
    assert len(await one.codes()) > 10
    assert (await one.read(code, Side.OFFERER)).description == "offer"
    clock.ms += TIMEOUT_MS - 1
    await one.refresh(code)
    await one.withdraw(other)
    clock.ms += 1
    assert space.full
    sweeper = Sweeper(store, clock)
    sweeper._pause_s = 0
    await sweeper.sweep()
    space.measure()
    assert await one.codes() == [code]
    assert not space.full
    await one.answer(code, large)


async def test_a_failed_write_is_not_counted_for_ever(open_store, under, tmp_path, monkeypatch):
    """Once the database is open again, what had been on its way takes no room."""
    (tmp_path / "data").mkdir()
    space = Space(tmp_path / "data", most_bytes=10 * MIB)
    store = open_store(space=space)
    one = under(store)
    failing = True
    write = type(store._db._group).write

    def failed(group):
        if failing:
            raise OSError("No space left on device")
        write(group)

    monkeypatch.setattr(type(store._db._group), "write", failed)
    for _ in range(4):
        with pytest.raises(Unavailable):
            await one.create(offer="o" * 3 * MIB)
        while not store.available:  # noqa: ASYNC110 (there is no event for that)
            await asyncio.sleep(0.01)
    failing = False
    await one.create(offer="o" * 3 * MIB)


# The command, on a disk of its own.


class Publisher:
    """Publishes offers at a server, and knows what it has said."""

    def __init__(self, server):
        self.server = server
        self.codes = []

    def publish(self):
        """One offer; the status."""
        status, headers, found = post(self.server, "/lobby/offer", {"info": "i", "offer": OFFER})
        assert headers["Access-Control-Allow-Origin"] == ORIGIN
        if status == 200:
            self.codes.append(found["code"])
        else:
            assert (status, found, headers["Retry-After"]) == (503, {"error": "Service unavailable"}, "10")
        return status

    def until(self, status, bound_s=60):
        """Publish until it says so; after how many seconds."""
        began_s = time.monotonic()
        while self.publish() != status:
            assert time.monotonic() - began_s < bound_s
            if status == 200:
                time.sleep(0.2)
        return time.monotonic() - began_s


@contextlib.contextmanager
def serving(disk, *arguments):
    """A server on that disk, with an admin listener."""
    server = Server("--data-dir", disk / "data", "--admin-port", 0, *arguments)
    try:
        yield server
    finally:
        server.end()


def failures(server):
    """Stop it; what it has said of failures."""
    assert server.stop() == 0
    return [line for line in server.log if "ERROR" in line or "WARNING" in line or "Traceback" in line]


def gauge(server, name):
    """A number of /metrics."""
    return scrape(server.admin_url).one(name)


def test_a_disk_filled_by_its_own_sessions(disk):
    """It refuses before the disk is full, serves all else, and is back by itself once the sessions have expired."""
    with serving(disk, "--session-timeout-ms", 5000) as server:
        publisher = Publisher(server)
        publisher.until(503)
        code = publisher.codes[-1]
        assert len(publisher.codes) > 20
        assert gauge(server, "store_full") == 1
        assert server.call("/poll", {"code": code, "side": "answerer"})[1]["offer"] == OFFER
        assert code in server.codes()
        assert server.call("/refresh", {"code": code, "side": "offerer"})[0] == 200
        assert server.call("/withdraw", {"code": code, "side": "offerer"})[0] == 200
        assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 200
        time.sleep(5)
        assert publisher.until(200) < 20
        for _ in range(3):  # under pressure that does not end
            publisher.until(503)
            publisher.until(200)
        deadline_s = time.monotonic() + BOUND_S
        while gauge(server, "store_full"):
            assert time.monotonic() < deadline_s
            time.sleep(0.5)
        assert failures(server) == []
    assert done("check", "--data-dir", disk / "data").endswith("is sound\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_a_full_store(number, disk):
    """What was acknowledged is there after a restart, and a full store stays full until something expires."""
    with serving(disk) as server:
        publisher = Publisher(server)
        publisher.until(503)
        server.stop(number)
    for command in ("check", "compact", "repair"):
        done(command, "--data-dir", disk / "data")
    with serving(disk) as server:
        assert sorted(server.codes()) == sorted(publisher.codes)
        Publisher(server).until(503)
        assert failures(server) == []


@pytest.mark.parametrize("command", ["serve", "check", "compact", "repair"])
def test_others_fill_the_disk(command, disk):
    """With not one byte free the ballast is given up: the server starts, and so does what looks after its data."""
    with serving(disk, "--session-timeout-ms", 3000) as server:
        publisher = Publisher(server)
        for _ in range(20):
            assert publisher.publish() == 200
        server.stop(signal.SIGKILL)
    assert (disk / "data" / files.BALLAST).exists()
    fill_up(disk / "others")
    if command != "serve":
        done_or_warned(command, disk)
    time.sleep(3)
    with serving(disk, "--session-timeout-ms", 3000) as server:
        assert Publisher(server).publish() == 503
        assert server.codes() == []
        assert server.call("/readyz", base=server.admin_url, origin=None)[0] in (200, 503)
        (disk / "others").unlink()
        assert Publisher(server).until(200) < 30
        deadline_s = time.monotonic() + BOUND_S
        while not (disk / "data" / files.BALLAST).exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert server.stop() == 0


def done_or_warned(command, disk):
    """Run a command that must succeed; it may say that it gave up the ballast."""
    ended = run(command, "--data-dir", disk / "data")
    assert ended.returncode == 0, ended
    assert "No space" not in ended.stderr
    assert not (disk / "data" / files.BALLAST).exists()


def test_others_fill_the_disk_of_a_running_server(disk):
    """Writes fail, the ballast is given up, and withdrawals work on the full disk."""
    with serving(disk) as server:
        publisher = Publisher(server)
        for _ in range(20):
            assert publisher.publish() == 200
        fill_up(disk / "others")
        deadline_s = time.monotonic() + BOUND_S
        while server.call("/withdraw", {"code": publisher.codes[0], "side": "offerer"})[0] == 503:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        for code in publisher.codes[1:]:
            status = 503
            while status == 503:
                assert time.monotonic() < deadline_s
                status, _ = server.call("/withdraw", {"code": code, "side": "offerer"})
            assert status == 200
        assert publisher.publish() == 503
        (disk / "others").unlink()
        publisher.until(200)
        assert server.stop() == 0


def test_the_bound_of_a_store(tmp_path):
    """A store on a large disk stays near its bound under pressure, and is back once its sessions have expired."""
    most = 8 * MIB
    with serving(tmp_path, "--max-store-bytes", most, "--session-timeout-ms", 3000) as server:
        publisher = Publisher(server)
        assert gauge(server, "store_max_bytes") == most
        largest = 0
        end_s = time.monotonic() + 12
        statuses = []
        while time.monotonic() < end_s:
            statuses.append(publisher.publish())
            largest = max(largest, files.size_bytes(tmp_path / "data"))
            if statuses[-1] == 503:
                time.sleep(0.05)
        assert largest < 3 * most  # what is being merged is there twice
        changes = sum(before != after for before, after in itertools.pairwise(statuses))
        assert changes >= 3  # full, and back, and full
        time.sleep(3)
        assert publisher.until(200) < 20
        assert failures(server) == []


# An address.


async def test_bytes_of_an_address(start_service):
    """An address that has stored its share is told so; polls and listings go on, and it has room again in time."""
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=400_000, session_timeout_ms=100_000)
    code = await service.offer(offer="o" * 100_000)
    for _ in range(2):
        await service.offer(offer="o" * 100_000)
    body = {"info": "i", "offer": "o" * 150_000}
    response = await service.call("POST", "/lobby/offer", body, origin=OTHER)  # the address counts, not the origin
    assert response.status == 429
    assert 1 <= int(response.headers["Retry-After"]) <= 100
    assert response.json == {"error": "Too many requests"}
    for fields in ({"answer": "a" * 150_000}, {"candidates": ["c" * 100_000, "d" * 100_000]}):
        response = await service.call("POST", "/answer", {"code": code, "side": "answerer", **fields})
        assert response.status == 429
    assert len(await service.sessions()) == 3
    assert (await service.post("/poll", code=code, side="answerer"))["offer"]
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 50_000
    await service.post("/answer", code=code, side="answerer", answer="a" * 150_000)


async def test_small_things_take_room_too(start_service):
    """A candidate of one byte counts with what it takes in the store."""
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=5000)
    code = await service.offer()
    body = {"code": code, "side": "offerer", "candidates": ["c"] * 100}
    assert (await service.call("POST", "/answer", body)).status == 429


async def test_an_address_without_limits(start_service):
    """Addresses that no limit is for have none of bytes."""
    service = await start_service(max_bytes_per_address=1024)
    for _ in range(3):
        await service.offer(offer="o" * 10_000)


async def test_what_a_side_may_hold(start_service):
    """Candidates beyond the bytes of a side are refused, all of a request; the other side is not concerned."""
    service = await start_service(max_side_bytes=10_000)
    code = await service.offer(offer="o" * 6000)
    await service.post("/answer", code=code, side="offerer", candidates=["c" * 1000] * 3)
    body = {"code": code, "side": "offerer", "candidates": ["d", "d" * 1000]}
    response = await service.call("POST", "/answer", body)
    assert (response.status, response.json) == (429, {"error": "Too many requests"})
    assert "Retry-After" in response.headers
    news = await service.post("/poll", code=code, side="answerer")
    assert news["offerCandidates"] == ["c" * 1000] * 3
    await service.post("/answer", code=code, side="answerer", candidates=["c" * 10_000])
    await service.post("/answer", code=code, side="answerer", answer="a" * 10_000)
