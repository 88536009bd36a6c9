"""Consistency checks of a store on Redis. They read the whole store, which can be in use."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from ...errors import Unavailable
from ...redis.slots import key_slot
from . import records
from .partitions import Partition, parse_key
from .store import RedisStore

ATTEMPTS = 3  # a session that changes while it is read can look wrong in one attempt, but hardly in all
STEP = 500  # sessions read in parallel
KEYS_STEP = 1000  # keys scanned per step
MOVED_MS = 60_000  # Redis moves a key with its remaining time, so that it lives longer by the time of its moves


async def flaws(store: RedisStore) -> list[str]:
    issues = [*await contradictions(store), *await _unlisted(store)]
    for _ in range(ATTEMPTS - 1):
        if issues:
            again = {*await contradictions(store), *await _unlisted(store)}
            issues = [issue for issue in issues if issue in again]
    return issues


async def all_keys(store: RedisStore) -> AsyncGenerator[list[bytes], None]:
    """Yield all keys in steps. Keys written during the scan can be missing."""
    pattern = re.sub(r"([\[\]*?\\])", r"\\\1", store.client.prefix) + "*"
    for node in store.topology.primaries:
        cursor = b"0"
        while True:
            reply = await node.reads.submit((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", KEYS_STEP))
            if isinstance(reply, Exception):
                raise Unavailable("Redis at {}:{}: {}".format(*node.address, reply))
            cursor, keys = reply
            yield keys
            if cursor == b"0":
                break


async def contradictions(store: RedisStore) -> list[str]:
    """Return a sentence for each contradiction in the listings. Concurrent changes can look like one."""
    issues: list[str] = []
    for origin in await store.origins():
        for partition in store.partitions.all(origin):
            issues += [f"{origin!r}: {issue}" for issue in await _check_partition(store, partition)]
    return issues


async def _unlisted(store: RedisStore) -> list[str]:
    """Return a sentence for each unanswered session that is in no listing, or whose origin is not registered."""
    issues = []
    # By the name that all partitions of an origin share.
    origins = {store.partitions.all(origin)[0].name: origin for origin in await store.origins()}
    async for keys in all_keys(store):
        parsed = [(key, *parts) for key in keys if (parts := parse_key(key))]
        sessions = [(key, name, code) for key, name, code in parsed if code]
        commands = (
            store.client.call(key_slot(key), (b"HMGET", key, b"h", b"e", b"k"), write=False) for key, _, _ in sessions
        )
        for (_, name, code), fields in zip(sessions, await asyncio.gather(*commands), strict=True):
            fixed, expires, sent = fields
            if fixed is None or int(expires) <= store.client.read_ms or records.unpack_sent(sent).answered:
                continue
            if name not in origins:
                issues.append(f"{code.hex()} belongs to an unregistered origin")
                continue
            session = records.unpack_session(code, fixed, expires)
            partition = store.partitions.of_code(origins[name], code)
            score = (b"ZSCORE", partition.listing, partition.listing_member(session))
            listed = await store.client.call(partition.slot, score, write=False)
            if not listed and session.expires_ms > store.client.read_ms:
                issues.append(f"{code.hex()} is neither listed nor answered")
    return issues


async def _check_partition(store: RedisStore, partition: Partition) -> list[str]:
    meta, listing, expiries, due, topics, departed, forgetting = partition.shared
    # One transaction reads a consistent state.
    reply = await store.topology.node(partition.slot).reads.submit(
        (b"MULTI",),
        (b"TIME",),
        (b"HGETALL", meta),
        *((b"ZRANGE", key, 0, -1) for key in (listing, expiries, topics, departed)),
        (b"ZRANGE", due, 0, -1, b"WITHSCORES"),
        (b"LRANGE", forgetting, 0, -1),
        *((b"PEXPIRETIME", key) for key in partition.shared),
        (b"EXEC",),
    )
    if isinstance(reply, Exception):
        raise Unavailable(f"Redis: {reply}")
    time, fields, members, entries, topic_names, removals, scores, remembered, *ends = reply
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    numbers = {name: int(number) for name, number in _pairs(fields) if name == b"n" or name[:1] == b"="}
    # A member of the listing is the topic after its length (2 bytes), then serial (8) and code (16).
    # An entry of `expiries` also has the expiry (8), before the serial. `=TOPIC` is the count of a topic.
    counts = Counter(member[2:-24] for member in members)
    first: dict[bytes, int] = {}
    expected: dict[bytes, int] = {}  # expiries of listed sessions by code
    for entry in entries:
        topic, ends_ms = entry[2:-32], int.from_bytes(entry[-32:-24], "big")
        first[topic] = min(first.get(topic, ends_ms), ends_ms)
        expected[entry[-16:]] = ends_ms
    issues = []
    if sorted(entry[:-32] + entry[-24:] for entry in entries) != members:
        issues.append("the listings and their expiry entries do not match")
    if {topic: int(float(score)) for topic, score in _pairs(scores)} != first:
        issues.append("the topics' recorded first expiries do not match their sessions")
    if topic_names != sorted(counts):
        issues.append("the topics do not match the listings")
    if {name[1:]: number for name, number in numbers.items() if name != b"n"} != counts:
        issues.append("the counts of topics do not match the listings")
    if numbers.get(b"n", 0) != len(members):
        issues.append("the count of sessions does not match the listings")
    if sorted(record[8:] for record in remembered) != removals:
        issues.append("the removals and their expiry entries do not match")
    issues += [
        f"{key!r} never expires" for key, ends_ms in zip(partition.shared, ends, strict=True) if int(ends_ms) == -1
    ]
    codes = [member[-16:] for member in members]
    for at in range(0, len(codes), STEP):
        step = codes[at : at + STEP]
        checks = (_check_session(store, partition, code, expected.get(code, 0), now_ms) for code in step)
        results = zip(step, await asyncio.gather(*checks), strict=True)
        issues += [f"{code.hex()} {issue}" for code, issue in results if issue]
    return issues


async def _check_session(store: RedisStore, partition: Partition, code: bytes, ends_ms: int, now_ms: int) -> str:
    """Return the problem of a listed session, or an empty text. Its entry in `expiries` has the expiry `ends_ms`."""
    key = partition.session(code)
    # The fixed data, the expiry, the numbers of the sent messages, and the time at which Redis deletes the key.
    (fixed, expires, sent), gone_ms = await asyncio.gather(
        store.client.call(partition.slot, (b"HMGET", key, b"h", b"e", b"k"), write=False),
        store.client.call(partition.slot, (b"PEXPIRETIME", key), write=False),
    )
    if fixed is None:
        return "is listed but does not exist" if ends_ms > now_ms else ""
    if records.unpack_sent(sent).answered:
        return "is listed although it is answered"
    # The scripts spread the deletion of keys over SPREAD_MS after the expiry.
    if int(expires) != ends_ms or not ends_ms <= int(gone_ms) <= ends_ms + records.SPREAD_MS + MOVED_MS:
        return "does not expire when it should"
    return ""


def _pairs(flat: list[bytes]) -> list[tuple[bytes, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
