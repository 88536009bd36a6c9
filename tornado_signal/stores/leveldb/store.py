"""The store on LevelDB.

Every change is decided against committed data, without an `await` between the read and the request to write. A
second change of a session waits until the first one is committed, unless both only append candidates. So one of two
simultaneous answers wins, and no acknowledgement depends on a change that can still fail.
"""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

from ...errors import SessionNotFound, StalePosition, TooMany, Unavailable
from ...metrics import Family, SessionMetrics
from ...session import (
    MIN_HELD_MS,
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
from ...system.clock import Clock
from ...system.loop import guarded, in_slices
from .. import position_text
from ..quotas import Quotas
from ..watches import Watch, Watches
from . import changes, layout, records
from .binding import plyvel
from .changes import Change, Removal
from .check import problems
from .committer import Committer
from .database import Database
from .expiry import Expiry
from .iteration import LoopIteration
from .locks import LockToken, SessionLocks
from .metrics import DatabaseMetrics
from .positions import TopicPosition
from .records import Loaded, SessionAuth
from .space import Space
from .state import StoreState
from .sweeper import Sweeper
from .topic_index import ANY_SERIAL, Reservations

# The number of topics to prune per event-loop iteration, and for each new session.
SETTLING_STEP = 500
ORIGINS_STEP = 1000  # counted per event-loop iteration
SETTLING_BY_CREATE = 2
# The longest pause between two attempts of our clients to reconnect and hold their offers again.
COME_BACK_S = 10.0
WAKE_STEP = 500  # watches that are woken per event-loop iteration, after the data was removed
RELEASED_AT_ONCE = 50  # offers of an earlier process whose withdrawals share a write

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


def _raising_unavailable(
    operation: Callable[Concatenate["LevelDBStore", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["LevelDBStore", P], Coroutine[Any, Any, T]]:
    """Make an operation raise Unavailable instead of LevelDB's errors."""

    @functools.wraps(operation)
    async def raising_unavailable(self: "LevelDBStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await operation(self, *args, **kwargs)
        except plyvel.Error as error:
            raise self.database.failed(error) from error

    return raising_unavailable


class LevelDBStore:
    """A store in one LevelDB directory, on the running event loop. `Store` describes its operations.

    Args:
        clock: the clock. The store never uses a time before that of its newest session.
        timeout_ms: the lifetime of a session, and of the record of its removal from a listing.
        durability: `fsync` (acknowledged means on disk) or `os` (acknowledged means with the operating system).
        codes: `random` or `content` (docs/decisions.md#deterministic-identifiers).
        hold_grace_ms: how long an offer that an earlier process held waits for its holder, in addition to COME_BACK_S.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        timeout_ms: int,
        durability: Literal["fsync", "os"] = "fsync",
        codes: Literal["random", "content"] = "random",
        quotas: Quotas = Quotas(),  # noqa: B008 (it never changes)
        start_empty: bool = False,
        space: Space | None = None,
        sweep_interval_ms: int = 1000,
        hold_grace_ms: int = 5000,
    ) -> None:
        self.process_id = os.urandom(8)
        self.on_lost: Callable[[], object] = lambda: None
        self._hold_grace_s = hold_grace_ms / 1000
        self._abandoned: asyncio.Task[None] | None = None
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._codes = codes
        self._quotas = quotas
        self._reservations = Reservations(quotas)
        self.metrics = SessionMetrics()
        self._observer: Observer | None = None
        self.database_metrics = DatabaseMetrics()
        self.space = space or Space(path)  # the disk space, unlimited if not given
        self.watches = Watches()  # watches of sessions and topics
        iteration = LoopIteration()
        self.locks = SessionLocks(iteration)
        self.state = StoreState(self.watches, self.locks.held)
        self.database = Database(
            path,
            sync=durability == "fsync",
            load=records.load,
            loaded=self._load,
            start_empty=start_empty,
            space=self.space,
            metrics=self.database_metrics,
            iteration=iteration,
        )
        self._committer = Committer(self.database, self.state, self.locks)
        self.expiry = Expiry(self._committer, self.metrics, timeout_ms)
        self.shared_redis = None
        self.sweeper = Sweeper(self.expiry, self.database, clock, sweep_interval_ms)  # the background work

    async def open(self) -> None:
        await self.database.open()
        self._clock.advance_to(self.state.created_ms)
        self.sweeper.start()
        if self.state.leases:
            self._abandoned = asyncio.create_task(self._release_abandoned(dict(self.state.leases)))

    def _load(self, loaded: Loaded) -> None:
        """Use what was read from the database. Waiting clients are woken if their sessions are gone."""
        before = self.state.identity
        self.state.load(loaded)
        if before not in ("", self.state.identity):
            log.error("a new database replaces the earlier one, whose sessions are lost; clients publish them again")
            in_slices(self.watches.keys(), self.watches.changed, WAKE_STEP)
            guarded(self.on_lost)

    async def close(self) -> None:
        if self._abandoned is not None:
            self._abandoned.cancel()
            await asyncio.wait((self._abandoned,))
        await self.sweeper.stop()
        with contextlib.suppress(Unavailable):
            await self.expiry.write_time(self._clock.now_ms())
        await self.database.close()

    @_raising_unavailable
    async def compact(self) -> tuple[int, int]:
        before = self.database.size_bytes()
        await self.database.compact()
        return before, self.database.size_bytes()

    @property
    def secret(self) -> bytes:
        return self.state.secret

    def now_ms(self, watch: Watch | None = None) -> int:
        return self._clock.now_ms()

    def allow(self, quotas: Quotas) -> None:
        self._quotas = self._reservations.quotas = quotas
        self.space.max_bytes, self.space.wanted_bytes = quotas.store_bytes, quotas.free_bytes

    @property
    def available(self) -> bool:
        return self.database.available

    def metric_families(self) -> Iterator[Family]:
        yield Family("gauge", "store_available", "Whether the store can be read and written.", self.available)
        with contextlib.suppress(OSError):  # on a failing disk the other metrics are still exported
            yield Family("gauge", "store_size_bytes", "What the data directory holds.", self.database.size_bytes())
        yield from self.space.families()
        meaning = "What LevelDB keeps of it in memory."
        yield Family("gauge", "store_cache_bytes", meaning, self.database.cache_bytes())
        yield from self.database_metrics.families()

    def observe(self, observer: Observer | None) -> None:
        self._observer = self.expiry.observer = observer and functools.partial(guarded, observer)

    def use_passwords(self, password: str | None, sentinel_password: str | None) -> None:
        """Do nothing: a directory has no password."""

    @property
    def full(self) -> str:
        return self.space.full

    @property
    def capacity_bytes(self) -> int:
        return self.space.capacity_bytes

    @_raising_unavailable
    async def probe(self) -> None:
        await self.expiry.write_time(self._clock.now_ms())
        records.counters(self.database.view)

    async def counts(self) -> tuple[int, int]:
        return self.state.listed, self.state.index.topic_count

    async def largest_origins(self, max_items: int) -> list[tuple[str, int, int]]:
        index = self.state.index
        origins = index.origins()
        chosen: list[str] = []
        for at in range(0, len(origins), ORIGINS_STEP):
            chosen = [origin for origin, _, _ in index.largest([*chosen, *origins[at : at + ORIGINS_STEP]], max_items)]
            await asyncio.sleep(0)
        return index.largest(chosen, max_items)

    # Publishing and connecting

    @_raising_unavailable
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
        now_ms = self._clock.now_ms()
        self.space.admit(utf8_length(offer) + utf8_length(info))
        timeout_ms = max(ttl_ms or self._timeout_ms, MIN_HELD_MS if lease else 0)
        ended: Change | None = None
        expired: Session | None = None
        removal: Removal | None = None
        tokens: list[LockToken] = []
        if self._codes == "random":
            code = make_uuid(os.urandom(16), 4)
        else:
            code = content_code(origin, [topic], offer)
            key = layout.pack_session_prefix(origin, code)
            token = await self.locks.acquire(key)
            before = records.find(self.database.view, key, code)
            if before is not None and before.live(now_ms):
                if not owns(before.secret_hash, secret_hash):
                    raise SessionNotFound
                if records.find_answer(self.database.view, key) is not None:
                    return code, before.expires_ms
                leases = b""
                if lease:
                    before = before._replace(timeout_ms=max(before.timeout_ms, MIN_HELD_MS))
                    leases = add_lease(self.state.leases.get(key, b""), lease)
                return code, (await self._move(origin, token, before, now_ms, leases, announce=True))[0]
            tokens.append(token)
            if before is not None:
                ended, removal = self._removal(origin, key, before, Reason.EXPIRED, now_ms)
                expired = before if removal is not None else None
        state = self.state
        state.index.prune(origin, now_ms, SETTLING_BY_CREATE)
        self._reservations.reserve(state.index, origin, topic)
        try:
            created_ms = state.advance_time(now_ms)
            expires_ms = created_ms + timeout_ms
            serial = state.next_serial()
            session = Session(code, topic, info, created_ms, expires_ms, timeout_ms, serial, secret_hash)
            change = changes.created(origin, session, offer)
            key = layout.pack_session_prefix(origin, code)
            if lease:
                change = changes.merge(change, changes.leased(key, lease))
            if ended is not None:  # the old session with the same code is removed first
                change = changes.merge(ended, change)

            def applied() -> None:
                self.metrics.created += 1
                if expired is not None:
                    state.on_removed(origin, expired, removal)
                state.on_created(origin, session, offer)
                if lease:
                    state.leases[key] = lease
                if self._observer is not None:
                    if expired is not None:
                        self._observer("expired", origin, code, topic, expired.created_ms, expired.expires_ms)
                    self._observer("created", origin, code, topic, created_ms, expires_ms)

            await self._committer.commit(tokens, change, applied, now_ms=now_ms)
        finally:
            self._reservations.release(origin, topic)
        return code, expires_ms

    @_raising_unavailable
    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        now_ms = self._clock.now_ms()
        self.space.admit(utf8_length(answer))
        token, session, access = await self._acquire(origin, code, Side.ANSWERER, secret_hash, now_ms)
        key = token.key
        before = records.find_answer(self.database.view, key) if access.answer_number else None
        if changes_answer(before, answer):
            number = self._take_numbers(key, access, Side.ANSWERER, [answer], candidates=False)
            removal = self._make_removal(key, Reason.ANSWERED, now_ms)
            change = changes.answered(origin, session, Answer(answer, number, secret_hash), removal)

            def applied() -> None:
                self.metrics.offers_waited.observe(max(0, now_ms - session.created_ms) / 1000)
                access.answer_hash, access.answer_number = secret_hash, number
                self.state.keep_access(key, access)
                self.state.on_removed(origin, session, removal)
                if self._observer is not None:
                    self._observer("answered", origin, code, session.topic, session.created_ms, session.expires_ms)

            await self._committer.commit([token], change, applied, now_ms=now_ms)

    @_raising_unavailable
    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        now_ms = self._clock.now_ms()
        self.space.admit(sum(map(utf8_length, candidates)))
        key = layout.pack_session_prefix(origin, code)
        token = await self.locks.acquire(key, appends=True)
        access = self._admit(key, side, secret_hash, now_ms)
        first = self._take_numbers(key, access, side, candidates, candidates=True)
        change = changes.candidates_added(key, side, enumerate(candidates, first))
        await self._committer.commit([token], change, functools.partial(self.watches.changed, key))

    @_raising_unavailable
    async def read(
        self,
        origin: str,
        code: bytes,
        reader: Side,
        *,
        since: SessionPosition | None = None,
        secret_hash: bytes = b"",
    ) -> SessionUpdate:
        key = layout.pack_session_prefix(origin, code)
        access = self._admit(key, reader, secret_hash, self._clock.now_ms())
        if since is None:
            return records.news(self.database.view, key, access, reader.other, 0)
        if since.serial != access.serial:
            raise StalePosition
        return records.news(self.database.view, key, access, reader.other, since.number)

    @_raising_unavailable
    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        now_ms = self._clock.now_ms()
        token, session, _ = await self._acquire(origin, code, side, secret_hash, now_ms)
        await self._withdraw(origin, token, session, now_ms)

    @_raising_unavailable
    async def refresh(
        self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"", announce: bool = True
    ) -> Refreshed:
        now_ms = self._clock.now_ms()
        token, session, access = await self._acquire(origin, code, side, secret_hash, now_ms)
        size = self._sent(token.key, access, Side.OFFERER)[1] if announce else 0
        expires_ms, announced = await self._move(origin, token, session, now_ms, announce=announce)
        return Refreshed(expires_ms, size if announced else 0)

    # Holding offers

    @_raising_unavailable
    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        now_ms = self._clock.now_ms()
        token, session, access = await self._acquire(origin, code, Side.OFFERER, secret_hash, now_ms)
        if access.answer_number:
            return (await self._move(origin, token, session, now_ms))[0]
        session = session._replace(timeout_ms=max(session.timeout_ms, MIN_HELD_MS))
        return (await self._move(origin, token, session, now_ms, lease))[0]

    @_raising_unavailable
    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        now_ms = self._clock.now_ms()
        token, session, _ = await self._acquire_held(origin, code, lease, now_ms)
        return (await self._move(origin, token, session, now_ms))[0]

    @_raising_unavailable
    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        now_ms = self._clock.now_ms()
        token, session, leases = await self._acquire_held(origin, code, lease, now_ms)
        rest = b"".join(drop_leases(leases, lease))
        if not rest:
            await self._withdraw(origin, token, session, now_ms)
            return
        applied = functools.partial(self.state.leases.__setitem__, token.key, rest)
        await self._committer.commit([token], changes.leased(token.key, rest), applied)

    async def _release_abandoned(self, leases: dict[bytes, bytes]) -> None:
        """Release the leases of an earlier process whose holders have not held their offers again in time."""
        await asyncio.sleep(COME_BACK_S + self._hold_grace_s)
        abandoned = [(key, lease) for key, held in leases.items() for lease in split_leases(held)]
        for at in range(0, len(abandoned), RELEASED_AT_ONCE):
            await asyncio.gather(*(self._release_one(*each) for each in abandoned[at : at + RELEASED_AT_ONCE]))

    async def _release_one(self, key: bytes, lease: bytes) -> None:
        origin, code, _ = layout.unpack_session_key(key)
        try:
            await self.release(origin, code, lease)
        except (SessionNotFound, Unavailable):
            pass  # the offer is held again, has ended, or expires because its lease is not renewed
        except Exception:  # the others are released nevertheless
            log.exception("cannot release a held offer of an earlier process")

    # Discovery

    @_raising_unavailable
    async def find_topic(self, origin: str, code: bytes) -> str:
        session = records.find(self.database.view, layout.pack_session_prefix(origin, code), code)
        if session is None or not session.live(self._clock.now_ms()):
            raise SessionNotFound
        return session.topic

    @_raising_unavailable
    async def topics(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        now_ms = self._clock.now_ms()
        while not self.state.index.prune(origin, now_ms, SETTLING_STEP):  # noqa: ASYNC110 (others get their turn)
            await asyncio.sleep(0)
        _ = self.database.view  # raises if the database cannot be read, since the counts are in memory
        return self.state.index.page(origin, offset, limit, ranges)

    async def sessions(
        self, origin: str, topic: str, limit: int | None = None
    ) -> AsyncGenerator[list[ListedSession], None]:
        now_ms = self._clock.now_ms()
        before: int | None = ANY_SERIAL
        # Some sessions of the listing can have expired. The count says when all others have been read.
        remaining, _ = self.state.index.counted(origin, topic, now_ms)
        if limit is not None:
            remaining = min(remaining, limit)
        try:
            _ = self.database.view  # raises if the database cannot be read, since the listing is in memory
            while before is not None and remaining:
                entries = self.state.index.listing(origin, topic, 0, before)
                view, accesses = self.database.view, self.state.accesses
                *steps, before = records.listing_step(view, origin, entries, now_ms, remaining, accesses)
                remaining -= len(steps[0])
                if steps[0]:
                    yield steps.pop()  # free the step: many clients can read slowly
                if before is not None and remaining:
                    await asyncio.sleep(0)
        except plyvel.Error as error:
            raise self.database.failed(error) from error

    @_raising_unavailable
    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        _ = self.database.view  # raises if the database cannot be read, since the listing is in memory
        # A removal lowers the number, unless sessions were added since, which have greater serials.
        serial = self.state.index.newest_serial(origin, topic)
        live, changes_ms = self.state.index.counted(origin, topic, self._clock.now_ms())
        position = TopicPosition(serial, live, self.state.identity)
        if since is None:
            return ListingState(live > 0, position, changes_ms)
        assert isinstance(since, TopicPosition)
        changed = serial > since.serial or live != since.listed
        return ListingState(changed, position, changes_ms)

    # Events of a topic

    @_raising_unavailable
    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        if since is not None:
            assert isinstance(since, TopicPosition)
            # False after a power failure with `durability = os`.
            is_known = since.listed <= since.serial <= records.counters(self.database.view).serial
            if is_known and self._remembers(origin, topic, since.serial):
                return since, True
        await self.expiry.expire_due(self._clock.now_ms())
        return TopicPosition(records.counters(self.database.view).serial, 0, self.state.identity), False

    def _remembers(self, origin: str, topic: str, serial: int) -> bool:
        """Return whether all removals from a topic's listing after a serial are stored."""
        prefixes = (layout.pack_removal_prefix(origin, topic, kind) for kind in layout.KINDS)
        return serial >= min(self.state.forgotten, max(self.state.newest_removal(prefix)[0] for prefix in prefixes))

    @_raising_unavailable
    async def topic_step(self, origin: str, topic: str, position: Position) -> EventBatch:
        assert isinstance(position, TopicPosition)
        now_ms = self._clock.now_ms()
        # Expired sessions are delisted now, so that reading the listing does not skip them.
        await self.expiry.expire_due(now_ms)
        view, state = self.database.view, self.state
        serial = records.counters(view).serial
        if position.store != state.identity or position.serial > serial:  # it was removed, or lost its latest changes
            return EventBatch([], TopicPosition(serial, 0, state.identity), more=True, reset=position.listed > 0)
        since = max(position.serial, state.forgotten)
        removals, more = records.removals(view, origin, topic, since, state.newest_removal)
        events: list[Removed | Listed] = []
        newest = {code: at for at, (code, serial_then, _) in removals if serial_then <= position.listed}
        refreshed = size = 0
        for at, (code, session_serial, reason) in removals:
            end = TopicPosition(at, position.listed, position.store)
            if session_serial > position.listed:
                continue
            if reason is not None:
                events.append(Removed(end, code, reason))
            elif newest[code] == at:  # otherwise it was refreshed again, or removed
                key = layout.pack_session_prefix(origin, code)
                session = records.find(view, key, code)
                if session is None or session.serial != session_serial or not records.is_listed(view, origin, session):
                    continue  # its removal comes in a later step
                listed = records.listed(view, key, code, state.accesses.get(key))
                events.append(Listed(end, listed))
                refreshed, size = refreshed + 1, size + listed.size
                if refreshed == records.LISTING_STEP or size >= records.LISTING_STEP_BYTES:
                    return EventBatch(events, end, more=True)
        if more:
            return EventBatch(events, TopicPosition(removals[-1][0], position.listed, position.store), more=True)
        entries = state.index.listing(origin, topic, position.listed, ANY_SERIAL, oldest_first=True)
        listed_sessions, last = records.listing_step(
            view, origin, entries, now_ms, records.LISTING_STEP, state.accesses
        )
        events += [Listed(TopicPosition(serial, each.session.serial, position.store), each) for each in listed_sessions]
        end = TopicPosition(serial, serial if last is None else last, position.store)
        return EventBatch(events, end, more=last is not None)

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> Watch:
        return self.watches.watch(layout.pack_session_prefix(origin, code))

    def watch_topic(self, origin: str, topic: str) -> Watch:
        return self.watches.watch(layout.pack_listing_prefix(origin, topic))

    def end_watches(self) -> None:
        self.watches.end()

    # Positions as text

    def format_position(self, position: Position | SessionPosition) -> str:
        if isinstance(position, TopicPosition):
            return position_text.format_numbers(position.store, position.serial, position.listed)
        assert isinstance(position, SessionPosition)
        return position_text.format_numbers(self.state.identity, *position)

    def parse_position(self, text: str) -> Position | None:
        numbers = position_text.parse_numbers(self.state.identity, text)
        return None if numbers is None else TopicPosition(*numbers, self.state.identity)

    def parse_session_position(self, text: str) -> SessionPosition | None:
        numbers = position_text.parse_numbers(self.state.identity, text)
        return None if numbers is None else SessionPosition(*numbers)

    def check(self) -> None:
        """Check that every index agrees with the records. Raise AssertionError with the differences.

        It reads the whole store and is meant for tests.
        """
        view = self.database.view
        issues = problems(view, self.state.index, self._clock.now_ms())
        for key, access in self.state.accesses.items():
            same = access == records.find_access(view, key)
            if not self.locks.held(key):
                same &= all(
                    records.sent(view, key, side) == (number, access.sizes[side])
                    for side, number in access.numbers.items()
                )
                same &= records.part_keys(view, key, access) == records.part_keys(view, key, None)
            if not same:
                issues.append(f"the state in memory of {key!r} differs from the records")
        if issues:
            raise AssertionError("\n".join(issues))

    # Common parts of operations

    def _admit(self, key: bytes, side: Side, secret_hash: bytes, now_ms: int) -> SessionAuth:
        """Check the secret of a side of a live session, and return the access data."""
        view = self.database.view
        access = self.state.accesses.get(key)
        if access is None:
            access = records.find_access(view, key)
            if access is None:
                raise SessionNotFound
            self.state.keep_access(key, access)
        if not owns(access.secret_hash(side), secret_hash) or now_ms >= access.expires_ms:
            view.get(key + layout.HEAD)  # takes as long as the read of a missing session
            raise SessionNotFound
        return access

    async def _acquire(
        self, origin: str, code: bytes, side: Side, secret_hash: bytes, now_ms: int
    ) -> tuple[LockToken, Session, SessionAuth]:
        """Wait until a side can change a session. Return the token, the session and its access data."""
        key = layout.pack_session_prefix(origin, code)
        token = await self.locks.acquire(key)
        access = self._admit(key, side, secret_hash, now_ms)
        session = records.find(self.database.view, key, code)
        if session is None:
            raise SessionNotFound
        return token, session, access

    def _take_numbers(
        self, key: bytes, access: SessionAuth, side: Side, texts: Sequence[str], *, candidates: bool
    ) -> int:
        """Return the first of the next numbers of a side. Uncommitted messages have numbers already."""
        last, size = self._sent(key, access, side)
        last += len(texts)
        size += sum(map(utf8_length, texts))
        if candidates:
            described = side is Side.OFFERER or access.answer_number > 0  # the offer or the answer also has a number
            if last - described > self._quotas.candidates:
                raise TooMany("candidates of a session", self._timeout_ms // 1000 or 1)
            if size > self._quotas.side_bytes:
                raise TooMany("bytes of a session", self._timeout_ms // 1000 or 1)
        access.numbers[side], access.sizes[side] = last, size
        return last - len(texts) + 1

    def _sent(self, key: bytes, access: SessionAuth, side: Side) -> tuple[int, int]:
        """Return the last number of a side, and the size of its messages. Uncommitted messages count."""
        if side not in access.numbers:
            access.numbers[side], access.sizes[side] = records.sent(self.database.view, key, side)
        return access.numbers[side], access.sizes[side]

    async def _acquire_held(
        self, origin: str, code: bytes, lease: bytes, now_ms: int
    ) -> tuple[LockToken, Session, bytes]:
        """Wait until a live offer with this lease can be changed. Return the token, the session and its leases."""
        key = layout.pack_session_prefix(origin, code)
        token = await self.locks.acquire(key)
        leases = self.state.leases.get(key, b"")
        session = records.find(self.database.view, key, code) if lease in split_leases(leases) else None
        if session is None or not session.live(now_ms):
            raise SessionNotFound
        return token, session, leases

    async def _withdraw(self, origin: str, token: LockToken, session: Session, now_ms: int) -> None:
        change, removal = self._removal(origin, token.key, session, Reason.WITHDRAWN, now_ms)

        def applied() -> None:
            self.metrics.withdrawn += 1
            self.state.on_removed(origin, session, removal)
            if self._observer is not None:
                times = (session.created_ms, session.expires_ms)
                self._observer("withdrawn", origin, session.code, session.topic, *times)

        await self._committer.commit([token], change, applied, now_ms=now_ms)

    def _make_removal(self, key: bytes, reason: Reason | None, now_ms: int) -> Removal:
        return Removal(self.state.next_serial(), reason, now_ms + self._timeout_ms, key in self.state.leases)

    def _removal(
        self, origin: str, key: bytes, session: Session, reason: Reason, now_ms: int
    ) -> tuple[Change, Removal | None]:
        """Return the change that deletes a session, and the removal from its listing if it is listed."""
        view = self.database.view
        change = changes.removed(key, session, records.part_keys(view, key, self.state.accesses.get(key)))
        if not records.is_listed(view, origin, session):
            return change, None
        removal = self._make_removal(key, reason, now_ms)
        return changes.merge(change, changes.delisted(origin, session, removal)), removal

    async def _move(
        self,
        origin: str,
        token: LockToken,
        before: Session,
        now_ms: int,
        leases: bytes = b"",
        *,
        announce: bool = False,
    ) -> tuple[int, bool]:
        """Set a session's expiry to `now_ms` plus its timeout, and its leases if given.

        Return the expiry, and whether the change is an event of a listing.
        """
        key = token.key
        after = before._replace(expires_ms=now_ms + before.timeout_ms)
        moved = after.expires_ms != before.expires_ms
        if not moved and not leases:
            return after.expires_ms, False
        listed = records.is_listed(self.database.view, origin, before)
        event = self._make_removal(key, None, now_ms) if announce and moved and listed else None
        change = changes.refreshed(origin, before, after, listed=listed, event=event)
        if leases:
            change = changes.merge(change, changes.leased(key, leases))

        def applied() -> None:
            if listed:
                self.state.on_refreshed(origin, before, after, event)
            if leases:
                self.state.leases[key] = leases

        await self._committer.commit([token], change, applied, now_ms=now_ms)
        return after.expires_ms, event is not None
