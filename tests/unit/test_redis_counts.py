"""Counts of an origin on Redis: partitions of topics, and how often the other partitions are read."""

import asyncio
import random
import tracemalloc

import pytest
from redis.crc import key_slot as redis_slot

from tornado_signal.redis.slots import key_slot
from tornado_signal.stores.quotas import Quotas
from tornado_signal.stores.redis.counts import Counts
from tornado_signal.stores.redis.partitions import MAX_PARTITIONS, Partitions

PARTITIONS = Partitions("test:", 4)


@pytest.mark.parametrize("key", [b"", b"plain", b"a{tag}b", b"{}empty", b"{open", b"{a}{b}", b"x}{y}", "ü{é}".encode()])
def test_key_slots_match_those_of_redis_py(key):
    assert key_slot(key) == redis_slot(key)


def test_partitions_of_an_origin_are_created_on_first_use():
    tracemalloc.start()
    try:
        partitions = Partitions("test:", MAX_PARTITIONS)
        assert partitions.of_topic("o", "topic") is partitions.of_topic("o", "topic")
        assert tracemalloc.get_traced_memory()[0] < 20_000
        assert len(partitions.all("o")) == MAX_PARTITIONS
        assert tracemalloc.get_traced_memory()[0] > 200_000
    finally:
        tracemalloc.stop()


def make_counts(quotas, sizes):
    reads = []

    async def read(origin):
        reads.append(origin)
        return sizes

    return Counts(None, PARTITIONS, read, 1000, quotas), reads


async def test_other_partitions_are_not_waited_for_far_from_the_quota(monkeypatch):
    monkeypatch.setattr(random, "randrange", lambda stop: 0)
    available = asyncio.Event()

    async def read(origin):
        await available.wait()
        return [(1, 1)] * 4

    counts = Counts(None, PARTITIONS, read, 1000, Quotas())
    first, *_ = PARTITIONS.all("o")
    for _ in range(3):
        assert counts.note("o", first, 1) is None
    assert counts.others("o", first) == 0
    available.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert counts.others("o", first) == 3
    await counts.close()


async def test_other_partitions_are_read_near_the_quota():
    counts, reads = make_counts(Quotas(sessions_per_origin=20), [(4, 1)] * 4)
    first, second, *_ = PARTITIONS.all("o")
    await counts.note("o", first, 5)
    assert counts.others("o", first) == 12
    assert counts.others("o", second) == 12
    assert counts.note("o", first, 6) is None  # the others have just been read
    assert counts.others("o", second) == 14
    assert reads == ["o"]


async def test_other_partitions_are_read_more_often_near_the_quota(monkeypatch):
    monkeypatch.setattr("tornado_signal.stores.redis.counts.FRESH_S", 0)
    counts, reads = make_counts(Quotas(sessions_per_origin=100), [(5, 1)] * 4)
    first, *_ = PARTITIONS.all("o")
    await counts.note("o", first, 50)
    for expected in (1, 2, 2, 3):  # 80 sessions are left: read every second time
        counts.note("o", first, 5)
        await asyncio.sleep(0)  # the read runs in parallel
        assert len(reads) == expected
    await asyncio.sleep(0)
    counts.allow(Quotas(sessions_per_origin=30))
    await counts.note("o", first, 5)
    assert len(reads) == 4
    await counts.close()
