"""Presence: an offer that is held lives as long as its connection, and a moment longer (contract C10)."""

import asyncio
import random
from typing import Final, Protocol

from ..errors import SessionNotFound, TooMany, Unavailable
from ..http.site import Site
from ..session import Side

MAX_HELD: Final = 1000  # of a connection
LOOKED_AT: Final = 10  # of those that a connection has held for longest, when it has as many as it may
RENEW_AT: Final = (0.5, 0.75)  # of its lifetime: not all at one moment
AGAIN_S: Final = 1.0  # after the store could not serve

Key = tuple[str, bytes]
"""Origin and code of an offer."""


class Holder(Protocol):
    """A connection that holds offers.

    Attributes:
        held: which, in the order in which it began.
        over: whether the connection has ended.
    """

    held: dict[Key, None]
    over: bool


class Hold:
    """An offer that is held.

    Attributes:
        secret_hash: of its owner's secret; empty for none.
        expires_ms: its expiry as this process has last set it; with another one it is held elsewhere.
        holder: its connection; None when that has ended.
        timer: when to look after it.
    """

    __slots__ = ("expires_ms", "holder", "secret_hash", "timer")

    def __init__(self, secret_hash: bytes, expires_ms: int, holder: Holder) -> None:
        self.secret_hash = secret_hash
        self.expires_ms = expires_ms
        self.holder: Holder | None = holder
        self.timer: asyncio.TimerHandle | None = None


class Holds:
    """The offers that are held by the connections of this process, or were until a moment ago."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._store = site.service.store
        self._grace_s = site.service.settings.hold_grace_ms / 1000
        self._holds: dict[Key, Hold] = {}
        self._loop = asyncio.get_running_loop()

    async def admit(self, holder: Holder) -> None:
        """Check that a connection may hold one more.

        Raises:
            TooMany: it holds as many as it may.
        """
        if len(holder.held) >= MAX_HELD:
            for key in list(holder.held)[:LOOKED_AT]:
                hold = self._holds.get(key)
                if hold is not None and await self._expires_ms(key, hold) is None:
                    self.forget(key)
        if len(holder.held) >= MAX_HELD:
            raise TooMany("held offers of a connection", 5)

    async def begin(self, holder: Holder, key: Key, secret_hash: bytes) -> None:
        """Hold an offer that was published just now."""
        news = await self._store.read(*key, Side.OFFERER, secret_hash=secret_hash)
        self._put(key, Hold(secret_hash, news.expires_ms, holder))

    async def take_over(self, holder: Holder, key: Key, secret_hash: bytes) -> int:
        """Hold an offer that another connection may have held; its new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: as `Store.refresh`.
        """
        expires_ms = await self._store.refresh(*key, Side.OFFERER, secret_hash=secret_hash)
        self._put(key, Hold(secret_hash, expires_ms, holder))
        return expires_ms

    def end(self, holder: Holder) -> None:
        """A connection has ended: what it holds is withdrawn, unless another one takes it over in time.

        When the server stops, its clients come back to the next one: everything stays.
        """
        for key in list(holder.held):
            self._let_go(key)

    def forget(self, key: Key) -> None:
        """An offer is not held any more."""
        hold = self._holds.pop(key, None)
        if hold is not None:
            self._release(key, hold)

    def _put(self, key: Key, hold: Hold) -> None:
        self.forget(key)
        self._holds[key] = hold
        self._site.log.metrics.held += 1
        assert hold.holder is not None
        hold.holder.held[key] = None
        if hold.holder.over:
            self._let_go(key)
        else:
            self._set_timer(key, hold)

    def _release(self, key: Key, hold: Hold) -> None:
        self._site.log.metrics.held -= 1
        if hold.timer is not None:
            hold.timer.cancel()
        if hold.holder is not None:
            hold.holder.held.pop(key, None)

    def _let_go(self, key: Key) -> None:
        hold = self._holds[key]
        if hold.holder is not None:
            hold.holder.held.pop(key, None)
            hold.holder = None
        if hold.timer is not None:
            hold.timer.cancel()
        hold.timer = self._loop.call_later(self._grace_s, lambda: self._site.start(self._withdraw(key)))

    def _set_timer(self, key: Key, hold: Hold) -> None:
        left_s = (hold.expires_ms - self._store.now_ms()) / 1000
        hold.timer = self._loop.call_later(
            random.uniform(*RENEW_AT) * left_s, lambda: self._site.start(self._renew(key))
        )

    async def _renew(self, key: Key) -> None:
        """Refresh an offer, or forget it if it is answered or held elsewhere."""
        hold = self._holds.get(key)
        if hold is None or hold.holder is None:
            return
        try:
            if await self._expires_ms(key, hold) != hold.expires_ms:
                raise SessionNotFound
            expires_ms = await self._store.refresh(*key, Side.OFFERER, secret_hash=hold.secret_hash)
        except SessionNotFound:
            if self._holds.get(key) is hold:
                self.forget(key)
        except Unavailable:
            hold.timer = self._loop.call_later(AGAIN_S, lambda: self._site.start(self._renew(key)))
        else:
            hold.expires_ms = expires_ms
            if self._holds.get(key) is hold and hold.holder is not None:
                self._set_timer(key, hold)

    async def _expires_ms(self, key: Key, hold: Hold) -> int | None:
        """When an offer expires; None if it is gone or answered."""
        try:
            news = await self._store.read(*key, Side.OFFERER, secret_hash=hold.secret_hash)
        except SessionNotFound:
            return None
        return news.expires_ms if news.description is None else None

    async def _withdraw(self, key: Key) -> None:
        hold = self._holds.get(key)
        if hold is None or hold.holder is not None or self._site.stopping:
            return
        try:
            await self._store.withdraw(*key, Side.OFFERER, secret_hash=hold.secret_hash, expires_ms=hold.expires_ms)
        except Unavailable:
            hold.timer = self._loop.call_later(AGAIN_S, lambda: self._site.start(self._withdraw(key)))
            return
        except SessionNotFound:  # answered, withdrawn, expired, or held elsewhere
            pass
        if self._holds.get(key) is hold:
            self.forget(key)
