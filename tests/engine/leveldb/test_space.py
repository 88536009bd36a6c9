"""The disk space of a store: its limit, the reserve and the ballast."""

import asyncio
import contextlib
import errno
import os
import random

import pytest
from support.disks import SIZE_MIB, fill_up
from support.stores import TIMEOUT_MS

from tornado_signal.errors import Unavailable
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import files
from tornado_signal.stores.leveldb import space as spaces
from tornado_signal.stores.leveldb.space import RETRY_AFTER_S, Space

MIB = 1 << 20
RESERVE = 64 * MIB  # more than a quarter of the disk


@pytest.fixture
def place(small_disk):
    """A directory on it."""
    path = small_disk / "data"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def forgotten_refusals(monkeypatch):
    """A store counts as full while it has no room, and not after a refusal."""
    monkeypatch.setattr(spaces, "REFUSED_S", 0)


def measured(path, **options):
    space = Space(path, **options)
    space.measure()
    return space


def fits(space, size):
    try:
        space.admit(size)
    except Unavailable:
        return False
    return True


@pytest.mark.parametrize("before", ["nothing", "a directory", "a truncated one"])
def test_reserve_and_ballast_of_a_small_disk(before, place):
    ballast = place / files.BALLAST
    if before == "a directory":
        ballast.mkdir()
        assert measured(place, reserve_bytes=RESERVE).free_bytes == SIZE_MIB * MIB
        assert ballast.is_dir()
        return
    if before == "a truncated one":
        ballast.write_bytes(b"\0" * 1000)
    space = measured(place, reserve_bytes=RESERVE)
    assert space.reserve_bytes == SIZE_MIB * MIB // 4
    assert ballast.stat().st_size == ballast.stat().st_blocks * 512 == space.reserve_bytes // 2
    assert space.size_bytes == 0
    assert space.free_bytes == (SIZE_MIB - SIZE_MIB // 8) * MIB
    space = measured(place, reserve_bytes=MIB)
    assert (space.reserve_bytes, ballast.stat().st_size) == (MIB, MIB // 2)


def test_writes_below_the_reserve_are_refused(place, small_disk):
    space = measured(place, reserve_bytes=RESERVE)
    assert fits(space, MIB)
    assert not space.full
    assert not fits(space, 20 * MIB)  # which would be written twice, and again to merge it
    (small_disk / "others").write_bytes(b"\0" * 41 * MIB)
    assert fits(space, MIB)
    space.measure()
    assert not fits(space, 0)
    assert space.full
    (small_disk / "others").unlink()
    space.measure()
    assert not space.full


def test_ballast_is_released_and_restored_with_free_space(place, small_disk):
    space = measured(place, reserve_bytes=RESERVE)
    ballast = place / files.BALLAST
    space.release_ballast()
    assert ballast.exists()
    fill_up(small_disk / "others")
    space.release_ballast()
    assert not ballast.exists()
    space.measure()
    assert not ballast.exists()
    assert space.full
    os.truncate(small_disk / "others", 33 * MIB)
    space.measure()
    assert not ballast.exists()  # it would take what is free to the reserve again
    os.truncate(small_disk / "others", 30 * MIB)
    space.measure()
    assert ballast.stat().st_size == 8 * MIB
    assert space.free_bytes == (SIZE_MIB - 30 - 8) * MIB


def test_no_reserve_means_no_ballast_and_a_full_disk(place, small_disk):
    (small_disk / "others").write_bytes(b"\0" * 63 * MIB)
    space = measured(place)
    assert not (place / files.BALLAST).exists()
    assert fits(space, MIB)
    assert not space.full


@pytest.mark.parametrize("name", ["EOPNOTSUPP", "EINVAL", "ENOSPC", "EDQUOT", "EPERM"])
def test_filesystem_without_fallocate_has_no_ballast(name, place, monkeypatch):
    def refused(descriptor, offset, size):
        raise OSError(getattr(errno, name), name)

    monkeypatch.setattr(spaces.os, "posix_fallocate", refused)
    space = measured(place, reserve_bytes=RESERVE)
    assert list(place.iterdir()) == []
    assert space.free_bytes == SIZE_MIB * MIB


def test_missing_directory_keeps_the_last_measurement(place):
    space = measured(place, reserve_bytes=RESERVE)
    before = space.size_bytes, space.free_bytes
    files.remove_ballast(place)
    place.rmdir()
    space.measure()
    space.release_ballast()
    assert (space.size_bytes, space.free_bytes) == before


def test_writes_beyond_the_bound_are_refused(tmp_path):
    space = Space(tmp_path, max_bytes=10 * MIB, reserve_bytes=MIB)
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


def test_submitted_bytes_count_until_they_are_measured_or_failed(tmp_path):
    space = measured(tmp_path, max_bytes=10 * MIB)
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
    space.submitted(3 * MIB)
    assert not fits(space, 2 * MIB)
    space.failed()
    space.measure()
    assert fits(space, 4 * MIB)


async def test_changes_that_wait_for_their_write_are_bounded(opened):
    _, one = await opened(max_store_bytes=4 * MIB)
    waiting = [one.create(offer=f"{number} " + "o" * 100_000) for number in range(200)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [each for each in found if isinstance(each, Unavailable)]
    assert 35 <= len(found) - len(refused) <= 41
    assert {each.retry_after_s for each in refused} == {RETRY_AFTER_S}


async def test_full_store_refuses_until_sessions_expire(opened, restarted, clock):
    store, one = await opened(max_store_bytes=3 * MIB)
    code = await one.create()
    other = await one.create()
    rng = random.Random(1)
    with contextlib.suppress(Unavailable):
        while True:
            await one.create(offer=rng.randbytes(50_000).hex())
    assert store.space.full
    assert store.database.size_bytes() < 4 * MIB
    large = "😀" * (MIB // 4)
    for refused in (one.answer(code, large), one.add(code, Side.OFFERER, large), one.create(offer=large)):
        with pytest.raises(Unavailable):
            await refused
    assert len(await one.codes()) > 10
    assert (await one.read(code, Side.OFFERER)).description == "offer"
    clock.ms += TIMEOUT_MS - 1
    await one.refresh(code)
    await one.withdraw(other)
    clock.ms += 1
    assert store.space.full
    await store.sweep_all()
    store.space.measure()
    assert await one.codes() == [code]
    assert not store.space.full
    await one.answer(code, large)
    store, _ = await restarted(store, max_store_bytes=3 * MIB)
    assert store.space.size_bytes > 0  # it is measured when it opens


async def test_failed_writes_take_no_space(opened, monkeypatch, until):
    store, one = await opened(max_store_bytes=10 * MIB)

    def failed(group):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(store.database._group), "write", failed)
        patch.setattr(spaces, "REFUSED_S", 100)
        for _ in range(4):
            with pytest.raises(Unavailable):
                await one.create(offer="o" * 3 * MIB)
            assert store.space.full == "disk"
            await until(lambda: store.available)
    assert store.database.metrics.reopened == 4
    await one.create(offer="o" * 3 * MIB)
