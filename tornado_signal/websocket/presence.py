"""Presence: an offer that is held lives as long as its connection, and a moment longer (contract C10)."""

import asyncio
import contextlib
import functools
import random
from typing import Final, Protocol

from ..errors import SessionNotFound, TooMany, Unavailable
from ..http.site import Site
from ..session import Side

MAX_HELD: Final = 1000  # of a connection
LOOKED_AT: Final = 10  # of those that a connection has held for longest, when it has as many as it may
RENEW_AT: Final = (0.5, 0.75)  # of its lifetime: not all at one moment
MOST_OUTDATED: Final = 1000  # entries of what is due that say nothing any more, beside as many as offers are held
AGAIN_S: Final = 1.0  # after the store could not serve
TICK_S: Final = 0.1  # what is due within the same one shares a timer, as there may be very many

Key = tuple[str, bytes]
"""Origin and code of an offer."""


class Holder(Protocol):
    """A connection that holds offers.

    Attributes:
        held: which, in the order in which it began.
        over: whether the connection has ended.
    """

    held: list[Key]
    over: bool


class Hold:
    """An offer that is held.

    Attributes:
        key: which.
        secret_hash: of its owner's secret; empty for none.
        expires_ms: its expiry as this process has last set it; with another one it is held elsewhere.
        holder: its connection; None when that has ended.
        due: the tick in which to look after it.
    """

    __slots__ = ("due", "expires_ms", "holder", "key", "secret_hash")

    def __init__(self, key: Key, secret_hash: bytes, expires_ms: int, holder: Holder) -> None:
        self.key = key
        self.secret_hash = secret_hash
        self.expires_ms = expires_ms
        self.holder: Holder | None = holder
        self.due = 0


class Holds:
    """The offers that are held by the connections of this process, or were until a moment ago."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._store = site.service.store
        self._grace_s = site.service.settings.hold_grace_ms / 1000
        self._holds: dict[Key, Hold] = {}
        self._due: dict[int, list[Hold]] = {}  # by tick; some may have been forgotten, or be due in another one
        self._entries = 0  # in these lists
        self._tick = 0
        self._ticking = False
        self._loop = asyncio.get_running_loop()

    async def admit(self, holder: Holder) -> None:
        """Check that a connection may hold one more.

        Raises:
            TooMany: it holds as many as it may.
        """
        if len(holder.held) >= MAX_HELD:
            for key in holder.held[:LOOKED_AT]:
                hold = self._holds.get(key)
                if hold is not None and await self._expires_ms(hold) is None:
                    self.forget(key)
        if len(holder.held) >= MAX_HELD:
            raise TooMany("held offers of a connection", 5)

    async def begin(self, holder: Holder, key: Key, secret_hash: bytes) -> None:
        """Hold an offer that was published just now."""
        news = await self._store.read(*key, Side.OFFERER, secret_hash=secret_hash)
        self._put(Hold(key, secret_hash, news.expires_ms, holder))

    async def take_over(self, holder: Holder, key: Key, secret_hash: bytes) -> int:
        """Hold an offer that another connection may have held; its new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: as `Store.refresh`.
        """
        expires_ms = await self._store.refresh(*key, Side.OFFERER, secret_hash=secret_hash)
        self._put(Hold(key, secret_hash, expires_ms, holder))
        return expires_ms

    def moved(self, key: Key, expires_ms: int) -> None:
        """The owner of an offer has refreshed it."""
        hold = self._holds.get(key)
        if hold is not None:
            hold.expires_ms = expires_ms

    def end(self, holder: Holder) -> None:
        """A connection has ended: what it holds is withdrawn, unless another one takes it over in time.

        When the server stops, its clients come back to the next one: everything stays.
        """
        for key in list(holder.held):
            self._let_go(self._holds[key])

    def forget(self, key: Key) -> None:
        """An offer is not held any more."""
        hold = self._holds.pop(key, None)
        if hold is not None:
            self._site.log.metrics.held -= 1
            if hold.holder is not None:
                hold.holder.held.remove(key)
                hold.holder = None  # this may be kept until it is due

    def _put(self, hold: Hold) -> None:
        self.forget(hold.key)
        self._holds[hold.key] = hold
        self._site.log.metrics.held += 1
        assert hold.holder is not None
        hold.holder.held.append(hold.key)
        if hold.holder.over:
            self._let_go(hold)
        else:
            self._renew_later(hold)

    def _let_go(self, hold: Hold) -> None:
        if hold.holder is not None:
            hold.holder.held.remove(hold.key)
            hold.holder = None
        self._look_after(hold, self._grace_s)

    def _renew_later(self, hold: Hold) -> None:
        left_s = (hold.expires_ms - self._store.now_ms()) / 1000
        self._look_after(hold, random.uniform(*RENEW_AT) * left_s)

    # When to look after which

    def _look_after(self, hold: Hold, seconds: float) -> None:
        """Renew an offer then, or withdraw it if it has no connection by then."""
        now_s = self._loop.time()
        if not self._ticking:
            self._ticking = True
            self._tick = int(now_s / TICK_S)
            self._loop.call_later(TICK_S, self._next_tick)
        hold.due = max(int((now_s + seconds) / TICK_S), self._tick) + 1
        self._due.setdefault(hold.due, []).append(hold)
        self._entries += 1
        if self._entries > 2 * len(self._holds) + MOST_OUTDATED:
            self._leave_out_outdated()

    def _leave_out_outdated(self) -> None:
        """Keep an entry only for what is held, as an offer can be taken over again and again."""
        kept = [hold for hold in self._holds.values() if hold.due > self._tick]
        self._due, self._entries = {}, len(kept)
        for hold in kept:
            self._due.setdefault(hold.due, []).append(hold)

    def _next_tick(self) -> None:
        now = int(self._loop.time() / TICK_S)
        while self._tick < now:
            self._tick += 1
            entries = self._due.pop(self._tick, [])
            self._entries -= len(entries)
            for hold in entries:
                if hold.due == self._tick and self._kept(hold):
                    self._site.turns.submit(self, functools.partial(self._begin, hold))
        self._ticking = bool(self._due)
        if self._ticking:
            self._loop.call_later(TICK_S, self._next_tick)

    def _kept(self, hold: Hold) -> bool:
        return self._holds.get(hold.key) is hold

    def _begin(self, hold: Hold) -> None:
        self._site.start(self._look(hold))

    async def _look(self, hold: Hold) -> None:
        if not self._kept(hold):
            return
        due = hold.due
        try:
            if hold.holder is not None:
                await self._renew(hold)
            else:
                await self._withdraw(hold)
        except Unavailable:
            if hold.due == due:  # else its connection has ended meanwhile
                self._look_after(hold, AGAIN_S)

    async def _renew(self, hold: Hold) -> None:
        """Refresh an offer, or forget it if it is answered or held elsewhere."""
        try:
            if await self._expires_ms(hold) != hold.expires_ms:
                raise SessionNotFound
            hold.expires_ms = await self._store.refresh(*hold.key, Side.OFFERER, secret_hash=hold.secret_hash)
        except SessionNotFound:
            if self._kept(hold):
                self.forget(hold.key)
            return
        if self._kept(hold) and hold.holder is not None:
            self._renew_later(hold)

    async def _expires_ms(self, hold: Hold) -> int | None:
        """When an offer expires; None if it is gone or answered."""
        try:
            news = await self._store.read(*hold.key, Side.OFFERER, secret_hash=hold.secret_hash)
        except SessionNotFound:
            return None
        return news.expires_ms if news.description is None else None

    async def _withdraw(self, hold: Hold) -> None:
        if self._site.stopping:
            return
        with contextlib.suppress(SessionNotFound):  # answered, withdrawn, expired, or held elsewhere
            await self._store.withdraw(
                *hold.key, Side.OFFERER, secret_hash=hold.secret_hash, expires_ms=hold.expires_ms
            )
        if self._kept(hold):
            self.forget(hold.key)
