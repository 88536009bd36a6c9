"""The life cycle of the process: one state that all other parts compare or await."""

import asyncio
import enum


class State(enum.IntEnum):
    """The states in their order. A process can skip states and never returns to an earlier one.

    STARTING: nothing is served.
    SERVING: clients are served.
    LEAVING: clients are served, but the process is not ready for new ones.
    DRAINING: new requests are refused, and current ones are completed.
    CLOSED: all remaining connections are closed immediately.
    """

    STARTING = enum.auto()
    SERVING = enum.auto()
    LEAVING = enum.auto()
    DRAINING = enum.auto()
    CLOSED = enum.auto()


STARTING, SERVING, LEAVING, DRAINING, CLOSED = State


class Lifecycle:
    """The state of one process."""

    def __init__(self) -> None:
        self.state = STARTING
        self._reached = {state: asyncio.Event() for state in State}

    @property
    def leaving(self) -> bool:
        """Whether the process is not ready for new clients."""
        return self.state >= LEAVING

    def reach(self, state: State) -> None:
        """Advance to a state. Do nothing if the process has already reached it."""
        self.state = max(self.state, state)
        for earlier, event in self._reached.items():
            if earlier <= self.state:
                event.set()

    def stop(self) -> None:
        """Start stopping. A second call stops immediately."""
        self.reach(LEAVING if self.state < LEAVING else CLOSED)

    async def reached(self, state: State) -> None:
        await self._reached[state].wait()
