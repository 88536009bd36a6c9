"""Long polls, waiting listings and the feeds of subscriptions (docs/http-api.md#long-polling)."""

import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ..errors import InvalidParameter, SessionNotFound, StalePosition, Unavailable
from ..session import OFFERER, ListingState, Position, Reason, Removed, SessionPosition, SessionUpdate, Side
from ..stores import Store
from ..stores.watches import Watch
from . import wire
from .cursors import cursor_scope, format_cursor, parse_cursor, parse_session_cursor
from .event_batches import Encode, EncodedBatch
from .request_context import RequestContext

T = TypeVar("T")

MIN_READ_PAUSE_S: Final = 0.005  # between two reads around an expiry, because the clock is not exact
MAX_WAIT_S: Final = 45.0  # proxies give up after 50 or 60
STORE_RETRY_S: Final = 0.5  # after the store was unavailable; the wait continues


def next_read_s(store: Store, watch: Watch, until_s: float, expires_ms: int | None) -> float:
    """Return when to read next if nothing changes, by the loop's clock as `until_s`.

    It is at the next expiry by the store's clock, because an expiry is a change. Without an expiry it is `until_s`.
    """
    if expires_ms is None:
        return until_s
    left_s = (expires_ms - store.now_ms(watch)) / 1000
    return min(until_s, watch.now_s() + max(left_s, MIN_READ_PAUSE_S))


async def read_or_wait(
    context: RequestContext, watch: Watch, wait_s: float, read: Callable[[], Awaitable[tuple[T, bool, int | None]]]
) -> T:
    """Read until something is new, or until the time limit.

    `read` returns what it has read, whether that is new, and the store's time of the next expiry. The first read raises
    Unavailable. Later ones are repeated while there is time left.
    """
    until_s = watch.now_s() + min(wait_s, MAX_WAIT_S)
    has_read = False
    while True:
        try:
            await watch.opened()
            result, is_new, expires_ms = await read()
        except Unavailable:
            if not has_read or watch.over or watch.now_s() >= until_s:
                raise
            await watch.wait(min(until_s, watch.now_s() + STORE_RETRY_S))
        else:
            has_read = True
            if is_new or watch.now_s() >= until_s or watch.over:
                return result
            await watch.wait(next_read_s(context.service.store, watch, until_s, expires_ms))
        await context.turn()


async def wait_for_update(
    context: RequestContext, code: bytes, side: Side, since: SessionPosition | None, secret_hash: bytes, wait_s: float
) -> SessionUpdate:
    """Wait until a session has a message after `since`, or ends, or until the time limit."""
    store = context.service.store
    known = since.number if since else 0
    serial: int | None = None  # of the session that was read

    async def read() -> tuple[SessionUpdate, bool, int]:
        nonlocal serial
        position = since if serial is None else SessionPosition(serial, known)
        try:
            update = await store.read(context.origin, code, side, since=position, secret_hash=secret_hash)
        except StalePosition:  # the same content was published again
            raise InvalidParameter("since") if serial is None else SessionNotFound from None
        serial = update.serial
        return update, update.last > known, update.expires_ms

    with context.waiting(store.watch_session(context.origin, code)) as watch:
        return await read_or_wait(context, watch, wait_s, read)


async def wait_for_change(
    context: RequestContext, topic: str, since: Position | None, *, at_once: bool, wait_s: float
) -> ListingState:
    """Wait until a topic's listing differs from that at a position, or until the time limit.

    No position stands for an empty listing. With `at_once`, return after the first read: the reader knows another
    store's listing.
    """

    async def read() -> tuple[ListingState, bool, int | None]:
        state = await context.service.store.listing_state(context.origin, topic, since)
        return state, state.changed or at_once, None  # an expiry wakes the watch

    with context.waiting(context.service.store.watch_topic(context.origin, topic), topic) as watch:
        return await read_or_wait(context, watch, wait_s, read)


class TopicFeed:
    """The events `session` and `gone` of a topic, starting with the current listing. `SessionFeed` is used likewise.

    A reader whose cursor cannot be continued gets `reset` before the listing. All do when the store is lost.
    """

    finished = False

    def __init__(self, context: RequestContext, topic: str, cursor: str | None, parameter: str, encode: Encode) -> None:
        self._context = context
        self._store = context.service.store
        self.topic = topic
        self._encode = encode
        context.require_topic(topic)
        self._scope = cursor_scope(context.origin, "topic", topic)
        self._since = parse_cursor(self._store, self._scope, cursor, parameter) if cursor else None
        self._resumes = bool(cursor)
        self._position: Position | None = None
        self._listing = False  # whether the listing is still being sent
        self._more = True
        self.watch = self._store.watch_topic(context.origin, topic)

    async def start(self) -> None:
        """Begin, or raise the reason for which the subscription is refused. One to a topic is never refused."""

    async def next(self, until_s: float) -> bytes | None:
        """Wait for events until a time of the loop's clock.

        Return encoded events, `b""` on timeout, or None once the subscription has ended.
        """
        if self._position is None:
            await self.watch.opened()
            self._position, known = await self._store.begin_topic(self._context.origin, self.topic, self._since)
            self._listing = not known
            if self._resumes and not known:
                return self._event("reset", b"{}", self._position)
        elif self._more:
            await self._context.turn()
        while True:
            retry_s = until_s
            while self._more:
                try:
                    batch = await self._read_batch(self._position)
                except Unavailable:
                    retry_s = min(until_s, self.watch.now_s() + STORE_RETRY_S)
                    break
                self._position, self._more = batch.position, batch.more
                self._listing = self._listing or batch.reset
                if batch.events:
                    return batch.events
            if self._listing and not self._more:
                self._listing, self._more = False, True
                # A reader that resumes from here has seen the whole listing, and all removals before it.
                return self._event("", b"", self._position)
            if not await self.watch.wait(retry_s):
                return None
            self._more = True
            if self.watch.now_s() >= until_s:
                return b""
            await self._context.turn()

    async def _read_batch(self, position: Position) -> EncodedBatch:
        """Return the next batch. All readers at a position share it, so it depends on nothing else of this one."""

        async def make() -> EncodedBatch:
            batch = await self._store.topic_step(self._context.origin, self.topic, position)
            events = [self._event("reset", b"{}", batch.position)] if batch.reset else []
            until_ms = math.inf
            for event in batch.events:
                if isinstance(event, Removed):
                    name, data = "gone", wire.gone(event.code, event.reason)
                else:
                    name, data = "session", wire.listed_session(event.listed)
                    until_ms = min(until_ms, event.listed.session.expires_ms)
                events.append(self._event(name, wire.encode(data), event.position))
            return EncodedBatch(b"".join(events), batch.position, batch.more, until_ms=until_ms, reset=batch.reset)

        key = (self._context.origin, self.topic, position, self._encode)
        return await self._context.service.event_batches.get(key, self._store.now_ms, make, self._context.turn)

    def _event(self, name: str, data: bytes, position: Position) -> bytes:
        return self._encode(name, data, format_cursor(self._store, self._scope, position))


class SessionFeed:
    """The events `offer`, `answer`, `candidate` and `gone` of a session, for the side that reads."""

    finished = False
    topic = ""

    def __init__(
        self,
        context: RequestContext,
        code: str,
        side: Side,
        secret: bytes,
        cursor: str | None,
        parameter: str,
        encode: Encode,
    ) -> None:
        self._context = context
        self._store = context.service.store
        self._code = wire.parse_code(code)
        self._side = side
        self._secret_hash = secret
        self._encode = encode
        self._scope = cursor_scope(context.origin, wire.format_code(self._code), side.value)
        self._parameter = parameter
        self._position = parse_session_cursor(self._store, self._scope, cursor, parameter) if cursor else None
        self._update: SessionUpdate | None = None  # read from the store but not sent
        self._expires_ms = 0
        self.watch = self._store.watch_session(context.origin, self._code)

    async def start(self) -> None:
        await self.watch.opened()
        if (checking := self._context.require_session(self._code)) is not None:
            await checking
        try:
            self._update = await self._read()
        except StalePosition:
            raise InvalidParameter(self._parameter) from None

    async def next(self, until_s: float) -> bytes | None:
        if self.finished:
            return None
        retry_s = math.inf
        while True:
            if self._update is not None:
                events = self._format_events(self._update)
                self._update = None
                if events:
                    return events
            read_s = next_read_s(self._store, self.watch, until_s, self._expires_ms)
            if not await self.watch.wait(read_s if retry_s == math.inf else min(until_s, retry_s)):
                return None
            idle = self.watch.now_s() >= until_s
            await self._context.turn()
            try:
                self._update = await self._read()
            except (SessionNotFound, StalePosition):
                self.finished = True
                expired = self._store.now_ms(self.watch) >= self._expires_ms
                reason = Reason.EXPIRED if expired else Reason.WITHDRAWN
                return self._event("gone", wire.gone(self._code, reason), self._position)
            except Unavailable:
                if idle:
                    return b""
                retry_s = self.watch.now_s() + STORE_RETRY_S
                continue
            retry_s = math.inf
            if idle and self._update.last <= self._number:
                return b""

    @property
    def _number(self) -> int:
        return self._position.number if self._position else 0

    async def _read(self) -> SessionUpdate:
        return await self._store.read(
            self._context.origin, self._code, self._side, since=self._position, secret_hash=self._secret_hash
        )

    def _format_events(self, update: SessionUpdate) -> bytes:
        """Return the messages after the position in order, and advance the position."""
        self._expires_ms = update.expires_ms
        items = [(number, "candidate", text) for number, text in update.candidates]
        if update.description is not None and update.description_number > self._number:
            name = "answer" if self._side is OFFERER else "offer"
            items.append((update.description_number, name, update.description))
        self._position = SessionPosition(update.serial, max(update.last, self._number))
        return b"".join(
            self._event(name, {name: text}, (update.serial, number)) for number, name, text in sorted(items)
        )

    def _event(self, name: str, fields: dict[str, object], position: tuple[int, int] | None) -> bytes:
        cursor = format_cursor(self._store, self._scope, position or (0, 0))
        return self._encode(name, wire.encode(fields), cursor)


Feed = TopicFeed | SessionFeed
