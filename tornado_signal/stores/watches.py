"""Watches: what waits for news of a key, and how it is woken. Nothing here knows what keys are.

A key that has one watch wakes it at once. Waking many is spread: so many in each turn of the event loop, one key after
the other, so that what thousands wait for delays no others; and at the end also over time, because clients that are
told that it is over come back. A watch that has to be woken is woken once, however often its key changes meanwhile.
Time-outs are kept together: all that are due within the same tick share it, and the only timer is the ticking,
which stops when nothing waits.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

TICK_S = 0.05
WAKE_STEP = 20
END_PER_S = 10_000
END_S = 2.0  # the most that the end takes, however many there are


class Watch:
    """One interest in one key. Await `opened` before reading what it is about: then no later change goes unnoticed.

    Attributes:
        key: what is watched.
        closed: whether it has been closed; waiting is over then.
        on_close: called when that happens.
        opening: waits until the store notices changes of the key; None if it does already.
    """

    __slots__ = ("_changed", "_due", "_sleep", "_watches", "closed", "key", "on_close", "opening")

    def __init__(self, watches: "Watches", key: bytes) -> None:
        self._watches = watches
        self.key = key
        self._changed = False
        self._due = 0
        self._sleep: asyncio.Future[bool] | None = None
        self.closed = False
        self.on_close: Callable[[], None] | None = None
        self.opening: Callable[[], Awaitable[None]] | None = None

    async def opened(self) -> None:
        """Wait until every later change is noticed. Only those who watch wait, never others who read.

        Raises:
            Unavailable: the store does not notice changes now.
        """
        if self.opening is not None:
            await self.opening()

    def __enter__(self) -> "Watch":
        """For `with`: it is closed at the end."""
        return self

    def __exit__(self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        """Close it."""
        self.close()

    @property
    def over(self) -> bool:
        """Whether nothing more is to be waited for."""
        return self.closed or self._watches.ending

    def now_s(self) -> float:
        """The time by the loop's clock."""
        return self._watches.loop.time()

    def wait(self, until_s: float) -> "asyncio.Future[bool]":
        """Wait for a change since the last call (or since the opening). One wait at a time.

        Args:
            until_s: by the loop's clock, when to stop waiting; kept to within a tick.

        Returns:
            A future: True when there was one, or it is time; False when nothing more is to be waited for (the
            watch is closed, or all are told to end).
        """
        watches = self._watches
        self._sleep = sleep = watches.loop.create_future()
        if self._changed or self.over or watches.loop.time() >= until_s:
            self.wake()
        else:
            self._due = watches.book(self, until_s)
        return sleep

    def close(self) -> None:
        """Stop watching, and end the wait if there is one. May be called more than once."""
        if not self.closed:
            self.closed = True
            self._watches.forget(self, self.key)
            self.wake()
            on_close, self.on_close = self.on_close, None  # it may refer back
            if on_close is not None:
                on_close()

    def change(self) -> None:
        """What it is about has changed."""
        self._changed = True
        self.wake()

    def wake(self) -> None:
        """End the wait, if there is one."""
        sleep, self._sleep = self._sleep, None
        if sleep is not None:
            self._watches.unbook(self, self._due)
            self._changed = False
            if not sleep.done():
                sleep.set_result(not self.over)


class Watches:
    """All watches of a process. Belongs to one event loop.

    Attributes:
        ending: whether every watch has been told to stop waiting.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ending = False
        self._by_key: dict[bytes, set[Watch]] = {}
        self._by_tick: dict[int, set[Watch]] = {}
        self._tick = 0
        self._ticking = False
        self._changed: dict[
            bytes, dict[Watch, None]
        ] = {}  # by key, those that have to be woken; the next key is the first
        self._late: deque[Watch] = deque()
        self._waking = False

    def __len__(self) -> int:
        """How many watches are open."""
        return sum(map(len, self._by_key.values()))

    def watch(self, key: bytes) -> Watch:
        """Open a watch."""
        watch = Watch(self, key)
        self._by_key.setdefault(key, set()).add(watch)
        return watch

    def watched(self, key: bytes) -> bool:
        """Whether anything watches a key."""
        return key in self._by_key

    def changed(self, key: bytes) -> None:
        """Something about a key has changed: wake what watches it, a few in each turn of the loop."""
        watching = self._by_key.get(key)
        if watching is None:
            return
        if len(watching) == 1:  # as most sessions have it
            next(iter(watching)).change()
        else:
            self._changed.setdefault(key, {}).update(dict.fromkeys(watching))
            self._wake_soon()

    def end(self) -> None:
        """End every wait, so many a second; none begins from now on."""
        if not self.ending:
            self.ending = True
            waiting = [watch for watching in self._by_key.values() for watch in watching]
            self._end_some(waiting, math.ceil(TICK_S * max(END_PER_S, len(waiting) / END_S)))

    def _end_some(self, waiting: list[Watch], count: int) -> None:
        self._late.extend(waiting[-count:])
        del waiting[-count:]
        self._wake_soon()
        if waiting:
            self.loop.call_later(TICK_S, self._end_some, waiting, count)

    # For the watches

    def book(self, watch: Watch, until_s: float) -> int:
        """Have a watch woken at a time; returns the tick, for `unbook`."""
        if not self._ticking:
            self._ticking = True
            self._tick = int(self.loop.time() / TICK_S)
            self.loop.call_later(TICK_S, self._next_tick)
        due = max(int(until_s / TICK_S), self._tick) + 1
        self._by_tick.setdefault(due, set()).add(watch)
        return due

    def unbook(self, watch: Watch, due: int) -> None:
        """It need not be woken any more."""
        waiting = self._by_tick.get(due)
        if waiting is not None:
            waiting.discard(watch)
            if not waiting:
                del self._by_tick[due]

    def forget(self, watch: Watch, key: bytes) -> None:
        """It is closed."""
        watching = self._by_key[key]
        watching.discard(watch)
        if not watching:
            del self._by_key[key]
        changed = self._changed.get(key)
        if changed is not None:
            changed.pop(watch, None)
            if not changed:
                del self._changed[key]

    def _next_tick(self) -> None:
        now = int(self.loop.time() / TICK_S)
        while self._tick < now:
            self._tick += 1
            self._late.extend(self._by_tick.pop(self._tick, ()))
        if self._late:
            self._wake_soon()
        if self._by_tick:
            self.loop.call_later(TICK_S, self._next_tick)
        else:
            self._ticking = False

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(WAKE_STEP):
            if self._late:
                self._late.popleft().wake()
            if self._changed:
                key = next(iter(self._changed))
                watching = self._changed.pop(key)
                watch = next(iter(watching))
                del watching[watch]
                if watching:
                    self._changed[key] = watching  # behind all others
                watch.change()
            elif not self._late:
                self._waking = False
                return
        self.loop.call_soon(self._wake_some)
