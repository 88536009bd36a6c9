"""Presence: a held offer lives as long as its connection and a grace period (docs/websocket-api.md#held-offers)."""

import asyncio
import contextlib
import itertools
import logging
import random
from typing import Final, Protocol

from ..errors import SessionNotFound, TooMany, Unavailable
from ..service.client_connection import ClientCounts
from ..service.service import Service
from ..session import LEASE_BYTES, Side
from ..system.loop import TimerWheel, in_slices

log = logging.getLogger(__name__)

MAX_HELD: Final = 1000  # of a connection
CHECKED_AT_ONCE: Final = 10  # oldest offers of a connection that are checked when it holds as many as it may
RENEW_AT: Final = (0.5, 0.75)  # of its lifetime: not all at one moment
STORE_RETRY_S: Final = 1.0  # after the store was unavailable
LOST_SPREAD_S: Final = 2.0  # within this time all offers are checked after the store has lost sessions
CHECK_STEP: Final = 500  # offers whose check is scheduled per event-loop iteration
TICK_S: Final = 0.1  # all offers that are due in one tick share a timer

Key = tuple[str, bytes]
"""Origin and code of an offer."""


class Holder(Protocol):
    """A connection that holds offers, in the order of `held`.

    `lease` is that of its offers in the store. `reconnect` closes it: its client comes back and learns which are gone.
    """

    lease: bytes
    held: list["Hold"]
    reserved: int
    closed: bool
    counts: ClientCounts

    def reconnect(self) -> None: ...


class Hold:
    """An offer that is held by a connection."""

    __slots__ = ("checked", "counts", "due", "holder", "key", "lease", "secret_hash", "topic")

    def __init__(self, key: Key, topic: str | None, secret_hash: bytes, holder: Holder) -> None:
        self.key = key  # the origin and code of the offer
        self.topic = topic  # its topic, or None if another connection has published it
        self.lease = holder.lease  # the lease of the offer in the store, until another connection takes it over
        self.secret_hash = secret_hash  # the hash of the owner's secret, or empty
        self.counts = holder.counts  # what its client has open
        self.holder: Holder | None = holder  # the connection, or None after its end
        self.due = 0  # the tick of its next renewal or withdrawal
        self.checked = False  # whether the store has lost sessions since the last renewal, perhaps this one


class Presence:
    """The offers that are held by the connections of this process, or were until a moment ago."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self._grace_s = service.settings.hold_grace_ms / 1000
        # By offer, in order. Several connections can hold one offer if they have published the same content.
        self._holds: dict[Key, dict[Hold, None]] = {}
        self._numbers = itertools.count(1)
        self._timers = TimerWheel[Hold](TICK_S, self._submit)
        self._loop = asyncio.get_running_loop()
        self._store.on_lost = self._check_all

    def _make_lease(self) -> bytes:
        number = next(self._numbers) % 2**32
        return self._store.process_id + number.to_bytes(LEASE_BYTES - len(self._store.process_id), "big")

    async def reserve(self, holder: Holder) -> None:
        """Reserve a place for one more offer of a connection, until `begin` or `cancel`, and give it its lease.

        Raise TooMany if there is none.
        """
        if self._is_full(holder):
            for hold in holder.held[:CHECKED_AT_ONCE]:
                if not await self._waits_for_answer(hold):
                    self._drop(hold)
        if self._is_full(holder):
            raise TooMany("held offers of a connection", 5)
        self._service.limits.acquire_hold(holder.counts)
        holder.reserved += 1
        holder.lease = holder.lease or self._make_lease()

    def cancel(self, holder: Holder) -> None:
        """Give a reserved place back."""
        holder.reserved -= 1
        holder.counts.held -= 1

    def begin(self, holder: Holder, key: Key, topic: str | None, secret_hash: bytes, expires_ms: int) -> None:
        """Hold an offer in the place that is reserved, with others that hold the same content."""
        if key in self._holds:
            for hold in [hold for hold in holder.held if hold.key == key]:
                self._drop(hold)
        holder.reserved -= 1
        hold = Hold(key, topic, secret_hash, holder)
        self._holds.setdefault(key, {})[hold] = None
        self._service.log.metrics.held += 1
        holder.held.append(hold)
        if holder.closed:
            self._end_holder(hold)
        else:
            self._renew_later(hold, expires_ms)

    async def take_over(self, holder: Holder, key: Key, secret_hash: bytes) -> int:
        """Take an offer over from other connections, in the reserved place. Return its expiry, Unix milliseconds."""
        expires_ms = await self._store.hold(*key, holder.lease, secret_hash=secret_hash)
        self.forget(key)
        self.begin(holder, key, None, secret_hash, expires_ms)
        return expires_ms

    def end(self, holder: Holder) -> None:
        """Withdraw the offers of a closed connection, unless another connection takes them over in time.

        If the server stops, the offers stay, because its clients reconnect to the next one.
        """
        for hold in list(holder.held):
            self._end_holder(hold)

    def forget(self, key: Key) -> None:
        for hold in list(self._holds.get(key, ())):
            self._drop(hold)

    def _drop(self, hold: Hold) -> None:
        if not self._is_kept(hold):
            return
        holds = self._holds[hold.key]
        del holds[hold]
        if not holds:
            del self._holds[hold.key]
        self._timers.remove(hold, hold.due)
        self._service.log.metrics.held -= 1
        hold.counts.held -= 1
        if hold.holder is not None:
            hold.holder.held.remove(hold)
            hold.holder = None

    def _is_full(self, holder: Holder) -> bool:
        return len(holder.held) + holder.reserved >= MAX_HELD

    def _is_kept(self, hold: Hold) -> bool:
        return hold in self._holds.get(hold.key, ())

    def _end_holder(self, hold: Hold) -> None:
        if hold.holder is not None:
            hold.holder.held.remove(hold)
            hold.holder = None
        self._schedule(hold, self._grace_s)

    def _renew_later(self, hold: Hold, expires_ms: int) -> None:
        left_s = (expires_ms - self._store.now_ms()) / 1000
        self._schedule(hold, random.uniform(*RENEW_AT) * left_s)

    def _check_all(self) -> None:
        """Renew all offers soon, not all at one moment, because the store has lost sessions."""
        in_slices([hold for holds in self._holds.values() for hold in holds], self._check, CHECK_STEP)

    def _check(self, hold: Hold) -> None:
        if hold.holder is not None and self._is_kept(hold):
            hold.checked = True
            self._schedule(hold, random.uniform(0, LOST_SPREAD_S))

    # Timers

    def _schedule(self, hold: Hold, seconds: float) -> None:
        """Renew an offer after a time, or withdraw it if it has no connection by then."""
        self._timers.remove(hold, hold.due)
        hold.due = self._timers.add(hold, self._loop.time() + seconds)

    def _submit(self, hold: Hold) -> None:
        self._service.resuming.submit(hold.counts, lambda: self._service.start(self._process(hold)))

    async def _process(self, hold: Hold) -> None:
        if not self._is_kept(hold):
            return
        due = hold.due
        try:
            if hold.holder is not None:
                expires_ms = await self._store.renew(*hold.key, hold.lease)
                hold.checked = False
                if hold.holder is not None and self._is_kept(hold):
                    self._renew_later(hold, expires_ms)
                return
            if self._service.lifecycle.leaving:
                return
            await self._store.release(*hold.key, hold.lease)
        except SessionNotFound:  # answered, withdrawn, expired, held elsewhere, or lost
            if hold.checked and hold.holder is not None:
                hold.holder.reconnect()
        except Exception as error:  # also after an unknown one the offer must be renewed or released
            if not isinstance(error, Unavailable):
                log.exception("cannot renew or release a held offer: trying again")
            if hold.due == due:  # otherwise its connection has ended in the meantime
                self._schedule(hold, STORE_RETRY_S)
            return
        self._drop(hold)

    async def _waits_for_answer(self, hold: Hold) -> bool:
        with contextlib.suppress(SessionNotFound):
            news = await self._store.read(*hold.key, Side.OFFERER, secret_hash=hold.secret_hash)
            return news.description is None
        return False
