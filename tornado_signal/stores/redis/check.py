"""Whether every index agrees with the sessions (contract E6). Reads the whole store; others may not write meanwhile."""

from collections import Counter
from typing import Any

from . import records
from .partitions import Partition
from .store import RedisStore


async def problems(store: RedisStore) -> list[str]:
    """What does not agree, a sentence for each; empty if all is well."""
    found: list[str] = []
    for origin in await store.origins():
        for partition in store.partitions.all(origin):
            found += [f"{origin!r}: {each}" for each in await _problems(store, partition)]
    return found


async def _problems(store: RedisStore, partition: Partition) -> list[str]:
    async def read(*command: Any) -> Any:
        return await store.client.call(partition.slot, command, write=False)

    meta, listing, expiries, due, topics, departed, forgetting = partition.shared
    found = []
    listed = await read(b"ZRANGE", listing, 0, -1)
    kept = dict(zip(*[iter(await read(b"HGETALL", meta))] * 2, strict=True))
    counts: Counter[bytes] = Counter()
    expected: dict[bytes, int] = {}  # entry of the order of expiry, and when
    seconds, microseconds = await read(b"TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    for member in listed:
        topic, name = member[2:-24], member[-24:]
        counts[topic] += 1
        fixed, expires, sent = await read(b"HMGET", partition.session(name[8:]), b"h", b"e", b"k")
        if fixed is None:
            entries = await read(b"ZRANGE", expiries, b"[" + member[:-24], b"(" + member[:-24] + b"\xff", b"BYLEX")
            ends = [int.from_bytes(entry[-32:-24], "big") for entry in entries if entry.endswith(name)]
            if len(ends) != 1 or ends[0] > now_ms:
                found.append(f"{name[8:].hex()} is listed, and is not there")
            expires = ends[0] if ends else 0
        elif records.unpack_sent(sent).answered:
            found.append(f"{name[8:].hex()} is listed, and has been answered")
        elif await read(b"PEXPIRETIME", partition.session(name[8:])) != int(expires) - 1:
            found.append(f"{name[8:].hex()} does not expire when it should")
        expected[member[:-24] + int(expires).to_bytes(8, "big") + name] = int(expires)
    if sorted(expected) != await read(b"ZRANGE", expiries, 0, -1):
        found.append("the order of expiry is not that of the listings")
    first: dict[bytes, int] = {}
    for entry, ends_ms in expected.items():
        first[entry[2:-32]] = min(first.get(entry[2:-32], ends_ms), ends_ms)
    scores = await read(b"ZRANGE", due, 0, -1, b"WITHSCORES")
    if {topic: int(float(score)) for topic, score in zip(*[iter(scores)] * 2, strict=True)} != first:
        found.append("the topics' first expiries are not those of their sessions")
    if await read(b"ZRANGE", topics, 0, -1) != sorted(counts):
        found.append("the topics are not those of the listings")
    if {name[1:]: int(count) for name, count in kept.items() if name[:1] == b"="} != counts:
        found.append("the counts of topics are not those of the listings")
    if int(kept.get(b"n", 0)) != sum(counts.values()):
        found.append("the count of sessions is not that of the listings")
    if sorted(each[8:] for each in await read(b"LRANGE", forgetting, 0, -1)) != await read(b"ZRANGE", departed, 0, -1):
        found.append("the departures are not those that are to be forgotten")
    for key in partition.shared:
        if await read(b"EXISTS", key) and await read(b"PEXPIRETIME", key) < 0:
            found.append(f"{key!r} never expires")
    return found
