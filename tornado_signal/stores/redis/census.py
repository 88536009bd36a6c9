"""Counts of a store's content on Redis."""

import asyncio
from collections import Counter
from typing import Any

from ..census import make_numbers, zeros
from . import records
from .check import all_keys
from .nodes import parse_info
from .partitions import key_slot, parse_key
from .store import RedisStore


async def count(store: RedisStore, max_items: int) -> dict[str, Any]:
    """Return the numbers of a store, with the `max_items` largest origins and topics by name.

    Bytes are Redis' memory, including its overhead per key. Concurrent writes may or may not be counted.

    Raises:
        Unavailable: not everything can be read.
    """
    origins = {store.partitions.all(origin)[0].name: origin for origin in await store.origins.all()}
    held: dict[str, Counter[str]] = {}
    topics: Counter[tuple[str, str]] = Counter()
    entries = total_bytes = 0

    async def count_key(key: bytes) -> None:
        nonlocal entries, total_bytes
        call, slot = store.client.call, key_slot(key)
        size, parts = await call(slot, (b"MEMORY", b"USAGE", key), write=False), parse_key(key)
        if size is None:  # deleted since the scan
            return
        entries += 1
        total_bytes += size
        if parts is None:
            return
        name, code = parts
        # An origin can be registered after the list of origins was read.
        origin = origins.get(name, f"(hashed) {name.decode()}")
        its = held.setdefault(origin, zeros())
        if not code:
            listed = await call(slot, (b"HGET", key, b"n"), write=False)
            its["expired"] += int(listed or 0)
            return
        fixed, expires, state, skipped = await call(slot, (b"HMGET", key, b"h", b"e", b"k", b"b"), write=False)
        if fixed is None or int(expires) <= store.client.read_ms:
            return
        sent = records.unpack_sent(state)
        its["sessions"] += 1
        its["bytes"] += size
        its["candidates"] += records.count_candidates(state, skipped)
        its["answered" if sent.answered else "unanswered"] += 1
        if not sent.answered:
            topics[origin, records.unpack_session(code, fixed, expires).topic] += 1

    async for keys in all_keys(store):
        await asyncio.gather(*map(count_key, keys))
    for its in held.values():  # expired but still counted: the next script of the partition delists them
        its["expired"] = max(0, its["expired"] - its["unanswered"])
        its["sessions"] += its["expired"]
    held = {origin: its for origin, its in held.items() if its["sessions"]}
    total = zeros()
    for its in held.values():
        total.update(its)
    size_bytes = 0
    for node in store.topology.primaries:
        info = await node.reads.submit((b"INFO", b"memory"))
        size_bytes += 0 if isinstance(info, Exception) else int(parse_info(info)["used_memory"])
    by_size = sorted(((its["sessions"], origin, its) for origin, its in held.items()), key=lambda each: -each[0])
    largest_topics = [(number, *topic) for topic, number in topics.most_common(max_items)]
    numbers = make_numbers(total, len(held), len(topics), entries, total_bytes, by_size[:max_items], largest_topics)
    return {"size_bytes": size_bytes, **numbers}
