"""Counting what is on Redis takes a small share of the time, however many origins there are."""

import asyncio

from support.redis_servers import RedisServer, fixture
from support.stores import opened_on

from tornado_signal.stores.redis import counts

redis = fixture(RedisServer, "redis")


async def test_long_count_pauses_and_keeps_the_previous_counts(redis, under, monkeypatch):
    async with opened_on(redis) as store:
        for number in range(counts.STEP):
            await under(store, f"https://{number}.example").create()
        while (total := await store.counts()) is None:  # it waits for half a second at most
            pass
        assert total == (counts.STEP, counts.STEP)
        monkeypatch.setattr(counts, "WORK_S", 0)  # as if a step took long
        monkeypatch.setattr(counts, "PAUSES", 1e9)
        for number in range(counts.STEP, 10 * counts.STEP):
            await under(store, f"https://{number}.example").create()
        calls = sum(store.client.metrics.seconds.counts)
        for _ in range(2):
            assert await store.counts() == total
        # The registry of origins, the claim, and at most one step.
        assert sum(store.client.metrics.seconds.counts) - calls <= (counts.STEP + 2) * store.partitions.count


async def test_processes_take_turns_in_counting_and_share_the_result(redis, under, monkeypatch):
    monkeypatch.setattr(counts, "LIMIT_S", 60)
    async with opened_on(redis) as one, opened_on(redis) as two, opened_on(redis) as three:
        for number in range(40):
            await under(one, f"https://{number % 39}.example").create(f"topic {number}")
        await under(one, "https://empty.example").withdraw(await under(one, "https://empty.example").create())
        redis.ask("SET", "tornado-signal:claim:counts", "another process")
        counting = [asyncio.create_task(each.counts()) for each in (one, two, three)]
        _, waiting = await asyncio.wait(counting, timeout=0.2)
        assert len(waiting) == 3
        redis.ask("DEL", "tornado-signal:claim:counts")
        assert await asyncio.gather(*counting) == [(40, 40)] * 3
        assert not redis.ask("EXISTS", "tornado-signal:claim:counts")
        assert await two.largest_origins(1) == [("https://0.example", 2, 2)]
        assert len(await two.largest_origins(100)) == 39
        redis.ask("SET", "tornado-signal:totals", '[7, 8, [["https://shared.example", 7, 8]]]')
        assert await three.counts() == (7, 8)
        assert await three.largest_origins(9) == [("https://shared.example", 7, 8)]


async def test_long_count_keeps_its_claim_and_is_used_for_as_long_as_it_took(redis, under, monkeypatch):
    monkeypatch.setattr(counts, "WORK_S", -1)  # a pause before each step
    monkeypatch.setattr(counts, "PAUSES", 0)
    async with opened_on(redis) as store:
        for number in range(3 * counts.STEP):
            await under(store, f"https://{number}.example").create()
        sent, call_key, count_all = [], store.client.call_key, store._counts._count_all

        async def slowly():
            await asyncio.sleep(0.05)
            return await count_all()

        monkeypatch.setattr(store._counts, "_count_all", slowly)
        monkeypatch.setattr(
            store.client, "call_key", lambda *command, **options: sent.append(command) or call_key(*command)
        )
        await store.largest_origins(1)
        assert sum(command[:2] == (b"SET", b"tornado-signal:claim:counts") for command in sent) == 1 + 3
        assert [command[-1] >= 50 for command in sent if command[:2] == (b"SET", b"tornado-signal:totals")] == [True]
