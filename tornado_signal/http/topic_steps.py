"""Steps of topics' events as they are sent: made once, however many streams send them."""

import asyncio
from typing import NamedTuple

from ..session import Position

STEPS_KEPT = 8  # of all topics, at most a megabyte or two each
NEVER_MS = 2**63


class SentStep(NamedTuple):
    """A step of a topic's events as it is sent, to every reader that comes from the same position.

    Attributes:
        events: in bytes; none if nothing has happened.
        position: where a reader has come to that has got it.
        until_ms: from when on it is not to be sent any more, since something in it has expired.
    """

    events: bytes
    position: Position
    until_ms: int


StepKey = tuple[str, str, Position]
"""The origin, the topic and the position that a step goes on from."""


class TopicSteps(dict[StepKey, SentStep]):
    """The latest steps: a thousand streams may need each.

    Attributes:
        making: those that are being made, each with what tells of its end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.making: dict[StepKey, asyncio.Event] = {}

    def keep(self, key: StepKey, step: SentStep) -> None:
        """Keep one more."""
        self[key] = step
        if len(self) > STEPS_KEPT:
            del self[next(iter(self))]
