"""The sessions on Redis or Valkey: what may be asked and changed, each under the origin that asks for it.

Every change is one script, atomic for the partition of its topic. Nothing is kept in the process but connections,
subscriptions and a few counts, so that any process answers as any other. The time is the nodes' own.
"""

import asyncio
import dataclasses
import heapq
import itertools
import math
import os
import re
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from typing import Any, Literal

from ...errors import AlreadyAnswered, OperatorError, OtherSession, SessionNotFound, TooMany, Unavailable
from ...metrics import Family, SessionMetrics
from ...session import (
    MAX_LEASES,
    MIN_HELD_MS,
    Arrival,
    Departure,
    ListedSession,
    ListingState,
    News,
    Position,
    Reason,
    SessionPosition,
    Side,
    TopicStep,
    content_code,
    make_uuid,
    owns,
)
from ...settings.settings import Settings
from .. import position_text
from ..quotas import UNLIMITED, Quotas
from ..watches import Watch, Watches
from . import records, scripts
from .checks import check_clocks, check_node
from .client import Client
from .connections import Access, Address
from .counts import OriginCounts
from .leases import Leases
from .metrics import RedisMetrics
from .nodes import Acknowledgement, Node
from .partitions import MAX_PARTITIONS, Partition, Partitions, key_slot
from .positions import TopicPosition, is_of, make_identity, nothing_of
from .topology import Topology
from .wakes import Wakes

LISTING_STEP = 50  # sessions of a listing that are read together
EVENTS_STEP = 50
KEYS_STEP = 1000  # keys among which some are found
TOPICS_DIRECT = 256  # topics before a page that are read rather than counted
GUESSES = 8  # of the beginning of a page, before the rest is halved
FULL_RETRY_S = 10
LOOK_AGAIN_S = 0.005  # after something should have expired: clocks are not read at the same instant
COUNTS_STEP = 8  # origins that are counted together
COUNTS_WORK_S = 0.05  # of counting, before a pause
COUNTS_PAUSES = 20  # how many times longer than the work the pauses are
ASIDE_S = 0.05  # for what a change does not depend on
PROBE_MS = 60_000
PROBES = 16_384  # among so many keys there is one for each primary, unless it has next to no slots
FORMAT = "1"


class RedisStore:
    """The sessions on Redis; see `Store` for its operations. Belongs to the event loop that runs.

    Args:
        addresses: of any nodes, or of Sentinels.
        sentinel: the name that the Sentinels know the primary by; empty without them.
        access: how to get in.
        sentinel_access: how to get in at the Sentinels.
        acknowledgement: when a write is acknowledged.
        prefix: what all keys and channels begin with.
        partitions: how many each origin has; always the same for a store.
        timeout_ms: how long a session lives, and its departure from a listing is remembered.
        codes: `random` or `content` (contract B16).
        quotas: how much there may be; of an origin somewhat more while several processes publish at once.
        hold_grace_ms: how long the held offers of a process that is gone wait for their holders.

    Attributes:
        metrics: what has become of the sessions, as far as this process has done it.
        process_id: see `Store`.
        redis_metrics: what it has done for that.
        topology: where everything is.
        wakes: what is subscribed.
        watches: what waits for a session or a topic.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        sentinel: str = "",
        access: Access | None = None,
        sentinel_access: Access | None = None,
        acknowledgement: Acknowledgement = Acknowledgement(),  # noqa: B008 (it never changes)
        prefix: str = "tornado-signal:",
        partitions: int = 16,
        timeout_ms: int,
        codes: Literal["random", "content"] = "random",
        quotas: Quotas = Quotas(),  # noqa: B008 (it never changes)
        hold_grace_ms: int = 5000,
    ) -> None:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ValueError(partitions)
        self.metrics = SessionMetrics()
        self.redis_metrics = RedisMetrics()
        self.watches = Watches()
        self.process_id = os.urandom(8)
        self.capacity_bytes = 0
        self.maintenance = None
        self.prefix = prefix
        self._access = access = access or Access()
        self._sentinel_access = sentinel_access or Access(timeout_s=access.timeout_s)
        self._acknowledgement = dataclasses.replace(acknowledgement)
        self.partitions = Partitions(prefix, partitions)
        self._timeout_ms = timeout_ms
        self._codes = codes
        self._quotas = quotas
        self.topology = Topology(
            addresses, sentinel, access, self._sentinel_access, self._acknowledgement, self.redis_metrics
        )
        self.client = Client(self.topology, access.timeout_s, self.redis_metrics)
        self.wakes = Wakes(self.topology, access, self.watches, self.redis_metrics)
        self._identity = self._nothing = ""
        self._expiring: dict[bytes, tuple[int, asyncio.TimerHandle]] = {}  # by channel, when something expires there
        self._counts = OriginCounts(self.partitions, self._sizes, quotas)
        self._registered: dict[str, int] = {}  # by origin, until when others know of it
        self._asides: set[asyncio.Task[None]] = set()
        self._settling = asyncio.Lock()
        self._leases = Leases(self.client, prefix, self.process_id, hold_grace_ms, timeout_ms, self.release)

    async def open(self) -> None:
        try:
            await self.topology.open()
            found = [await check_node(node, self._acknowledgement, self._access) for node in self.topology.primaries]
            self._acknowledgement.always = all(always for always, _ in found)
            self.capacity_bytes = sum(capacity_bytes for _, capacity_bytes in found)
            await self.client.open()
            check_clocks(self.topology.primaries)
            for node in self.topology.primaries:
                await asyncio.gather(*(node.writes.submit((b"SCRIPT", b"LOAD", each.text)) for each in scripts.ALL))
            await self._claim()
            self._leases.start()
        except Unavailable as error:
            await self.close()
            raise OperatorError(f"Redis cannot be used: {error.__cause__}") from error
        except OperatorError:
            await self.close()
            raise

    async def open_to_read(self) -> None:
        """Make ready to look at what is there, whatever the nodes are like; nothing is written.

        Raises:
            OperatorError: they cannot be reached, or there is nothing.
        """
        await self.topology.open()
        await self.client.open()
        _, partitions, _ = await self._kind()
        self.partitions = Partitions(self.prefix, int(partitions))

    async def _kind(self) -> tuple[str, ...]:
        """Format, partitions and identity of the store."""
        key = f"{self.prefix}store".encode()
        found = await self.client.call(key_slot(key), (b"HMGET", key, "format", "partitions", "identity"), write=False)
        if None in found:
            raise OperatorError(f"no sessions have been kept there under the prefix {self.prefix}; set --redis-prefix")
        if found[0].decode() != FORMAT:
            raise OperatorError(
                f"the sessions on Redis have format {found[0].decode()}, which this version does not know"
            )
        return tuple(each.decode() for each in found)

    async def _claim(self) -> None:
        """Read what kind of store it is, or say so first."""
        key = f"{self.prefix}store".encode()
        slot = key_slot(key)
        for name, value in (
            ("format", FORMAT),
            ("partitions", self.partitions.count),
            ("identity", os.urandom(6).hex()),
        ):
            await self.client.call(slot, (b"HSETNX", key, name, value), write=True)
        _, partitions, identity = await self._kind()
        if int(partitions) != self.partitions.count:
            raise OperatorError(
                f"the sessions on Redis lie in {partitions} partitions; set --redis-partitions to {partitions}, "
                "or another --redis-prefix"
            )
        self._identity = identity
        self._nothing = nothing_of(identity)

    async def close(self) -> None:
        for _, timer in self._expiring.values():
            timer.cancel()
        self._expiring.clear()
        await self._counts.close()
        await self._leases.close()
        for task in self._asides:
            task.cancel()
        await self.client.close()
        await self.wakes.close()
        await self.topology.close()

    def now_ms(self, watch: Watch | None = None) -> int:
        return self.client.now_ms(None if watch is None else key_slot(watch.key))

    def allow(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._counts.allow(quotas)

    def metric_families(self) -> Iterator[Family]:
        yield Family("gauge", "store_available", "Whether all primaries answer.", self.available)
        yield from self.redis_metrics.families()

    def use_passwords(self, password: str | None, sentinel_password: str | None) -> None:
        self._access.password = password
        self._sentinel_access.password = sentinel_password

    @property
    def available(self) -> bool:
        return self.topology.available

    async def probe(self) -> None:
        await asyncio.gather(*(self._probe(node) for node in self.topology.primaries))

    async def _probe(self, node: Node) -> None:
        """Write and read a key that a primary has."""
        for number in range(PROBES):
            key = f"{self.prefix}{{{number:x}}}:probe".encode()
            slot = key_slot(key)
            if self.topology.node(slot) is node:
                await self.client.call(slot, (b"SET", key, b"", b"PX", PROBE_MS), write=True)
                if await self.client.call(slot, (b"EXISTS", key), write=False) != 1:
                    raise Unavailable("Redis at {}:{}: what is written is not there".format(*node.address))
                return

    async def counts(self) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        sessions = topics = 0
        began_s = loop.time()
        origins = await self.origins()
        for first in range(0, len(origins), COUNTS_STEP):
            # An origin costs one script for each partition, and one address can publish in thousands of origins.
            worked_s = loop.time() - began_s
            if worked_s > COUNTS_WORK_S:
                await asyncio.sleep(COUNTS_PAUSES * worked_s)
                began_s = loop.time()
            for sizes in await asyncio.gather(*map(self._sizes, origins[first : first + COUNTS_STEP])):
                sessions += sum(size[0] for size in sizes)
                topics += sum(size[1] for size in sizes)
        return sessions, topics

    # Publishing and connecting

    async def create(
        self,
        origin: str,
        topic: str,
        info: str,
        offer: str,
        *,
        ttl_ms: int | None = None,
        secret_hash: bytes = b"",
        lease: bytes = b"",
    ) -> tuple[bytes, int]:
        by_content = self._codes == "content"
        code = content_code(origin, [topic], offer) if by_content else make_uuid(os.urandom(16), 4)
        code = self.partitions.place(code, topic)
        partition = self.partitions.of_topic(origin, topic)
        quotas = self._quotas
        refreshed = False
        while True:
            others = self._counts.others(origin, partition)
            state, expires, sessions, topics = await self.client.run(
                partition.slot,
                scripts.CREATE,
                partition.keys(code),
                code,
                topic.encode(),
                records.pack_fixed(secret_hash, topic, info),
                offer.encode(),
                ttl_ms or self._timeout_ms,
                self._timeout_ms,
                secret_hash,
                quotas.sessions_per_topic,
                quotas.sessions_per_origin - others[0],
                quotas.topics_per_origin - others[1],
                make_identity(self._identity),
                int(by_content),
                lease,
                MIN_HELD_MS,
                MAX_LEASES,
            )
            reading = self._counts.note(origin, partition, sessions, topics)
            if reading is not None:
                await asyncio.wait((reading,), timeout=ASIDE_S)
            if state in (b"full", b"full topics") and not refreshed:
                refreshed = await self._counts.refresh(origin, others)
                if refreshed:
                    continue
            if state != b"again":
                break
        if state == b"not found":
            raise SessionNotFound
        if state.startswith(b"full"):
            what = {b"full": "sessions of an origin", b"full topic": "sessions of a topic"}
            raise TooMany(what.get(state, "topics of an origin"), FULL_RETRY_S)
        self.metrics.created += state == b"created"
        await self._register(origin, int(expires))
        if lease:
            await self._aside(self._leases.note(origin, code, int(expires)))
        return code, int(expires)

    async def _aside(self, work: Coroutine[None, None, None]) -> None:
        """Do what a change does not depend on; it is not waited for while a node that it needs is away."""
        task = asyncio.create_task(work)
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)
        await asyncio.wait((task,), timeout=ASIDE_S)

    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        partition = self.partitions.of_code(origin, code)
        state, waited_ms = await self.client.run(
            partition.slot,
            scripts.ANSWER,
            partition.keys(code),
            code,
            answer.encode(),
            secret_hash,
            self._timeout_ms,
        )
        if state == b"not found":
            raise SessionNotFound
        if state == b"other":
            raise AlreadyAnswered
        if state == b"answered":
            self.metrics.offers_waited.observe(max(0, waited_ms) / 1000)

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        partition = self.partitions.of_code(origin, code)
        state = await self.client.run(
            partition.slot,
            scripts.CANDIDATES,
            partition.keys(code)[:3],
            records.NAMES[side],
            secret_hash,
            os.urandom(8),
            self._quotas.candidates,
            self._quotas.side_bytes,
            *(text.encode() for text in candidates),
        )
        if state == b"not found":
            raise SessionNotFound
        if state != b"added":
            what = "candidates" if state == b"too many" else "bytes"
            raise TooMany(f"{what} of a session", self._timeout_ms // 1000 or 1)

    async def read(
        self,
        origin: str,
        code: bytes,
        reader: Side,
        *,
        since: SessionPosition | None = None,
        secret_hash: bytes = b"",
    ) -> News:
        partition = self.partitions.of_code(origin, code)
        key = partition.session(code)
        await self._subscribed(key)
        side = reader.other
        known = since.number if since else 0
        description = b"o" if side is Side.OFFERER else b"a"
        last = known  # of the numbers that are asked for
        while True:
            fields = records.chunk_fields(side, known + 1, last + records.CHUNK)
            command = (b"HMGET", key, b"h", b"k", b"e", description, *fields)
            fixed, kept, *rest = await self.client.call(partition.slot, command, write=False)
            if fixed is None or int(rest[0]) <= self.client.read_ms:
                raise SessionNotFound
            serial, offerer_hash = records.unpack_secret(fixed)
            sent = records.unpack_sent(kept)
            if not owns(offerer_hash if reader is Side.OFFERER else sent.secret_hash, secret_hash):
                raise SessionNotFound
            if since is not None and since.serial != serial:
                raise OtherSession
            if sent.last[side] < (last // records.CHUNK + 2) * records.CHUNK:
                return records.unpack_news(side, rest, sent, serial, known)
            last = sent.last[side]

    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        partition = self.partitions.of_code(origin, code)
        state = await self.client.run(
            partition.slot,
            scripts.WITHDRAW,
            partition.keys(code),
            code,
            records.NAMES[side],
            secret_hash,
            os.urandom(8),
            self._timeout_ms,
        )
        if state == b"not found":
            raise SessionNotFound
        self.metrics.withdrawn += 1

    async def refresh(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> int:
        partition = self.partitions.of_code(origin, code)
        expires = await self.client.run(
            partition.slot,
            scripts.REFRESH,
            partition.keys(code),
            code,
            records.NAMES[side],
            secret_hash,
            self._timeout_ms,
        )
        if expires is None:
            raise SessionNotFound
        await self._register(origin, int(expires))
        return int(expires)

    # Holding offers

    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        return await self._hold(origin, code, scripts.HOLD, secret_hash, lease, MIN_HELD_MS)

    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        return await self._hold(origin, code, scripts.RENEW, lease)

    async def _hold(self, origin: str, code: bytes, script: scripts.Script, *arguments: bytes | int) -> int:
        partition = self.partitions.of_code(origin, code)
        keys = partition.keys(code)
        expires = await self.client.run(partition.slot, script, keys, code, *arguments, self._timeout_ms)
        if expires is None:
            raise SessionNotFound
        await self._register(origin, int(expires))
        await self._aside(self._leases.note(origin, code, int(expires)))
        return int(expires)

    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        partition = self.partitions.of_code(origin, code)
        arguments = (code, lease, os.urandom(8), self._timeout_ms)
        state = await self.client.run(partition.slot, scripts.RELEASE, partition.keys(code), *arguments)
        if state == b"not found":
            raise SessionNotFound
        self.metrics.withdrawn += state == b"withdrawn"

    # Discovery

    async def topics(self, origin: str, offset: int, limit: int) -> tuple[list[tuple[str, int]], int]:
        partitions = self.partitions.all(origin)
        begins, ends = [0] * len(partitions), [0] * len(partitions)
        if offset > TOPICS_DIRECT:
            ends = [topics for _, topics in await self._sizes(origin)]
            if offset >= sum(ends):
                return [], sum(ends)
            begins = await self._find_rank(partitions, ends, offset)
        wanted = offset + limit - sum(begins)
        found: list[list[tuple[bytes, int]]] = [[] for _ in partitions]
        whole = [False] * len(partitions)
        many = wanted // len(partitions) + 3 * math.isqrt(wanted // len(partitions) + 1) + 4
        while True:
            replies = await asyncio.gather(
                *(
                    self._topics(each, begin + len(some), many)
                    for each, begin, some, done in zip(partitions, begins, found, whole, strict=True)
                    if not done
                )
            )
            left = iter(replies)
            for at, done in enumerate(whole):
                if not done:
                    _, ends[at], some = next(left)
                    found[at] += some
                    whole[at] = len(some) < many
            # What is beyond the last of a partition that is not read to its end is not known.
            bound = min((some[-1][0] for some, done in zip(found, whole, strict=True) if not done), default=None)
            merged = list(heapq.merge(*found))
            known = len(merged) if bound is None else sum(topic <= bound for topic, _ in merged)
            if bound is None or known >= wanted:
                page = merged[offset - sum(begins) :][:limit]
                return [(topic.decode(), count) for topic, count in page], sum(ends)
            many *= 2

    async def _find_rank(self, partitions: Sequence[Partition], ends: Sequence[int], offset: int) -> list[int]:
        """Where to begin in each partition, so that no more than `offset` topics come before, and not many fewer.

        Topics are spread evenly: the rank of a topic in one partition tells about how many topics precede it in all.
        """
        low, high = [0] * len(partitions), list(ends)
        for step in itertools.count():
            left, width = offset - sum(low), sum(high) - sum(low)
            sizes = [above - below for below, above in zip(low, high, strict=True)]
            at = sizes.index(max(sizes))
            if left <= TOPICS_DIRECT // 2 or width <= 0:
                break
            # As far below the page as a guess is usually wrong.
            wanted = left - math.sqrt(left * len(partitions)) if step < GUESSES else width / 2
            middle = low[at] + int(sizes[at] * wanted / width)
            if middle <= low[at]:
                break
            topic = await self.client.call(
                partitions[at].slot, (b"ZRANGE", partitions[at].topics, middle, middle), write=False
            )
            if not topic:
                break
            ranks = await asyncio.gather(
                *(
                    self.client.call(each.slot, (b"ZLEXCOUNT", each.topics, b"-", b"(" + topic[0]), write=False)
                    for each in partitions
                )
            )
            if sum(map(max, zip(low, ranks, strict=True))) <= offset:
                low = [max(pair) for pair in zip(low, ranks, strict=True)]
            else:
                high = [min(pair) for pair in zip(high, ranks, strict=True)]
        return low

    async def _topics(self, partition: Partition, first: int, many: int) -> tuple[int, int, list[tuple[bytes, int]]]:
        """Counts of sessions and of topics of a partition, and some of its topics with theirs."""
        arguments = (partition.slot, scripts.TOPICS, partition.topic_keys, first, many, self._timeout_ms)
        again, *found = await self.client.run(*arguments, write=False)
        if again:
            # Many have expired: a few at a time, one partition after the other, and twice that time for others between.
            loop = asyncio.get_running_loop()
            async with self._settling:
                while again:
                    began_s = loop.time()
                    again, *found = await self.client.run(*arguments, write=False)
                    await asyncio.sleep(2 * (loop.time() - began_s))
        sessions, topics, _, *names = found
        return sessions, topics, list(zip(names[::2], names[1::2], strict=True))

    async def _sizes(self, origin: str) -> list[tuple[int, int]]:
        """Counts of sessions and topics of an origin, by partition."""
        found = await asyncio.gather(*(self._topics(each, 0, 0) for each in self.partitions.all(origin)))
        return [(sessions, topics) for sessions, topics, _ in found]

    async def sessions(
        self, origin: str, topic: str, limit: int | None = None
    ) -> AsyncGenerator[list[ListedSession], None]:
        partition = self.partitions.of_topic(origin, topic)
        name = topic.encode()
        prefix = len(name).to_bytes(2, "big") + name
        stop = b"(" + prefix + b"\xff"
        left = UNLIMITED if limit is None else limit
        while left:
            most = min(left, LISTING_STEP)
            command = (b"ZRANGE", partition.listing, stop, b"[" + prefix, b"BYLEX", b"REV", b"LIMIT", 0, most)
            members = await self.client.call(partition.slot, command, write=False)
            step = [each for each in await self._listed(partition, [each[-16:] for each in members]) if each]
            left -= len(step)
            if step:
                steps = [step]
                del step  # a reader may be slow, and many: what it has got is not kept here
                yield steps.pop()
            if len(members) < most:
                return
            stop = b"(" + members[-1]

    async def _listed(self, partition: Partition, codes: Sequence[bytes]) -> list[ListedSession | None]:
        """Sessions as a listing has them; None for those that are not there or have been answered."""
        return await asyncio.gather(*(self._one_listed(partition, code) for code in codes))

    async def _one_listed(self, partition: Partition, code: bytes) -> ListedSession | None:
        last = 1
        while True:
            fields = records.chunk_fields(Side.OFFERER, 1, last)
            command = (b"HMGET", partition.session(code), b"h", b"e", b"k", b"o", *fields)
            found = records.unpack_listed(code, await self.client.call(partition.slot, command, write=False))
            if found is None or found[0].session.expires_ms <= self.client.read_ms:
                return None
            if found[1] // records.CHUNK <= last // records.CHUNK:
                return found[0]
            last = found[1]

    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        partition = self.partitions.of_topic(origin, topic)
        await self._subscribed(partition.topic_channel(topic))
        again = 1
        while again:
            again, *found = await self.client.run(
                partition.slot,
                scripts.LISTING_STATE,
                partition.topic_keys,
                topic.encode(),
                self._timeout_ms,
                write=False,
            )
        identity, serial, live, changes_ms = found
        self._expects(partition.topic_channel(topic), changes_ms)
        position = TopicPosition(identity.decode() or self._nothing, int(serial), live)
        if not live:
            position = TopicPosition(self._nothing, 0, 0)
        changed = live > 0 if since is None else position != since
        return ListingState(changed, position, int(changes_ms) if changes_ms else None)

    # Events of a topic

    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        partition = self.partitions.of_topic(origin, topic)
        await self._subscribed(partition.topic_channel(topic))
        identity, serial, _, _ = await self._step(partition, topic, 0, 0, 1)
        if since is not None:
            assert isinstance(since, TopicPosition)
            known = since.identity == identity and since.listed <= since.serial <= serial
            if known or since == TopicPosition(self._nothing, 0, 0):
                return since, True
        return TopicPosition(identity, serial, 0), False

    async def topic_step(self, origin: str, topic: str, position: Position) -> TopicStep:
        assert isinstance(position, TopicPosition)
        partition = self.partitions.of_topic(origin, topic)
        await self._subscribed(partition.topic_channel(topic))
        identity, serial, left, come = await self._step(partition, topic, position.serial, position.listed, EVENTS_STEP)
        if identity != position.identity:  # nothing was there, or all of it was lost
            position = TopicPosition(identity, 0, 0)
            identity, serial, left, come = await self._step(partition, topic, 0, 0, EVENTS_STEP)
            left = []
        departures = []
        for member in left:
            at, of = int.from_bytes(member[:8], "big"), int.from_bytes(member[8:16], "big")
            if of <= position.listed:
                departed = TopicPosition(identity, at, position.listed)
                departures.append(Departure(departed, member[17:], Reason(member[16])))
        if len(left) == EVENTS_STEP:
            end = TopicPosition(identity, int.from_bytes(left[-1][:8], "big"), position.listed)
            return TopicStep(departures, [], end, more=True)
        arrivals: list[Arrival] = []
        listed = position.listed
        for member, found in zip(come, await self._listed(partition, [each[8:] for each in come]), strict=True):
            if found is None:
                # It has left meanwhile. The next step begins with that, without this one.
                await self._heal(partition, topic, member)
                return TopicStep(departures, arrivals, TopicPosition(identity, serial, listed), more=True)
            listed = found.session.serial
            arrivals.append(Arrival(TopicPosition(identity, serial, listed), found))
        more = len(come) == EVENTS_STEP
        # A session that has left before a reader had it is not to be told of: those up to here count as known.
        return TopicStep(departures, arrivals, TopicPosition(identity, serial, listed if more else serial), more)

    async def _step(
        self, partition: Partition, topic: str, serial: int, listed: int, most: int
    ) -> tuple[str, int, list[bytes], list[bytes]]:
        """Identity and newest serial of a partition, departures behind a serial, and listed sessions behind another."""
        again = 1
        while again:
            again, *found = await self.client.run(
                partition.slot,
                scripts.TOPIC_STEP,
                partition.topic_keys,
                topic.encode(),
                serial,
                listed,
                most,
                self._timeout_ms,
                write=False,
            )
        identity, newest, left, come, first = found
        self._expects(partition.topic_channel(topic), first)
        return identity.decode() or self._nothing, int(newest), left, come

    async def _heal(self, partition: Partition, topic: str, member: bytes) -> None:
        serial, code = int.from_bytes(member[:8], "big"), member[8:]
        arguments = (code, topic.encode(), serial, self._timeout_ms)
        await self.client.run(partition.slot, scripts.HEAL, partition.keys(code), *arguments)

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> Watch:
        partition = self.partitions.of_code(origin, code)
        return self._watch(partition.session(code), partition.slot)

    def watch_topic(self, origin: str, topic: str) -> Watch:
        partition = self.partitions.of_topic(origin, topic)
        return self._watch(partition.topic_channel(topic), partition.slot)

    def end_watches(self) -> None:
        self.watches.end()

    def _watch(self, channel: bytes, slot: int) -> Watch:
        self.wakes.want(channel, slot)
        return self.watches.watch(channel)

    def _expects(self, channel: bytes, expires: bytes) -> None:
        """Have what watches a topic look at it when something expires there: no other message tells of that."""
        if not expires or not self.watches.watched(channel):
            return
        expires_ms = int(expires)
        known = self._expiring.get(channel)
        if known is not None:
            if known[0] == expires_ms:
                return
            known[1].cancel()
        wait_s = max(0, expires_ms - self.client.now_ms(key_slot(channel))) / 1000 + LOOK_AGAIN_S
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, channel)
        self._expiring[channel] = expires_ms, timer

    def _expire(self, channel: bytes) -> None:
        del self._expiring[channel]
        self.watches.changed(channel)

    def wake_expired(self) -> None:
        """Have what watches topics look at them now."""
        for channel, (_, timer) in list(self._expiring.items()):
            timer.cancel()
            self._expire(channel)

    async def _subscribed(self, channel: bytes) -> None:
        """Wait until a channel that is watched is subscribed: what changes after that is told."""
        pending = self.wakes.pending.get(channel)
        if pending is not None:
            try:
                async with asyncio.timeout(self._access.timeout_s):
                    await asyncio.shield(pending)
            except TimeoutError as error:
                raise Unavailable("Redis: no subscription") from error

    # Positions as text

    def format_position(self, position: Position | SessionPosition) -> str:
        if isinstance(position, TopicPosition):
            return position_text.format_numbers(*position)
        assert isinstance(position, SessionPosition)
        return position_text.format_numbers(self._identity, *position)

    def parse_position(self, text: str) -> Position | None:
        identity = text.partition(".")[0]
        numbers = position_text.parse_numbers(identity, text)
        return TopicPosition(identity, *numbers) if numbers and is_of(identity, self._identity) else None

    def parse_session_position(self, text: str) -> SessionPosition | None:
        numbers = position_text.parse_numbers(self._identity, text)
        return None if numbers is None else SessionPosition(*numbers)

    # Which origins there are

    def _registry(self, number: int) -> tuple[bytes, int]:
        key = f"{self.prefix}{{{number:x}}}:origins".encode()
        return key, key_slot(key)

    async def _register(self, origin: str, until_ms: int) -> None:
        """Have everybody know of an origin for as long as it has sessions; seldom, since it is noted for longer."""
        if self._registered.get(origin, 0) < until_ms:
            await self._aside(self._note(origin, until_ms))

    async def _note(self, origin: str, until_ms: int) -> None:
        noted_ms = self._registered[origin] = until_ms + self._timeout_ms
        key, slot = self._registry(self.partitions.number(origin))
        try:
            await self.client.call(slot, (b"ZREMRANGEBYSCORE", key, b"-inf", self.now_ms()), write=False)
            await self.client.call(slot, (b"ZADD", key, b"GT", noted_ms, origin.encode()), write=True)
        except Unavailable:  # the next one that is published there tries again
            self._registered.pop(origin, None)
        if len(self._registered) > 10_000:
            del self._registered[next(iter(self._registered))]

    async def origins(self) -> list[str]:
        """The origins that may have sessions."""
        found: list[Any] = []
        for number in range(self.partitions.count):
            key, slot = self._registry(number)
            found += await self.client.call(slot, (b"ZRANGE", key, self.now_ms(), b"+inf", b"BYSCORE"), write=False)
        return [origin.decode() for origin in found]

    # Looking at everything, for the operator

    async def all_keys(self) -> AsyncGenerator[list[bytes], None]:
        """All keys, in steps; perhaps also those that come and go meanwhile."""
        pattern = re.sub(r"([\[\]*?\\])", r"\\\1", self.prefix) + "*"
        for node in self.topology.primaries:
            cursor = b"0"
            while True:
                reply = await node.reads.submit((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", KEYS_STEP))
                if isinstance(reply, Exception):
                    raise Unavailable("Redis at {}:{}: {}".format(*node.address, reply))
                cursor, keys = reply
                yield keys
                if cursor == b"0":
                    break


def make_redis_store(
    settings: Settings, quotas: Quotas, password: str | None, sentinel_password: str | None
) -> RedisStore:
    """Return the store as configured, with the passwords for Redis and for its Sentinels."""
    ca = str(settings.redis_ca) if settings.redis_ca else None
    timeout_s = settings.redis_timeout_ms / 1000
    return RedisStore(
        settings.redis_nodes,
        sentinel=settings.redis_sentinel,
        access=Access(settings.redis_user or None, password, settings.redis_tls, ca, timeout_s),
        sentinel_access=Access(
            settings.redis_sentinel_user or None, sentinel_password, settings.redis_tls, ca, timeout_s
        ),
        acknowledgement=Acknowledgement(settings.durability, settings.redis_replicas),
        prefix=settings.redis_prefix,
        partitions=settings.redis_partitions,
        timeout_ms=settings.session_timeout_ms,
        codes=settings.codes,
        quotas=quotas,
        hold_grace_ms=settings.hold_grace_ms,
    )
