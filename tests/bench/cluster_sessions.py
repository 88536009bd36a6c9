"""Many sessions on Redis: their memory, the time of a page of topics, and the effect of their simultaneous expiry."""

import asyncio
import itertools
import time
from functools import partial
from types import SimpleNamespace

import uvloop

from tornado_signal.session import Side
from tornado_signal.stores.redis.store import RedisStore

from ..support.redis_servers import KINDS, RedisCluster, RedisServer
from . import client, fill, latency, messages, peers
from .cluster_nodes import empty, in_batches, open_store, used_bytes
from .figures import Bench
from .processes import BenchError, Server

OFFER = messages.NOISE[:1024]
LISTED_KB, PAIR_KB = 2.5, 6.5
PAGES = 200
PAGE_MS = 5
MORE_MS = 10
PAUSE_S = 0.001  # pause of the load, to leave CPU time for the nodes
TRIED = 50  # one part in this number is published first, to estimate the total time
SETTLED_S = 10  # how long the other requests are measured


def memory(bench: Bench) -> None:
    count = bench.size.cluster_kept
    note = f"{count:,} of each on a node of its own, each in a topic of its own; by the node's own account"
    for kind in KINDS:
        node = RedisServer(kind)
        try:
            listed, pair, life = uvloop.run(_keep(node, count))
        finally:
            node.kill()
        add = partial(bench.add, "cluster: memory of Redis", unit="KB", judged=bench.whole, note=note)
        add(f"a listed session, offer of 1 KB, {kind}", value=listed / 1000, most=LISTED_KB)
        add(f"a pair, offer and answer of 1 KB, {kind}", value=pair / 1000, most=PAIR_KB)
        add(f"a pair, as in `life`, {kind}", value=life / 1000)


async def _keep(node: RedisServer, count: int) -> list[float]:
    async with open_store([node]) as store:
        taken = [used_bytes([node])]
        listed = ((fill.topic(number), messages.INFO, OFFER) for number in range(count))
        await in_batches(store.create(fill.ORIGIN, *each) for each in listed)
        taken.append(used_bytes([node]))
        for short in (True, False):
            await in_batches(_meet(store, number, short) for number in range(count))
            taken.append(used_bytes([node]))
    return [(after - before) / count for before, after in itertools.pairwise(taken)]


async def _meet(store: RedisStore, number: int, short: bool) -> None:
    pair = peers.pair(number)
    offer, answer = (OFFER, OFFER) if short else (pair.offerer.description, pair.answerer.description)
    code, _ = await store.create(messages.ORIGIN, pair.topic, pair.offerer.identity, offer)
    await store.answer(messages.ORIGIN, code, answer)
    for side, peer in ((Side.OFFERER, pair.offerer), (Side.ANSWERER, pair.answerer)):
        for candidate in peer.candidates:
            await store.add_candidates(messages.ORIGIN, code, side, [candidate])


def sessions(bench: Bench, server: Server, shards: RedisCluster) -> None:
    count = bench.size.cluster_sessions
    less = {"rate": bench.size.rate // 4, "mixed": bench.size.mixed // 10}
    size = SimpleNamespace(**vars(bench.size) | less)
    empty(shards)
    lead_s = uvloop.run(_fill_s(shards, count)) + 3 * size.steady_s + 6
    began_s = time.perf_counter()
    expires_ms = uvloop.run(_fill(shards, count, lead_s))
    taken_s = uvloop.run(_pages(server, count))
    end_s = began_s + lead_s + min(SETTLED_S, size.sweep_s)
    seen = uvloop.run(latency.while_expiring(server, size, expires_ms, lambda: time.perf_counter() > end_s, PAUSE_S))
    add = partial(bench.add, f"cluster: {count:,} topics with a session each", unit="ms", judged=bench.whole)
    note = "one after the other, nothing else is asked"
    for name, values in taken_s.items():
        most = PAGE_MS if name == "first" else None
        value = client.percentile(values, 0.5)
        add(f"GET /topics?limit=100, {name} page, p50", value=value, most=most, note=note)
    note = f"{size.rate:,} requests a second of another origin, for {SETTLED_S} s from the moment of expiry"
    before_ms, during_ms = (client.percentile(each, 0.99) for each in seen)
    add("p99 before they expire together", value=before_ms, note=note)
    add("p99 from then on", value=during_ms)
    add("p99 when they expire together, how much more", value=during_ms - before_ms, most=MORE_MS)
    for name, share in (("p50", 0.5), ("p99.9", 0.999), ("longest", 1.0)):
        before_ms, during_ms = (client.percentile(each, share) for each in seen)
        ratio = during_ms / before_ms
        add(f"{name} from then on, to before", value=during_ms, ceiling=before_ms, ratio=ratio)


async def _fill_s(shards: RedisCluster, count: int) -> float:
    async with open_store(shards.primaries) as store:
        began_s = time.perf_counter()
        tried = ((fill.topic(number), messages.INFO, OFFER) for number in range(count // TRIED))
        await in_batches(store.create("http://tried.example", *each) for each in tried)
        return 3 * TRIED * (time.perf_counter() - began_s)


async def _fill(shards: RedisCluster, count: int, lead_s: float) -> int:
    """Publish sessions that all expire at once. Return their expiry, Unix ms."""
    async with open_store(shards.primaries) as store:
        expires_ms = store.now_ms() + round(lead_s * 1000)

        async def publish(number: int) -> None:
            ttl_ms = expires_ms - store.now_ms()
            await store.create(fill.ORIGIN, fill.topic(number), messages.INFO, OFFER, ttl_ms=ttl_ms)

        await in_batches(publish(number) for number in range(count))
    return expires_ms


async def _pages(server: Server, count: int) -> dict[str, list[float]]:
    (connection,) = await client.connect(server.base, 1)
    taken_s: dict[str, list[float]] = {}
    for name, page in (("first", 1), ("middle", max(1, count // 200)), ("last", max(1, count // 100))):
        data = messages.request(server.base, "GET", f"/topics?limit=100&page={page}", origin=fill.ORIGIN)
        taken_s[name] = []
        for _ in range(min(PAGES if name == "first" else PAGES // 10, count // 50)):
            began_s = time.perf_counter()
            response = await connection.ask(data)
            taken_s[name].append(time.perf_counter() - began_s)
            if response["pagination"]["total"] != count or len(response["topics"]) != min(100, count):
                seen = f"{len(response['topics'])} of {response['pagination']['total']:,}"
                raise BenchError(f"{server.base} lists {seen} topics; was the machine too slow to publish {count:,}?")
            await asyncio.sleep(0)
    connection.close()
    return taken_s
