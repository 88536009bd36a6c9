"""Work of many clients, started a few items in each turn of the event loop, one client after the other. No I/O."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Final

MOST: Final = 6  # items started in one turn of the loop
TURN_S: Final = 0.004  # for the work of one turn; if it takes longer, fewer items are started in the next


class FairQueue:
    """Starts work in the order of arrival, one item of each client in turn.

    A client that asks for a thousand costly things at once delays only itself: between any two of them the event loop
    runs everything else, and items of other clients come first. Needs a running event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # so that no client's work inherits that of another one
        self._waiting: dict[Hashable, deque[Callable[[], object]]] = {}  # the next client is the first
        self._most = MOST
        self._begun_s = 0.0  # when the work of the last turn began
        self._running = False

    def submit(self, client: Hashable, begin: Callable[[], object], *, next_: bool = False) -> None:
        """Queue a function; it is called in one of the next turns of the loop.

        Args:
            client: whose it is.
            begin: the function.
            next_: whether it is the first that this client has to do.
        """
        mine = self._waiting.get(client)
        if mine is None:
            mine = self._waiting[client] = deque()
        (mine.appendleft if next_ else mine.append)(begin)
        if not self._running:
            self._running = True
            self._most = MOST
            self._begun_s = 0.0
            self._loop.call_soon(self._begin_some, context=self._context)

    def turn(self, client: Hashable, *, next_: bool = False) -> "asyncio.Future[None]":
        """A future that is done when it is the client's turn; see `submit`."""
        turn: asyncio.Future[None] = self._loop.create_future()

        def begin() -> None:
            if not turn.done():
                turn.set_result(None)

        self.submit(client, begin, next_=next_)
        return turn

    def _begin_some(self) -> None:
        now_s = perf_counter()
        if self._begun_s:  # what was begun has run since then, and so has whatever else there was to do
            took_s = now_s - self._begun_s
            self._most = max(1, self._most // 2) if took_s > TURN_S else min(MOST, self._most + 1)
        waiting = self._waiting
        try:
            for _ in range(self._most):
                if not waiting:
                    break
                client = next(iter(waiting))
                mine = waiting.pop(client)
                begin = mine.popleft()
                if mine:
                    waiting[client] = mine  # behind all others
                begin()
        finally:  # what cannot be begun holds up nothing else
            self._begun_s = now_s
            self._running = bool(waiting)
            if waiting:
                self._loop.call_soon(self._begin_some, context=self._context)
