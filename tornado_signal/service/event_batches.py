"""Steps of topics' events: read and encoded once, however many streams send them."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from ..session import Position

STEPS_KEPT = 8  # of all topics, at most a megabyte or two each


class Event(NamedTuple):
    """One event of a subscription (contract C3).

    Attributes:
        type: `session`, `offer`, `answer`, `candidate` or `gone`; empty if nothing but the cursor is new.
        data: JSON.
        cursor: where a reader has come to that has got it.
    """

    type: str
    data: bytes
    cursor: str


Encode = Callable[[Event], bytes]
"""Puts an event in the form that a protocol sends."""


class EncodedBatch(NamedTuple):
    """A step of a topic's events, for every reader of one protocol that comes from the same position.

    Attributes:
        events: as they are sent; none if nothing has happened.
        position: where a reader has come to that has got them.
        more: whether there is more to be told.
        until_ms: from when on it is not to be sent any more, since something in it has expired.
    """

    events: bytes
    position: Position
    more: bool
    until_ms: float


class EventBatchCache:
    """The latest steps, by origin, topic, position that they go on from, and protocol: many streams may need each."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, asyncio.Future[EncodedBatch | None]] = {}

    async def get(
        self,
        key: Hashable,
        now_ms: Callable[[], int],
        make: Callable[[], Awaitable[EncodedBatch]],
        turn: Callable[[], Awaitable[None]],
    ) -> EncodedBatch:
        """The step of a key; made, if there is none, and whatever asks meanwhile waits for that one.

        Those that have waited go on one after the other: `turn` waits for the turn of what asks.
        """
        while (known := self._steps.get(key)) is not None:
            if not known.done():
                await asyncio.shield(known)
                await turn()
            step = known.result()
            if step is not None and now_ms() < step.until_ms:
                return step._replace(more=bool(step.events))  # more may have happened since it was made
            self._forget(key, known)
        making = self._steps[key] = asyncio.get_running_loop().create_future()
        step = None
        try:
            step = await make()
        finally:
            making.set_result(step)
            if step is None or not step.events:  # the next look may find some
                self._forget(key, making)
        if len(self._steps) > STEPS_KEPT:
            del self._steps[next(iter(self._steps))]
        return step

    def _forget(self, key: Hashable, step: "asyncio.Future[EncodedBatch | None]") -> None:
        if self._steps.get(key) is step:
            del self._steps[key]
