"""Fair scheduling of work: a few items start per event-loop iteration, round-robin by client. No I/O."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

MAX_STARTED: Final = 6  # items started per event-loop iteration
TURN_S: Final = 0.004  # target duration of the work per iteration; after a longer one fewer items start


class FairQueue:
    """Starts work in the order of arrival, one item of each client in turn.

    A client with a thousand expensive requests delays only itself. Between two of its items the event loop runs
    everything else, and items of other clients start first. It needs a running event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # The context of the work, so that no client's inherits that of another one.
        self.context = contextvars.copy_context()
        self._waiting: dict[Hashable, deque[Callable[[], object]]] = {}
        # A deque, because finding the first key of a dictionary takes as long as all keys that were before it.
        self._clients: deque[Hashable] = deque()  # those of `_waiting` in the order of their turns
        self._most = MAX_STARTED
        self._begun_s = 0.0  # when the work of the last turn began
        self._direct_s = 0.0  # when the last span began in which work is started directly
        self._direct = 0  # how often `may_start` has been called in it
        self._running = False

    def may_start(self, now_s: float) -> bool:
        """Return whether the caller may start work directly: nothing waits, and little has been started just now.

        Otherwise it must `submit` it. Such work must do little at once, such as create a task. The time is that of
        `perf_counter`.
        """
        if self._running:
            return False
        if now_s - self._direct_s > TURN_S:
            self._direct_s, self._direct = now_s, 0
        self._direct += 1
        return self._direct <= MAX_STARTED

    def submit(self, client: Hashable, begin: Callable[[], object], *, next_: bool = False) -> None:
        """Queue a function, which is called in one of the next event-loop iterations.

        With `next_` it precedes the client's queued work.
        """
        mine = self._waiting.get(client)
        if mine is None:
            mine = self._waiting[client] = deque()
            self._clients.append(client)
        (mine.appendleft if next_ else mine.append)(begin)
        if not self._running:
            self._running = True
            self._most = MAX_STARTED
            self._begun_s = 0.0
            self._loop.call_soon(self._begin_some, context=self.context)

    def turn(self, client: Hashable, *, next_: bool = False) -> "asyncio.Future[None]":
        """Return a future that is done at the client's turn. See `submit`."""
        turn: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if not turn.done():
                turn.set_result(None)

        self.submit(client, begin, next_=next_)
        return turn

    def _begin_some(self) -> None:
        now_s = perf_counter()
        if self._begun_s:  # the begun work has run since then, and so have other callbacks
            took_s = now_s - self._begun_s
            self._most = max(1, self._most // 2) if took_s > TURN_S else min(MAX_STARTED, self._most + 1)
        waiting = self._waiting
        try:
            for _ in range(self._most):
                if not waiting:
                    break
                client = self._clients.popleft()
                mine = waiting[client]
                begin = mine.popleft()
                if mine:
                    self._clients.append(client)
                else:
                    del waiting[client]
                begin()
        finally:  # what cannot be begun holds up nothing else
            self._begun_s = now_s
            self._running = bool(waiting)
            if waiting:
                self._loop.call_soon(self._begin_some, context=self.context)
