"""Work on the event loop: calls that fail alone, repeated work, shared timers, work in slices, and the loop's lag."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Set
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
LAG_PAUSE_S: Final = 0.1


def guarded(call: Callable[..., object], *arguments: object) -> None:
    """Call a function. An exception is logged instead of raised, so that the caller continues."""
    try:
        call(*arguments)
    except Exception:
        log.exception("unhandled exception; please report this bug")


class Repeating:
    """Calls a function again and again. Needs a running event loop.

    Tornado's PeriodicCallback plans by the wall clock: after the clock is set back it does nothing for that long.

    The pause precedes each call. A coroutine is awaited before the next pause. An exception is logged, and the work
    continues.
    """

    def __init__(self, work: Callable[[], Awaitable[None] | None], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and cancel the current call."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                if (awaitable := self._work()) is not None:
                    await awaitable
            except Exception:
                log.exception("repeated work failed; repeating it")


class TimerWheel(Generic[T]):
    """Timers that are kept to within a tick. One timer of the loop serves all of them, and stops when none is set.

    `on_due` is called for each entry that is due, in the order in which those of a tick were added.
    """

    def __init__(self, tick_s: float, on_due: Callable[[T], object]) -> None:
        self._tick_s = tick_s
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._by_tick: dict[int, dict[T, None]] = {}
        self._tick = 0  # the latest one whose entries were due
        self._running = False

    def add(self, entry: T, due_s: float) -> int:
        """Add an entry that is due at a time of the loop's clock. Return its tick, for `remove`."""
        if not self._running:
            self._running = True
            self._tick = int(self._loop.time() / self._tick_s)
            self._loop.call_later(self._tick_s, self._advance)
        tick = max(int(due_s / self._tick_s), self._tick) + 1
        self._by_tick.setdefault(tick, {})[entry] = None
        return tick

    def remove(self, entry: T, tick: int) -> None:
        """Remove an entry that is not due yet. Do nothing if it is not set."""
        entries = self._by_tick.get(tick)
        if entries is not None:
            entries.pop(entry, None)
            if not entries:
                del self._by_tick[tick]

    def _advance(self) -> None:
        now = int(self._loop.time() / self._tick_s)
        while self._tick < now:
            self._tick += 1
            for entry in self._by_tick.pop(self._tick, ()):
                guarded(self._on_due, entry)
        self._running = bool(self._by_tick)
        if self._running:
            self._loop.call_later(self._tick_s, self._advance)


def in_slices(items: list[T], work: Callable[[T], object], size: int) -> None:
    """Call a function for `size` items per event-loop iteration, the last one first. The list is emptied.

    An exception ends its slice only.
    """
    due = items[-size:]
    del items[-size:]
    if items:
        asyncio.get_running_loop().call_soon(in_slices, items, work, size)
    while due:
        work(due.pop())


async def slices(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """Yield `size` items at a time, and let the event loop run after each step."""
    copied = list(items)
    for at in range(0, len(copied), size):
        yield copied[at : at + size]
        await asyncio.sleep(0)


async def present(items: Set[T], size: int) -> AsyncIterator[list[T]]:
    """Yield at most `size` items of a changing set at a time, without those that have been removed meanwhile.

    The items of a step are present until the caller's next `await`.
    """
    async for some in slices(items, size):
        yield [item for item in some if item in items]


class Lag:
    """Observes ten times a second how late timers fire, in seconds. Needs a running event loop."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def stop(self) -> None:
        self._next.cancel()

    def _schedule(self) -> None:
        self._due_s = time.monotonic() + LAG_PAUSE_S  # the loop's own clock does not advance while it runs callbacks
        self._next = self._loop.call_later(LAG_PAUSE_S, self._measure)

    def _measure(self) -> None:
        self._observe(max(0.0, time.monotonic() - self._due_s))
        self._schedule()
