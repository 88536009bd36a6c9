"""Watches: waiting for changes of a key, and waking the waiters. Keys are opaque here.

A key with one watch wakes it immediately. With many, a few are woken per event-loop iteration, in turn by key, so
that a popular key delays no other. The end of all watches is also spread over time, because clients then come back. A
watch is woken once for any number of changes.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType

from ..system.loop import TimerWheel

TICK_S = 0.05
WAKE_STEP = 20
END_PER_S = 10_000
END_S = 2.0  # upper bound for ending all watches


class Watch:
    """A watch on one key. Await `opened` before reading the watched data. Then no later change is missed.

    `woken_s` is the time of the change that ended the last wait, by the loop's clock, or 0. `opening` waits until the
    store notices changes of the key, or is None if it already does.
    """

    __slots__ = ("_changed_s", "_due", "_sleep", "_watches", "closed", "key", "on_close", "opening", "woken_s")

    def __init__(self, watches: "Watches", key: bytes) -> None:
        self._watches = watches
        self.key = key
        self._changed_s = self.woken_s = 0.0
        self._due = 0
        self._sleep: asyncio.Future[bool] | None = None
        self.closed = False
        self.on_close: Callable[[], None] | None = None
        self.opening: Callable[[], Awaitable[None]] | None = None

    async def opened(self) -> None:
        """Wait until the store notices every later change. Reads without a watch never wait for this."""
        if self.opening is not None:
            await self.opening()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def ending(self) -> bool:
        """Whether the store ends all watches."""
        return self._watches.ending

    @property
    def over(self) -> bool:
        return self.closed or self.ending

    def now_s(self) -> float:
        return self._watches.loop.time()

    def wait(self, until_s: float) -> "asyncio.Future[bool]":
        """Wait for a change since the last call, or since the watch was opened. Only one wait at a time is allowed.

        It ends at `until_s` by the loop's clock, kept to within a tick. The future is True after a change or at
        `until_s`, False if the watch is closed or all watches end.
        """
        watches = self._watches
        self._sleep = sleep = watches.loop.create_future()
        if self._changed_s or self.over or watches.loop.time() >= until_s:
            self.wake()
        else:
            self._due = watches.timers.add(self, until_s)
        return sleep

    def close(self) -> None:
        """Stop watching and end the current wait. Further calls do nothing."""
        if not self.closed:
            self.closed = True
            self._watches.forget(self, self.key)
            self.wake()
            on_close, self.on_close = self.on_close, None  # break a possible reference cycle
            if on_close is not None:
                on_close()

    def change(self, changed_s: float) -> None:
        """Record a change at this time by the loop's clock, and end the current wait."""
        self._changed_s = changed_s
        self.wake()

    def wake(self) -> None:
        """End the current wait, if any."""
        sleep, self._sleep = self._sleep, None
        if sleep is not None:
            self._watches.timers.remove(self, self._due)
            self.woken_s, self._changed_s = self._changed_s, 0.0
            if not sleep.done():
                sleep.set_result(not self.over)


class Watches:
    """All watches of a process, on one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ending = False  # whether all watches end and no new wait starts
        self._by_key: dict[bytes, set[Watch]] = {}
        self.timers = TimerWheel[Watch](TICK_S, self._enqueue_end)
        # The watches to wake by key, each with the time of the change. The keys are in the order in which they wake a
        # watch. A key can stay there after its watches have closed.
        self._changed: dict[bytes, dict[Watch, float]] = {}
        self._changed_keys: deque[bytes] = deque()
        self._to_end: deque[Watch] = deque()
        self._waking = False

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))

    def watch(self, key: bytes) -> Watch:
        watch = Watch(self, key)
        self._by_key.setdefault(key, set()).add(watch)
        return watch

    def keys(self) -> list[bytes]:
        return list(self._by_key)

    def watched(self, key: bytes) -> bool:
        return key in self._by_key

    def changed(self, key: bytes) -> None:
        """Wake the watches of a changed key, a few per event-loop iteration."""
        watching = self._by_key.get(key)
        if watching is None:
            return
        if len(watching) == 1:  # the usual case for sessions
            next(iter(watching)).change(self.loop.time())
        else:
            if key not in self._changed:
                self._changed[key] = {}
                self._changed_keys.append(key)
            self._changed[key].update(dict.fromkeys(watching, self.loop.time()))
            self._wake_soon()

    def end(self) -> None:
        """End all waits, spread over up to `END_S`, and refuse new ones."""
        if not self.ending:
            self.ending = True
            waiting = [watch for watching in self._by_key.values() for watch in watching]
            self._end_some(waiting, math.ceil(TICK_S * max(END_PER_S, len(waiting) / END_S)))

    def _end_some(self, remaining: list[Watch], count: int) -> None:
        """End `count` watches now, and as many at each further tick."""
        self._to_end.extend(remaining[-count:])
        del remaining[-count:]
        self._wake_soon()
        if remaining:
            self.loop.call_later(TICK_S, self._end_some, remaining, count)

    def forget(self, watch: Watch, key: bytes) -> None:
        """Remove a closed watch, which calls this."""
        watching = self._by_key[key]
        watching.discard(watch)
        if not watching:
            del self._by_key[key]
        changed = self._changed.get(key)
        if changed is not None:
            changed.pop(watch, None)

    def _enqueue_end(self, watch: Watch) -> None:
        self._to_end.append(watch)
        self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self._wake_some)

    def _wake_some(self) -> None:
        try:
            for _ in range(WAKE_STEP):
                if self._to_end:
                    self._to_end.popleft().wake()
                if self._changed_keys:
                    key = self._changed_keys.popleft()
                    watching = self._changed[key]
                    if watching:
                        watch, changed_s = watching.popitem()
                        self._changed_keys.append(key)
                        watch.change(changed_s)
                    else:
                        del self._changed[key]
                elif not self._to_end:
                    break
        finally:  # an error of one watch must not stop the others
            self._waking = bool(self._to_end or self._changed_keys)
            if self._waking:
                self.loop.call_soon(self._wake_some)
