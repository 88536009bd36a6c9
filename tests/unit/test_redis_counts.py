"""What an origin has on Redis: which partition is whose, and how often the others are asked what they hold."""

import asyncio
import random

import pytest
from redis.crc import key_slot as known_slot

from tornado_signal.stores.quotas import Quotas
from tornado_signal.stores.redis.counts import OriginCounts
from tornado_signal.stores.redis.partitions import Partitions, key_slot

PARTITIONS = Partitions("test:", 4)


@pytest.mark.parametrize("key", [b"", b"plain", b"a{tag}b", b"{}empty", b"{open", b"{a}{b}", b"x}{y}", "ü{é}".encode()])
def test_key_slots_are_those_of_other_clients(key):
    assert key_slot(key) == known_slot(key)


def counting(quotas, sizes):
    reads = []

    async def read(origin):
        reads.append(origin)
        return sizes

    return OriginCounts(PARTITIONS, read, quotas), reads


async def test_far_from_the_quota_nothing_waits_for_other_partitions(monkeypatch):
    monkeypatch.setattr(random, "randrange", lambda stop: 0)
    away = asyncio.Event()

    async def read(origin):
        await away.wait()
        return [(1, 1)] * 4

    counts = OriginCounts(PARTITIONS, read, Quotas())
    first, *_ = PARTITIONS.all("o")
    for _ in range(3):
        assert counts.note("o", first, 1, 1) is None
    assert counts.others("o", first) == (0, 0)
    away.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert counts.others("o", first) == (3, 3)
    await counts.close()


async def test_near_the_quota_other_partitions_are_known():
    counts, reads = counting(Quotas(sessions_per_origin=20, topics_per_origin=20), [(4, 1)] * 4)
    first, second, *_ = PARTITIONS.all("o")
    await counts.note("o", first, 5, 1)
    assert counts.others("o", first) == (12, 3)
    assert counts.others("o", second) == (12, 3)
    assert counts.note("o", first, 6, 2) is None  # it has been read a moment ago
    assert counts.others("o", second) == (14, 4)
    assert reads == ["o"]


async def test_the_less_is_left_the_sooner_others_are_read(monkeypatch):
    monkeypatch.setattr("tornado_signal.stores.redis.counts.FRESH_S", 0)
    counts, reads = counting(Quotas(sessions_per_origin=100, topics_per_origin=200), [(5, 1)] * 4)
    first, *_ = PARTITIONS.all("o")
    await counts.note("o", first, 50, 1)
    for expected in (1, 2, 2, 3):  # 80 are left: every second time
        counts.note("o", first, 5, 1)
        await asyncio.sleep(0)  # read beside that
        assert len(reads) == expected
    await counts.close()
