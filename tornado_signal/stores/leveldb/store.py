"""The store on LevelDB.

Every change is decided against committed sessions in memory, and holds the lock of its session until it is committed.
So one of two simultaneous answers wins, and no acknowledgement depends on a change that can still fail. A change that
only appends candidates holds no lock: there is no `await` between its decision and the request to write.
"""

import asyncio
import contextlib
import functools
import heapq
import logging
import operator
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence

from ...errors import SessionNotFound, StalePosition, TooMany, Unavailable
from ...metrics import Family
from ...session import (
    ANSWERER,
    MIN_HELD_MS,
    OFFERER,
    SIDE_BODIES,
    Answer,
    EventBatch,
    Listed,
    ListedSession,
    ListingState,
    Observer,
    Position,
    Reason,
    Refreshed,
    Removed,
    Session,
    SessionPosition,
    SessionUpdate,
    Side,
    TopicRange,
    add_lease,
    changes_answer,
    content_code,
    drop_leases,
    make_uuid,
    owns,
    split_leases,
    utf8_length,
)
from ...settings.settings import Settings
from ...system.clock import Clock
from ...system.loop import guarded, slices
from ..watches import Watch
from . import layout, records
from .database import Change
from .locks import SessionLock
from .memory import ANY_SERIAL, Memory, Record
from .session_table import SessionTable

ORIGINS_STEP = 1000  # counted per event-loop iteration
REMOVALS_STEP = 1000
FULL_RETRY_S = 10  # it is unknown when the next session will be answered or expire
# The longest pause between two attempts of our clients to reconnect and hold their offers again.
COME_BACK_S = 10.0
RELEASED_AT_ONCE = 50  # offers of an earlier process whose withdrawals share a write

log = logging.getLogger(__name__)


class LevelDBStore(SessionTable):
    """A store of sessions in one LevelDB directory. `RedisStore` has the same operations, with the same promises.

    Every operation has an origin and sees only the sessions of that origin. Acknowledged changes are never lost: with
    the durability `fsync` they are on disk, with `os` the operating system has them. An operation that raises has
    changed nothing. Only after `Unavailable` its change may exist, because the result of a failed write is unknown. An
    engine raises only `errors`, and `Unavailable` from any operation while it cannot serve.

    Times are those of the store's own clock, which never is before the newest session. Secrets are passed as hashes. A
    code has 16 bytes. SessionNotFound means that a session does not exist, has expired, or is another origin's. It is
    also raised if the secret is not the one of the side.

    An offer with leases is held: it lives as long as its holders renew them. A lease has 12 bytes, of which the first 8
    are the identifier of the process. The store withdraws an offer whose holders have exited without releasing it. An
    offer that an earlier process held waits `hold_grace_ms` and COME_BACK_S for its holder.

    `process_id` is the identifier of this process, 8 random bytes. `shared_redis` is the client of the engine on Redis,
    or None.
    """

    shared_redis = None

    def __init__(self, settings: Settings, clock: Clock) -> None:
        super().__init__(settings, clock)
        self.process_id = os.urandom(8)
        self._settings = settings
        self._abandoned: asyncio.Task[None] | None = None
        self._publishing: Counter[str] = Counter()  # sessions that are being written, by origin

    async def open(self) -> None:
        """Open the store and start the background work. A DatabaseError says why it cannot be used, and what to do."""
        await super().open()
        held = [record for record in self.memory.sessions.values() if record.leases]
        if abandoned := [(record, lease) for record in held for lease in split_leases(record.leases)]:
            self._abandoned = asyncio.create_task(self._release_abandoned(abandoned))

    async def close(self) -> None:
        """Stop the background work, finish pending operations, and release all resources."""
        if self._abandoned is not None:
            self._abandoned.cancel()
            await asyncio.wait((self._abandoned,))
        await super().close()

    @property
    def secret(self) -> bytes:
        """A secret of 32 random bytes, the same in all processes of the store. It lasts as long as the store."""
        return self.memory.secret

    def now_ms(self, watch: Watch | None = None) -> int:
        """Return the store's time, Unix milliseconds. Compare times from the store with this clock only.

        `watch` selects the clock of the node that holds the watched key, if the store has several nodes.
        """
        return self._clock.now_ms()

    def use(self, settings: Settings) -> None:
        """Apply new quotas. Existing sessions stay."""
        self._settings = settings
        self.space.max_bytes, self.space.wanted_bytes = settings.max_store_bytes, settings.min_free_bytes

    @property
    def available(self) -> bool:
        """Whether the store can serve, according to its last operation."""
        return self.database.available

    def metric_families(self) -> Iterator[Family]:
        """Yield the engine's own metrics."""
        yield Family("gauge", "store_available", "Whether the store can be read and written.", self.available)
        with contextlib.suppress(OSError):  # on a failing disk the other metrics are still exported
            yield Family("gauge", "store_size_bytes", "What the data directory holds.", self.database.size_bytes())
        yield from self.space.families()
        meaning = "What LevelDB keeps of it in memory."
        yield Family("gauge", "store_cache_bytes", meaning, self.database.cache_bytes())
        yield from self.database.metrics.families()

    def observe(self, observer: Observer | None) -> None:
        """Report the events of sessions to an observer, or to none. Each is reported by one process of the store."""
        self._observer = observer and functools.partial(guarded, observer)

    @property
    def full(self) -> str:
        """The full resource, because of which offers are refused: `store`, `disk`, `redis`, or empty."""
        return self.space.full

    @property
    def capacity_bytes(self) -> int:
        """The maximum size of the store."""
        return self.space.capacity_bytes

    async def probe(self) -> None:
        """Write and read, as a request would."""
        await self.write_time(self._clock.now_ms())
        self.database.read(records.counters)

    async def counts(self) -> tuple[int, int]:
        """Return the latest numbers of unanswered sessions and of their topics in all origins. Some may have expired.

        None if they are not known. It takes at most half a second, also while the store is unavailable.
        """
        return self.memory.listed, self.memory.topic_count

    async def largest_origins(self, max_items: int) -> list[tuple[str, int, int]]:
        """Return the origins with the most unanswered sessions, in descending order. Some may have expired.

        Each entry has the origin, its number of unanswered sessions, and the number of their topics.
        """
        largest: list[tuple[str, int, int]] = []
        async for origins in slices(self.memory.origins.values(), ORIGINS_STEP):
            counts = [(each.name, each.count, len(each.topics)) for each in origins]
            largest = heapq.nlargest(max_items, [*largest, *counts], key=operator.itemgetter(1))
        return largest

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
        """Publish an offer. Return the session's code, and its expiry in Unix milliseconds.

        None as `ttl_ms` is the configured lifetime. A lease is added to those of other holders of the same content.
        Raise SessionNotFound if the same content was published before with another secret, and TooMany if a quota is
        used up.
        """
        now_ms = self._clock.now_ms()
        self.space.admit(utf8_length(offer) + utf8_length(info), self.memory.size_bytes)
        timeout_ms = max(ttl_ms or self._timeout_ms, MIN_HELD_MS if lease else 0)
        await self.expire_due(now_ms, origin)
        by_content = self._settings.codes == "content"
        code = content_code(origin, [topic], offer) if by_content else make_uuid(os.urandom(16), 4)
        key = layout.pack_session_prefix(origin, code)
        with await self.locks.acquire(key) as lock:
            memory = self._readable
            ended = memory.sessions.get(key)
            if ended is not None and now_ms < ended.expires_ms:
                if not owns(ended.offer_hash, secret_hash):
                    raise SessionNotFound
                if ended.answer_number:
                    return code, ended.expires_ms
                leases = add_lease(ended.leases, lease) if lease else b""
                return code, (await self._refresh(lock, ended, now_ms, leases, announce=True))[0]
            its = memory.origins.get(origin)
            if (its.count if its else 0) + self._publishing[origin] >= self._settings.max_sessions_per_origin:
                raise TooMany("sessions of an origin", FULL_RETRY_S)
            self._publishing[origin] += 1
            try:
                created_ms = memory.latest_ms = max(memory.latest_ms, now_ms)
                expires_ms = created_ms + timeout_ms
                serial = memory.next_serial()
                session = Session(code, topic, info, created_ms, expires_ms, timeout_ms, serial, secret_hash)
                record = Record(key, created_ms, expires_ms, serial, secret_hash)
                data = offer.encode()
                record.set_sent(OFFERER, 1, len(data))
                puts = [
                    (key + layout.HEAD, layout.pack_head(session)),
                    (key + layout.OFFER, data),
                    (layout.pack_listing_key(origin, topic, created_ms, serial), code),
                ]
                if lease:
                    record.leases = lease
                    puts.append((key + layout.LEASES, lease))
                deletes: list[bytes] = []
                if ended is not None:  # the same content was published before, and has expired
                    if ended not in memory.expired:
                        self._expire(ended, now_ms)
                    deletes += memory.expired.pop(ended)

                def applied() -> None:
                    self.metrics.created += 1
                    if ended is not None:
                        memory.remove(ended)
                    memory.add(record, origin, topic)
                    self.watches.changed(layout.pack_listing_prefix(origin, topic))
                    # An earlier session can have had the same content-derived code, and watches can still wait for it.
                    self.watches.changed(key)
                    self.report("created", origin, topic, record)

                await self.commit([lock], Change(puts, deletes), applied, now_ms=now_ms)
            finally:
                self._publishing[origin] -= 1
                if not self._publishing[origin]:
                    del self._publishing[origin]
            return code, expires_ms

    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        """Answer a session, which removes it from its listing (docs/decisions.md#first-answer).

        Raise AlreadyAnswered if it has another answer, and SessionNotFound if the answer had another secret.
        """
        now_ms, size = self._clock.now_ms(), utf8_length(answer)
        self.space.admit(size)
        with await self._lock(origin, code) as lock:
            record = self._find(lock.key, ANSWERER, secret_hash, now_ms)
            if not changes_answer(self.database.read(records.find_answer, record), answer):
                return
            number = record.answerer_last + 1
            record.set_sent(ANSWERER, number, record.answerer_bytes + size)
            topic, key, memory = record.topic, record.key, self.memory
            assert topic is not None
            deletes = [topic.key_of(record), *([key + layout.LEASES] if record.leases else [])]
            puts = [(key + layout.ANSWER, layout.pack_answer(Answer(answer, number, secret_hash)))]

            def applied() -> None:
                self.metrics.offers_waited.observe(max(0, now_ms - record.created_ms) / 1000)
                record.answer_hash, record.answer_number, record.leases = secret_hash, number, b""
                memory.delist(record, topic, Reason.ANSWERED, now_ms)
                self.watches.changed(topic.prefix)
                self.watches.changed(key)
                self.report("answered", origin, topic.name.decode(), record)

            await self.commit([lock], Change(puts, deletes), applied, now_ms=now_ms)

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        """Append candidates of one side in order, all or none. Raise TooMany if its quota is used up."""
        now_ms = self._clock.now_ms()
        texts = list(map(str.encode, candidates))
        size = sum(map(len, texts))
        self.space.admit(size)
        key = layout.pack_session_prefix(origin, code)
        if self.locks.held(key):
            with await self.locks.acquire(key):
                pass  # the next change begins after the next `await`
        record = self._find(key, side, secret_hash, now_ms)
        described = side is OFFERER or record.answer_number > 0  # the offer or the answer also has a number
        last, sent_bytes = record.sent(side)  # those of uncommitted messages included
        if last + len(texts) - described > self._settings.max_candidates:
            raise TooMany("candidates of a session", self._timeout_ms // 1000 or 1)
        if sent_bytes + size > SIDE_BODIES * self._settings.max_body_bytes:
            raise TooMany("bytes of a session", self._timeout_ms // 1000 or 1)
        record.set_sent(side, last + len(texts), sent_bytes + size)
        prefix = key + layout.CANDIDATE[side]
        puts = [(prefix + layout.pack_number(number), text) for number, text in enumerate(texts, last + 1)]
        await self.commit((), Change(puts, []), functools.partial(self.watches.changed, key))

    async def read(
        self,
        origin: str,
        code: bytes,
        reader: Side,
        *,
        since: SessionPosition | None = None,
        secret_hash: bytes = b"",
    ) -> SessionUpdate:
        """Return the messages of the other side, of its candidates those after `since`.

        Raise StalePosition if `since` is a position in an earlier session with this code.
        """
        record = self._find(layout.pack_session_prefix(origin, code), reader, secret_hash, self._clock.now_ms())
        if since is None:
            return self.database.read(records.news, record, reader.other, 0)
        if since.serial != record.serial:
            raise StalePosition
        return self.database.read(records.news, record, reader.other, since.number)

    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        """Withdraw a session."""
        now_ms = self._clock.now_ms()
        with await self._lock(origin, code) as lock:
            await self._withdraw(origin, lock, self._find(lock.key, side, secret_hash, now_ms), now_ms)

    async def refresh(
        self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"", announce: bool = True
    ) -> Refreshed:
        """Set a session's expiry to now plus its timeout. With `announce`, a new expiry is an event of the listing."""
        now_ms = self._clock.now_ms()
        with await self._lock(origin, code) as lock:
            record = self._find(lock.key, side, secret_hash, now_ms)
            size = record.offerer_bytes
            expires_ms, announced = await self._refresh(lock, record, now_ms, announce=announce)
            return Refreshed(expires_ms, size if announced else 0)

    # Holding offers

    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        """Replace all leases of an offer by this one, and refresh it. Return the new expiry, Unix milliseconds."""
        now_ms = self._clock.now_ms()
        with await self._lock(origin, code) as lock:
            record = self._find(lock.key, OFFERER, secret_hash, now_ms)
            return (await self._refresh(lock, record, now_ms, b"" if record.answer_number else lease))[0]

    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        """Refresh an offer if this lease is one of its leases. Return the new expiry, Unix milliseconds.

        Raise SessionNotFound if the offer is answered, withdrawn, expired, or held by others.
        """
        now_ms = self._clock.now_ms()
        with await self._lock(origin, code) as lock:
            return (await self._refresh(lock, self._find_held(lock.key, lease, now_ms), now_ms))[0]

    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        """Release a lease. Releasing the last one withdraws the offer. Raise SessionNotFound as `renew`."""
        now_ms = self._clock.now_ms()
        with await self._lock(origin, code) as lock:
            record = self._find_held(lock.key, lease, now_ms)
            rest = b"".join(drop_leases(record.leases, lease))
            if not rest:
                await self._withdraw(origin, lock, record, now_ms)
                return
            applied = functools.partial(setattr, record, "leases", rest)
            await self.commit([lock], Change([(lock.key + layout.LEASES, rest)], []), applied)

    async def _release_abandoned(self, abandoned: list[tuple[Record, bytes]]) -> None:
        """Release the leases of an earlier process whose holders have not held their offers again in time."""
        await asyncio.sleep(COME_BACK_S + self._settings.hold_grace_ms / 1000)
        async for some in slices(abandoned, RELEASED_AT_ONCE):
            await asyncio.gather(*(self._release_one(record.key, lease) for record, lease in some))

    async def _release_one(self, key: bytes, lease: bytes) -> None:
        origin, code, _ = layout.unpack_session_key(key)
        try:
            await self.release(origin, code, lease)
        except (SessionNotFound, Unavailable):
            pass  # the offer is held again, has ended, or expires because its lease is not renewed
        except Exception:  # the others are released nevertheless
            log.exception("cannot release a held offer of an earlier process")

    # Discovery

    async def find_topic(self, origin: str, code: bytes) -> str:
        """Return the topic of a session."""
        record = self._find(layout.pack_session_prefix(origin, code), None, b"", self._clock.now_ms())
        return self._topic_of(record)

    async def topics(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        """Return a page of the topics with unanswered sessions, ordered by code points.

        The ranges are disjoint and ascending. None stands for all topics. Return pairs of topic and number of
        unanswered sessions, and the total number of topics.
        """
        await self.expire_due(self._clock.now_ms(), origin)
        return self._readable.page(origin, offset, limit, ranges)

    async def sessions(
        self, origin: str, topic: str, limit: int | None = None
    ) -> AsyncGenerator[list[ListedSession], None]:
        """Yield the unanswered sessions of a topic, newest first, in steps that are not empty.

        Each is read in one event-loop iteration. A session that is answered during the listing can be missing. No
        session is repeated.
        """
        await self.expire_due(self._clock.now_ms(), origin, topic)
        before: int | None = ANY_SERIAL
        listed = self._readable.topic(origin, topic)
        remaining = len(listed.sessions) if listed else 0
        if limit is not None:
            remaining = min(remaining, limit)
        while before is not None and remaining:
            entries = self._readable.listing(origin, topic, 0, before)
            *steps, before = self.database.read(records.listing_step, entries, min(remaining, records.LISTING_STEP))
            remaining -= len(steps[0])
            if steps[0]:
                yield steps.pop()  # free the step: many clients can read slowly
            if before is not None and remaining:
                await asyncio.sleep(0)

    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        """Return whether a topic's listing differs from that at a position. None stands for an empty listing."""
        await self.expire_due(self._clock.now_ms(), origin, topic)
        listed = self._readable.topic(origin, topic)
        # A removal lowers the number, unless sessions were added since, which have greater serials.
        serial, live = (listed.sessions[-1].serial, len(listed.sessions)) if listed else (0, 0)
        position = Position(self.identity, serial, live)
        changed = live > 0 if since is None else serial > since.event or live != since.listed
        return ListingState(changed, position)

    # Events of a topic

    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        """Return the position from which a reader of a topic starts, and whether it is `since`.

        Otherwise send the whole listing again. `since` can be unknown after a power failure. It is also refused if
        removals after it are no longer stored.
        """
        if since is not None and self._remembers(layout.pack_listing_prefix(origin, topic), since):
            return since, True
        await self.expire_due(self._clock.now_ms(), origin, topic)
        memory = self._readable
        return Position(memory.generation, memory.removals.last, 0), False

    def _remembers(self, prefix: bytes, position: Position) -> bool:
        """Return whether all events of a topic after a position are in memory."""
        memory = self._readable
        is_its = position.store == memory.generation and position.listed <= memory.newest
        return is_its and memory.removals.remembers(prefix, position.event)

    async def topic_step(self, origin: str, topic: str, position: Position) -> EventBatch:
        """Return a step of the changes of a topic's listing since a position.

        First the removals and refreshes of sessions that the reader knows, in order, then the added sessions that still
        exist. Sessions that were added and removed since are omitted, and so are earlier refreshes of a session.

        A step resets the reader if the store has lost what the reader knows. The current listing follows.
        """
        await self.expire_due(self._clock.now_ms(), origin, topic)
        memory = self._readable
        prefix = layout.pack_listing_prefix(origin, topic)
        last = memory.removals.last
        if not self._remembers(prefix, position):
            return EventBatch([], Position(memory.generation, last, 0), more=True, reset=position.listed > 0)
        removals = memory.removals.after(prefix, position.event, REMOVALS_STEP)
        events: list[Removed | Listed] = []
        newest = {each.code: each.number for each in removals if each.serial <= position.listed}
        refreshed = size = 0
        for number, code, serial, reason in removals:
            end = Position(position.store, number, position.listed)
            if serial > position.listed:
                continue
            if reason is not None:
                events.append(Removed(end, code, reason))
            elif newest[code] == number:  # otherwise it was refreshed again, or removed
                record = memory.sessions.get(layout.pack_session_prefix(origin, code))
                if record is None or record.serial != serial or record.topic is None:
                    continue  # its removal comes in a later step
                listed = self.database.read(records.listed, record)
                events.append(Listed(end, listed))
                refreshed, size = refreshed + 1, size + listed.size
                if refreshed == records.LISTING_STEP or size >= records.LISTING_STEP_BYTES:
                    return EventBatch(events, end, more=True)
        if len(removals) == REMOVALS_STEP:
            return EventBatch(events, position._replace(event=removals[-1].number), more=True)
        entries = memory.listing(origin, topic, position.listed, ANY_SERIAL, oldest_first=True)
        added, last_listed = self.database.read(records.listing_step, entries, records.LISTING_STEP)
        events += [Listed(Position(position.store, last, each.session.serial), each) for each in added]
        end = Position(position.store, last, memory.newest if last_listed is None else last_listed)
        return EventBatch(events, end, more=last_listed is not None)

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> Watch:
        """Watch the messages of both sides of a session, and its end. Its expiry wakes nobody: see `SessionUpdate`.

        Await `opened` of the watch before reading. A read without a watch never waits for another's watch.
        """
        return self.watches.watch(layout.pack_session_prefix(origin, code))

    def watch_topic(self, origin: str, topic: str) -> Watch:
        """Watch the listing of a topic, expiries included."""
        return self.watches.watch(layout.pack_listing_prefix(origin, topic))

    def end_watches(self) -> None:
        """End all waits, spread over up to two seconds, and refuse new ones."""
        self.watches.end()

    # Positions

    @property
    def identity(self) -> str:
        """The identity of the store, which numbers the messages of sessions: 12 hexadecimal digits."""
        return self.memory.identity

    def knows(self, identity: str) -> bool:
        """Return whether this store has made positions with this `Position.store`."""
        return identity in (self.memory.identity, self.memory.generation)

    # Common parts of operations

    @property
    def _readable(self) -> Memory:
        """The memory. Raises Unavailable while the database cannot be read."""
        _ = self.database.snapshot
        return self.memory

    def _find(self, key: bytes, side: Side | None, secret_hash: bytes, now_ms: int) -> Record:
        """Return a live session. `secret_hash` is that of `side`, if any."""
        record = self._readable.sessions.get(key)
        if record is None or now_ms >= record.expires_ms:
            raise SessionNotFound
        if side is not None and not owns(record.secret_hash(side), secret_hash):
            raise SessionNotFound
        return record

    def _lock(self, origin: str, code: bytes) -> Awaitable[SessionLock]:
        """Wait until a session can be changed."""
        return self.locks.acquire(layout.pack_session_prefix(origin, code))

    def _find_held(self, key: bytes, lease: bytes, now_ms: int) -> Record:
        """Return a live offer with this lease."""
        record = self._find(key, None, b"", now_ms)
        if lease not in split_leases(record.leases):
            raise SessionNotFound
        return record

    def _topic_of(self, record: Record) -> str:
        if record.topic is not None:
            return record.topic.name.decode()
        return self.database.read(records.find, record).topic

    async def _withdraw(self, origin: str, lock: SessionLock, record: Record, now_ms: int) -> None:
        listed, deletes = record.topic, list(record.keys())
        if listed is not None:
            deletes.append(listed.key_of(record))
        topic, memory = self._topic_of(record), self.memory

        def applied() -> None:
            self.metrics.withdrawn += 1
            if listed is not None:
                memory.delist(record, listed, Reason.WITHDRAWN, now_ms)
                self.watches.changed(listed.prefix)
            memory.remove(record)
            self.watches.changed(record.key)
            self.report("withdrawn", origin, topic, record)

        await self.commit([lock], Change([], deletes), applied, now_ms=now_ms)

    async def _refresh(
        self, lock: SessionLock, record: Record, now_ms: int, leases: bytes = b"", *, announce: bool = False
    ) -> tuple[int, bool]:
        """Set a session's expiry to `now_ms` plus its timeout, and its leases if given.

        Return the expiry, and whether the change is an event of a listing.
        """
        before = self.database.read(records.find, record)
        timeout_ms = max(before.timeout_ms, MIN_HELD_MS) if leases else before.timeout_ms
        after = before._replace(expires_ms=now_ms + timeout_ms, timeout_ms=timeout_ms)
        moved = after.expires_ms != before.expires_ms
        if not moved and not leases:
            return after.expires_ms, False
        topic, memory = record.topic if announce and moved else None, self.memory
        puts = [(record.key + layout.HEAD, layout.pack_head(after))]
        if leases:
            puts.append((record.key + layout.LEASES, leases))

        def applied() -> None:
            record.leases = leases or record.leases
            if moved:
                memory.refresh(record, after.expires_ms)
            if topic is not None:
                memory.removals.add(topic.prefix, record, None, now_ms)
                self.watches.changed(topic.prefix)

        await self.commit([lock], Change(puts, []), applied, now_ms=now_ms)
        return after.expires_ms, topic is not None
