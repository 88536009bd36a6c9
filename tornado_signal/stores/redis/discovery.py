"""Topics, listings and their events on Redis."""

import asyncio
import bisect
import itertools
import math
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...metrics import SessionMetrics
from ...redis.client import RedisClient
from ...redis.scripts import Call
from ...session import (
    EventBatch,
    Listed,
    ListedSession,
    ListingState,
    Observer,
    Position,
    Reason,
    Removed,
    Side,
    TopicRange,
)
from ...settings.settings import Settings
from ..watches import Watches
from . import records, scripts
from .partitions import Partition, Partitions

LISTING_STEP = 50  # sessions of a listing read in parallel
EVENTS_STEP = 50
TOPICS_STEP = 256  # topics read from a partition at once
EXPIRY_DELAY_S = 0.005  # delay after an expiry, because clocks are not read at the same instant
END = b"\xff"  # above all names

Bounds: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Ranges of names: of each the first possible name, and a bound above the last one."""

WHOLE: Bounds = ((b"", END),)


@dataclass
class Part:
    """The listed topics of a partition, read in their order."""

    partition: Partition
    unread: Bounds  # the ranges of the others
    topics: list[tuple[bytes, int]]  # the topics that were read and not skipped, each with its number of sessions


class Step(NamedTuple):
    """The changes of a topic since a position."""

    identity: str  # the identity of the partition
    serial: int  # its newest serial
    removals: list[bytes]
    refreshes: list[bytes]
    additions: list[bytes]
    forgotten: int  # the serial of the last removal in the partition that is no longer stored, or 0
    empty: bool  # whether the topic has no sessions


class Discovery:
    """The operations of a store on Redis that read listings."""

    def __init__(self, client: RedisClient, settings: Settings) -> None:
        self.client = self.shared_redis = client
        self.partitions = Partitions(client.prefix, settings.redis_partitions)
        self.watches = Watches()  # by the channels of sessions and topics
        self.metrics = SessionMetrics()  # metrics of the sessions that this process changed
        self._timeout_ms = settings.session_timeout_ms
        self._observer: Observer | None = None
        self._removing = asyncio.Lock()  # of expired sessions
        self._expiries: dict[bytes, tuple[int, asyncio.TimerHandle]] = {}  # the next one, by channel

    async def topics(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        partitions = zip(self.partitions.all(origin), self._bounds(ranges), strict=True)
        reading = parts = [Part(partition, bounds, []) for partition, bounds in partitions if bounds]
        share = (offset + limit) // max(1, len(parts))
        step = min(share + 3 * math.isqrt(share + 1) + 4, TOPICS_STEP)
        total: int | None = None
        while True:
            counts = await asyncio.gather(*(self._read_on(part, step) for part in reading))
            total = sum(counts) if total is None else total
            # The order is unknown after the last topic of a partition that has more.
            known = min((part.topics[-1] for part in parts if part.unread), default=None)
            merged = sorted(itertools.chain.from_iterable(part.topics for part in parts))
            ordered = len(merged) if known is None else bisect.bisect_right(merged, known)
            if known is None or ordered >= offset + limit or offset >= total:
                return [(topic.decode(), count) for topic, count in merged[offset : offset + limit]], total
            if skipped := min(offset, ordered):
                for part in parts:
                    del part.topics[: bisect.bisect_right(part.topics, merged[skipped - 1])]
                offset -= skipped
            reading = [part for part in parts if part.unread and (len(part.topics) < step or part.topics[-1] == known)]

    async def _read_on(self, part: Part, step: int) -> int:
        """Read the next topics of a partition. Return the number of all that were unread."""
        _, count, topics = await self._topics(part.partition, part.unread, step)
        part.topics += topics
        after = topics[-1][0] + b"\0" if len(topics) == step else END
        part.unread = tuple((max(first, after), end) for first, end in part.unread if after < end)
        return count

    def _bounds(self, ranges: Sequence[TopicRange] | None) -> list[Bounds]:
        """Return the ranges in which a listing reads each partition. Only one partition can have a single topic."""
        if ranges is None:
            return [WHOLE] * self.partitions.count
        bounds: list[list[tuple[bytes, bytes]]] = [[] for _ in range(self.partitions.count)]
        for each in ranges:
            for of_partition in bounds if each.is_prefix else [bounds[self.partitions.number(each.text)]]:
                of_partition.append(each.bounds)
        return [tuple(of_partition) for of_partition in bounds]

    async def _topics(
        self, partition: Partition, bounds: Bounds, many: int
    ) -> tuple[int, int, list[tuple[bytes, int]]]:
        """Return the counts of a partition's sessions and of its topics in ranges, and the first of these topics."""
        call = scripts.call("topics", many=many, removals_ms=self._timeout_ms)
        more = list(itertools.chain.from_iterable(bounds))
        again, *reply = await self._run_once(partition, call, *more)
        if again:
            # Many have expired. Remove a few at a time, and pause twice as long so that the node can serve others.
            loop = asyncio.get_running_loop()
            async with self._removing:
                while again:
                    began_s = loop.time()
                    again, *reply = await self._run_once(partition, call, *more)
                    await asyncio.sleep(2 * (loop.time() - began_s))
        sessions, topics, *names = reply
        return sessions, topics, list(zip(names[::2], names[1::2], strict=True))

    async def sizes(self, origin: str) -> list[tuple[int, int]]:
        """Return the counts of sessions and topics of an origin, by partition."""
        return await asyncio.gather(*map(self._size, self.partitions.all(origin)))

    async def _size(self, partition: Partition) -> tuple[int, int]:
        if not int(await self.client.call(partition.slot, (b"HGET", partition.meta, b"n"), write=False) or 0):
            return 0, 0  # so an origin with few topics costs few scripts
        sessions, topics, _ = await self._topics(partition, WHOLE, 0)
        return sessions, topics

    async def sessions(
        self, origin: str, topic: str, limit: int | None = None
    ) -> AsyncGenerator[list[ListedSession], None]:
        partition = self.partitions.of_topic(origin, topic)
        prefix = partition.listing_prefix(topic)
        stop = b"(" + prefix + b"\xff"
        left = sys.maxsize if limit is None else limit
        while left:
            max_items = min(left, LISTING_STEP)
            command = (b"ZRANGE", partition.listing, stop, b"[" + prefix, b"BYLEX", b"REV", b"LIMIT", 0, max_items)
            members = await self.client.call(partition.slot, command, write=False)
            steps = [
                [session for session in await self._listed(partition, [name[-16:] for name in members]) if session]
            ]
            left -= len(steps[0])
            if steps[0]:
                yield steps.pop()  # free the step: many clients can read slowly
            if len(members) < max_items:
                return
            stop = b"(" + members[-1]

    async def _listed(self, partition: Partition, codes: Sequence[bytes]) -> list[ListedSession | None]:
        """Return sessions as a listing shows them. None stands for a missing or answered one."""
        return await asyncio.gather(*(self._one_listed(partition, code) for code in codes))

    async def _one_listed(self, partition: Partition, code: bytes) -> ListedSession | None:
        last = 1
        while True:
            fields = records.chunk_fields(Side.OFFERER, 1, last)
            command = (b"HMGET", partition.session(code), b"h", b"e", b"k", b"o", *fields)
            result = records.unpack_listed(code, await self.client.call(partition.slot, command, write=False))
            if result is None or result[0].session.expires_ms <= self.client.read_ms:
                return None
            if result[1] // records.CHUNK <= last // records.CHUNK:
                return result[0]
            last = result[1]

    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        partition = self.partitions.of_topic(origin, topic)
        identity, serial, live, changes_ms = await self._run_for_topic("listing_state", partition, topic=topic.encode())
        self._expect(partition, topic, changes_ms)
        position = Position(identity.decode(), int(serial), live) if live else self.partitions.nowhere
        changed = live > 0 if since is None else position != since
        return ListingState(changed, position)

    # Events of a topic

    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        partition = self.partitions.of_topic(origin, topic)
        step = await self._step(partition, topic, 0, 0, 1)
        if since is not None:
            known = since.store == step.identity and since.listed <= since.event <= step.serial
            if (known and since.event >= step.forgotten) or since == self.partitions.nowhere:
                return since, True
        return Position(step.identity, step.serial, 0), False

    async def topic_step(self, origin: str, topic: str, position: Position) -> EventBatch:
        partition = self.partitions.of_topic(origin, topic)
        step = await self._step(partition, topic, position.event, position.listed, EVENTS_STEP)
        identity, serial, removals, refreshes, additions = step[:5]
        if identity != position.store:  # the topic was empty, or sessions can be lost
            return EventBatch([], Position(identity, serial, 0), more=True, reset=position.listed > 0)
        # Of two incomplete lists, the order is known up to the end of the shorter one.
        ends = [read[-1][:8] for read in (removals, refreshes) if len(read) == EVENTS_STEP]
        last = int.from_bytes(min(ends), "big") if ends else serial
        events = await self._events(partition, position, [*removals, *refreshes], last)
        if ends or refreshes:
            return EventBatch(events, Position(identity, last, position.listed), more=True)
        listed = position.listed
        codes = [name[8:] for name in additions]
        for name, listed_session in zip(additions, await self._listed(partition, codes), strict=True):
            if listed_session is not None:
                at = Position(identity, serial, listed_session.session.serial)
                events.append(Listed(at, listed_session))
            elif not await self.client.call_key(b"ZSCORE", partition.listing, partition.listing_prefix(topic) + name):
                # The session was removed since the script ran. The next step begins with its removal.
                return EventBatch(events, Position(identity, serial, listed), more=True)
            listed = int.from_bytes(name[:8], "big")  # also of an evicted session, whose entry expires
        if step.empty:
            return EventBatch(events, self.partitions.nowhere, more=False)
        more = len(additions) == EVENTS_STEP
        # Sessions up to here count as known, so that removed ones that the reader never got are not reported.
        return EventBatch(events, Position(identity, serial, listed if more else serial), more)

    async def _events(
        self, partition: Partition, position: Position, members: list[bytes], last: int
    ) -> list[Removed | Listed]:
        """Return the events of removals and refreshes after a position up to the serial `last`, in order."""
        known = sorted(
            (at, serial, member[16], member[17:])
            for member in members
            if (at := int.from_bytes(member[:8], "big")) <= last
            and (serial := int.from_bytes(member[8:16], "big")) <= position.listed
        )
        newest = {code: at for at, _, _, code in known}
        refreshed = [code for at, _, reason, code in known if not reason and newest[code] == at]
        found = dict(zip(refreshed, await self._listed(partition, refreshed), strict=True))
        events: list[Removed | Listed] = []
        for at, serial, reason, code in known:
            end = position._replace(event=at)
            if reason:
                events.append(Removed(end, code, Reason(reason)))
            elif newest[code] == at and (listed := found[code]) and listed.session.serial == serial:
                events.append(Listed(end, listed))  # otherwise its removal comes later
        return events

    async def _step(self, partition: Partition, topic: str, serial: int, listed: int, max_items: int) -> Step:
        known = {"departed_serial": serial, "listed_serial": listed, "max_items": max_items}
        reply = await self._run_for_topic("topic_step", partition, topic=topic.encode(), **known)
        identity, newest, removals, refreshes, additions, first, forgotten, history = reply
        self._expect(partition, topic, first)
        identity = self.partitions.identity_in_history(identity, history)
        return Step(identity, int(newest), removals, refreshes, additions, int(forgotten), empty=not first)

    # Expired sessions

    def _expect(self, partition: Partition, topic: str, expires: bytes) -> None:
        """Wake the watches of a topic when a session in it expires, because an expiry publishes no message."""
        channel = partition.topic_channel(topic)
        if not expires or not self.watches.watched(channel):
            return
        expires_ms = int(expires)
        scheduled = self._expiries.get(channel)
        if scheduled is not None:
            if scheduled[0] == expires_ms:
                return
            scheduled[1].cancel()
        wait_s = max(0, expires_ms - self.client.now_ms(partition.slot)) / 1000 + EXPIRY_DELAY_S
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, channel)
        self._expiries[channel] = expires_ms, timer

    def _expire(self, channel: bytes) -> None:
        del self._expiries[channel]
        self.watches.changed(channel)

    async def _run_for_topic(self, script: str, partition: Partition, **arguments: bytes | int) -> list[Any]:
        """Run a script of a topic, and return its reply.

        Each run first removes up to 50 expired sessions. While more are left, it answers nothing else.
        """
        call, must_repeat = scripts.call(script, removals_ms=self._timeout_ms, **arguments), 1
        while must_repeat:
            must_repeat, *reply = await self._run_once(partition, call)
        return reply

    async def _run_once(self, partition: Partition, call: Call, *more: bytes) -> list[Any]:
        """Run a script of topics, and report the sessions that it removed. Return the rest.

        Its first item says whether the script must run again.
        """
        again, expired, *reply = await self.client.run(partition.slot, partition.topic_keys, call, *more, write=False)
        self.report_expired(partition, expired)
        return [again, *reply]

    def report_expired(self, partition: Partition, expired: list[bytes]) -> None:
        """Count sessions, and report them to the observer.

        `expired` has code, topic and expiry in Unix milliseconds of the first one, then of the next one.
        """
        self.metrics.swept += len(expired) // 3
        if expired and self._observer is not None:
            for code, topic, expires in zip(*[iter(expired)] * 3, strict=True):
                self._observer("expired", partition.origin, code, topic.decode(), None, int(expires))
