"""How far the process is: one state, which everything else compares or waits for."""

import asyncio
import enum


class State(enum.IntEnum):
    """States in their order; a process skips some of them, and never returns to one.

    STARTING: nothing is served.
    SERVING: clients are served.
    LEAVING: clients are served, but the process is not ready for new ones.
    DRAINING: further calls are refused, and those being worked on are answered.
    CLOSED: whatever is still open is closed at once.
    """

    STARTING = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()
    DRAINING = enum.auto()
    CLOSED = enum.auto()


STARTING, SERVING, LEAVING, DRAINING, CLOSED = State


class Lifecycle:
    """The state of one process.

    Attributes:
        state: the current one.
    """

    def __init__(self) -> None:
        self.state = STARTING
        self._reached = {state: asyncio.Event() for state in State}

    def reach(self, state: State) -> None:
        """Advance to a state. Nothing changes if the process is there or beyond."""
        self.state = max(self.state, state)
        for each, event in self._reached.items():
            if each <= self.state:
                event.set()

    def stop(self) -> None:
        """Begin to stop, or stop at once if that has begun."""
        self.reach(LEAVING if self.state < LEAVING else CLOSED)

    async def reached(self, state: State) -> None:
        """Wait until the process is in a state or beyond."""
        await self._reached[state].wait()
