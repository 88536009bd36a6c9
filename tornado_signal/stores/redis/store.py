"""The store on Redis or Valkey.

Every change is one script, atomic for the partition of its topic. A process keeps only connections, subscriptions
and a few counts, so all processes respond alike. The time is that of the nodes.
"""

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from ...errors import AlreadyAnswered, OperatorError, SessionNotFound, StalePosition, TooMany, Unavailable
from ...metrics import Family
from ...redis.channels import ChangeFeed
from ...redis.client import RedisClient
from ...redis.connections import Credentials
from ...redis.nodes import Acknowledgement, Node
from ...redis.slots import key_slot
from ...session import (
    MIN_HELD_MS,
    SIDE_BODIES,
    Observer,
    Outcome,
    Refreshed,
    SessionPosition,
    SessionUpdate,
    Side,
    content_code,
    make_uuid,
    owns,
)
from ...settings.settings import Settings
from ...system.loop import guarded, in_slices
from ...system.secrets import redis_passwords
from ..watches import Watch
from . import records, scripts
from .checks import check_clocks, check_node
from .counts import Counts
from .discovery import Discovery
from .leases import Leases
from .partitions import Partition
from .probes import Probes

log = logging.getLogger(__name__)

FULL_RETRY_S = 10
BACKGROUND_S = 0.05  # time limit for work that a change does not depend on
WAKE_STEP = 500  # watches that are woken per event-loop iteration, after data was lost
FORMAT = "1"


class RedisStore(Discovery):
    """A store on Redis, on the running event loop.

    `LevelDBStore` describes its operations, `RedisClient` its connections. Concurrent processes can slightly exceed the
    quotas of an origin. The held offers of a lost process wait `hold_grace_ms` for their holders.
    """

    def __init__(self, settings: Settings) -> None:
        password, sentinel_password = redis_passwords(settings)
        ca = str(settings.redis_ca) if settings.redis_ca else None
        tls, timeout_s = settings.redis_tls, settings.redis_timeout_ms / 1000
        client = RedisClient(
            settings.redis_nodes,
            sentinel=settings.redis_sentinel,
            access=Credentials(settings.redis_user or None, password, tls, ca, timeout_s),
            sentinel_access=Credentials(settings.redis_sentinel_user or None, sentinel_password, tls, ca, timeout_s),
            acknowledgement=Acknowledgement(settings.durability, settings.redis_replicas),
            prefix=settings.redis_prefix,
        )
        super().__init__(client, settings)
        self.end_watches, self.knows = self.watches.end, self.partitions.covers
        self.topology, self.process_id = client.topology, client.process_id
        self.capacity_bytes = 0
        self._settings = settings
        self.change_feed = ChangeFeed(client, self.watches.watched, self.watches.changed)
        self.secret = b""
        self.on_lost: Callable[[], object] = lambda: None
        self._counts = counts = Counts(client, self.partitions, self.sizes, settings)
        self.counts, self.largest_origins, self.origins = counts.total, counts.largest, counts.origins
        self._background: set[asyncio.Task[None]] = set()
        self._probes = Probes(client, self._on_lost)
        self.probe = self._probes.probe
        self._leases = Leases(client, settings, self.release)

    async def open(self) -> None:
        try:
            await self.topology.open()
            checks = [await check_node(self.client, node) for node in self.topology.primaries]
            self.topology.acknowledgement.always = all(always for always, _ in checks)
            self.capacity_bytes = sum(capacity_bytes for _, capacity_bytes in checks)
            await self.client.open()
            check_clocks(self.topology.primaries)
            for node in self.topology.primaries:
                await asyncio.gather(
                    *(node.writes.submit((b"SCRIPT", b"LOAD", script.text)) for script in scripts.SCRIPTS.values())
                )
            await self._claim()
            self._leases.start()
            await self._probes.start()
        except Unavailable as error:
            await self.close()
            raise OperatorError(f"Redis cannot be used: {error.__cause__}") from error
        except OperatorError:
            await self.close()
            raise

    async def open_to_read(self) -> None:
        """Prepare for reading an existing store, whatever the settings of the nodes. Write nothing."""
        await self.topology.open()
        await self.client.open()
        self.partitions.count, _ = await self._partitions_and_identity()

    async def _partitions_and_identity(self) -> tuple[int, str]:
        """Return both of the store. Raise OperatorError without a store, or for one of another format."""
        key = self.client.key("store")
        fields = await self.client.call_key(b"HMGET", key, "format", "partitions", "identity")
        if None in fields:
            raise OperatorError(f"Redis holds no store under the prefix {self.client.prefix}; set --redis-prefix")
        if fields[0].decode() != FORMAT:
            raise OperatorError(
                f"the sessions on Redis have format {fields[0].decode()}, which this version does not know"
            )
        return int(fields[1]), fields[2].decode()

    async def _claim(self) -> None:
        """Read format and partitions of the store, or write them to a new one."""
        key = self.client.key("store")
        for name, value in (
            ("format", FORMAT),
            ("partitions", self.partitions.count),
            ("identity", os.urandom(6).hex()),
            ("secret", os.urandom(32)),
        ):
            await self.client.call_key(b"HSETNX", key, name, value, write=True)
        partitions, identity = await self._partitions_and_identity()
        (self.secret,) = await self.client.call_key(b"HMGET", key, "secret")
        if partitions != self.partitions.count:
            raise OperatorError(
                f"the sessions on Redis lie in {partitions} partitions; set --redis-partitions to {partitions}, "
                "or another --redis-prefix"
            )
        self.partitions.identity = identity

    async def close(self) -> None:
        for _, timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()
        await self._probes.stop()
        await self._counts.close()
        await self._leases.close()
        for task in self._background:
            task.cancel()
        await self.client.close()
        await self.change_feed.close()
        await self.topology.close()

    def now_ms(self, watch: Watch | None = None) -> int:
        return self.client.now_ms(None if watch is None else key_slot(watch.key))

    def use(self, settings: Settings) -> None:
        self._settings = settings
        self._counts.use(settings)

    def metric_families(self) -> Iterator[Family]:
        yield Family("gauge", "store_available", "Whether all primaries can be written and read.", self.available)
        yield from self.client.metrics.families()

    def observe(self, observer: Observer | None) -> None:
        self._observer = observer and functools.partial(guarded, observer)

    def _report(self, outcome: Outcome, origin: str, code: bytes, known: Sequence[bytes]) -> None:
        """Report an event with the topic, the creation and the expiry if the script has returned them."""
        if self._observer is not None:
            topic, created_ms, expires_ms = (known[0].decode(), int(known[1]), int(known[2])) if known else (None,) * 3
            self._observer(outcome, origin, code, topic, created_ms, expires_ms)

    @property
    def available(self) -> bool:
        return self.topology.available and not self._probes.problem

    @property
    def full(self) -> str:
        return "redis" if self.client.memory_full else ""

    async def _on_lost(self, node: Node) -> None:
        """Handle that a primary has lost its data. Waiting clients are woken, and read that their sessions are gone."""
        log.error("Redis at %s:%d has lost its data, and the sessions in it; clients publish them again", *node.address)
        try:
            await self._claim()
        except OperatorError as error:
            log.error("the store on Redis is not the one of before: %s", error)
        in_slices(self.watches.keys(), self.watches.changed, WAKE_STEP)
        guarded(self.on_lost)

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
        by_content = self._settings.codes == "content"
        code = content_code(origin, [topic], offer) if by_content else make_uuid(os.urandom(16), 4)
        code = self.partitions.place(code, topic)
        partition = self.partitions.of_topic(origin, topic)
        refreshed = False
        while True:
            others = self._counts.sessions_elsewhere(origin, partition)
            state, expires, sessions, expired = await self._run(
                "create",
                partition,
                code,
                topic=topic.encode(),
                head=records.pack_fixed(secret_hash, topic, info),
                offer=offer.encode(),
                lifetime_ms=ttl_ms or self._timeout_ms,
                secret_hash=secret_hash,
                max_sessions=self._settings.max_sessions_per_origin - others,
                identity=self.partitions.make_identity(),
                by_content=int(by_content),
                lease=lease,
            )
            self.report_expired(partition, expired)
            reading = self._counts.record_size(origin, partition, sessions)
            if reading is not None:
                await asyncio.wait((reading,), timeout=BACKGROUND_S)
            if state == b"full" and others and not refreshed:
                refreshed = True
                await self._counts.refresh(origin)
            elif state != b"again":
                break
        if state == b"full":
            raise TooMany("sessions of an origin", FULL_RETRY_S)
        if state == b"created":
            self.metrics.created += 1
            if self._observer is not None:
                lifetime_ms = max(ttl_ms or self._timeout_ms, MIN_HELD_MS if lease else 0)
                self._observer("created", origin, code, topic, int(expires) - lifetime_ms, int(expires))
        await self._register(origin, int(expires))
        if lease:
            await self._in_background(self._leases.record(origin, code, int(expires)))
        return code, int(expires)

    async def _run(self, script: str, partition: Partition, code: bytes, **arguments: bytes | str | int) -> list[Any]:
        """Run a script for a session. Raise SessionNotFound if it finds none."""
        call = scripts.call(script, code=code, removals_ms=self._timeout_ms, **arguments)
        reply = await self.client.run(partition.slot, partition.keys(code), call)
        if reply is None or reply[0] == b"not found":
            raise SessionNotFound
        return list(reply)

    async def _in_background(self, work: Coroutine[None, None, None]) -> None:
        """Run work that the change does not depend on. Wait at most BACKGROUND_S for it."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        await asyncio.wait((task,), timeout=BACKGROUND_S)

    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        partition, token = self.partitions.of_code(origin, code), os.urandom(8)
        state, *known = await self._run(
            "answer", partition, code, answer=answer.encode(), secret_hash=secret_hash, token=token
        )
        if state == b"other":
            raise AlreadyAnswered
        if state == b"answered":
            self.metrics.offers_waited.observe(max(0, known.pop(0)) / 1000)
            self._report("answered", origin, code, known)

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        partition = self.partitions.of_code(origin, code)
        call = scripts.call(
            "add_candidates",
            side=records.NAMES[side],
            secret_hash=secret_hash,
            token=os.urandom(8),
            max_candidates=self._settings.max_candidates,
            max_bytes=SIDE_BODIES * self._settings.max_body_bytes,
        )
        texts = map(str.encode, candidates)
        state = await self.client.run(partition.slot, partition.keys(code)[:3], call, *texts)
        if state == b"not found":
            raise SessionNotFound
        if state != b"added":
            what = "candidates" if state == b"too many" else "bytes"
            raise TooMany(f"{what} of a session", self._timeout_ms // 1000 or 1)

    async def read(
        self, origin: str, code: bytes, reader: Side, *, since: SessionPosition | None = None, secret_hash: bytes = b""
    ) -> SessionUpdate:
        partition = self.partitions.of_code(origin, code)
        key = partition.session(code)
        side = reader.other
        number = since.number if since else 0
        last = number  # the last of the requested numbers
        while True:
            fields = records.chunk_fields(side, number + 1, last + records.CHUNK)
            command = (b"HMGET", key, b"h", b"k", b"e", records.NAMES[side], *fields)
            fixed, state, *rest = await self.client.call(partition.slot, command, write=False)
            if fixed is None or int(rest[0]) <= self.client.read_ms:
                raise SessionNotFound
            serial, offerer_hash = records.unpack_secret(fixed)
            sent = records.unpack_sent(state)
            if not owns(offerer_hash if reader is Side.OFFERER else sent.secret_hash, secret_hash):
                raise SessionNotFound
            if since is not None and since.serial != serial:
                raise StalePosition
            if sent.last[side] < (last // records.CHUNK + 2) * records.CHUNK:
                return records.unpack_update(side, rest, sent, serial, number)
            last = sent.last[side]

    async def find_topic(self, origin: str, code: bytes) -> str:
        partition = self.partitions.of_code(origin, code)
        command = (b"HMGET", partition.session(code), b"h", b"e")
        fixed, expires = await self.client.call(partition.slot, command, write=False)
        if fixed is None or int(expires) <= self.client.read_ms:
            raise SessionNotFound
        return records.unpack_session(code, fixed, expires).topic

    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        partition, token = self.partitions.of_code(origin, code), os.urandom(8)
        _, *known = await self._run(
            "withdraw", partition, code, side=records.NAMES[side], secret_hash=secret_hash, token=token
        )
        self.metrics.withdrawn += 1
        self._report("withdrawn", origin, code, known)

    async def refresh(
        self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"", announce: bool = True
    ) -> Refreshed:
        name = records.NAMES[side]
        return Refreshed(
            *await self._refresh("refresh", origin, code, side=name, secret_hash=secret_hash, announce=int(announce))
        )

    # Holding offers

    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        expires_ms, *_ = await self._refresh("hold", origin, code, secret_hash=secret_hash, lease=lease)
        await self._in_background(self._leases.record(origin, code, expires_ms))
        return expires_ms

    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        expires_ms, *_ = await self._refresh("renew", origin, code, lease=lease)
        await self._in_background(self._leases.record(origin, code, expires_ms))
        return expires_ms

    async def _refresh(self, script: str, origin: str, code: bytes, **arguments: bytes | int) -> list[int]:
        """Run a script that refreshes a session. Return the new expiry, and what else the script returns."""
        expires_ms, *others = await self._run(script, self.partitions.of_code(origin, code), code, **arguments)
        await self._register(origin, int(expires_ms))
        return [int(expires_ms), *others]

    async def _register(self, origin: str, until_ms: int) -> None:
        if not self._counts.is_registered(origin, until_ms):
            await self._in_background(self._counts.register(origin, until_ms))

    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        partition = self.partitions.of_code(origin, code)
        state, *known = await self._run("release", partition, code, lease=lease, token=os.urandom(8))
        if state != b"released":
            self.metrics.withdrawn += 1
            self._report("withdrawn", origin, code, known)

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> Watch:
        partition = self.partitions.of_code(origin, code)
        return self._watch(partition.session(code), partition.slot)

    def watch_topic(self, origin: str, topic: str) -> Watch:
        partition = self.partitions.of_topic(origin, topic)
        return self._watch(partition.topic_channel(topic), partition.slot)

    def _watch(self, channel: bytes, slot: int) -> Watch:
        """Open a watch. Its `opened` waits until the channel is subscribed."""
        self.change_feed.keep_subscribed(channel, slot)
        watch = self.watches.watch(channel)
        if channel in self.change_feed.pending:
            watch.opening = functools.partial(self.change_feed.subscribed, channel)
        return watch

    # Positions

    @property
    def identity(self) -> str:
        return self.partitions.identity
