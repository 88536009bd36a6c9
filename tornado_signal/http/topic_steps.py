"""Steps of topics' events as they are sent: made once, however many streams send them."""

from typing import NamedTuple

from ..session import TopicPosition

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
    position: TopicPosition
    until_ms: int


class TopicSteps(dict[tuple[str, str, int, int], SentStep]):
    """The latest steps, by origin, topic and the position that they go on from: a thousand streams may need each."""

    def keep(self, key: tuple[str, str, int, int], step: SentStep) -> None:
        """Keep one more."""
        self[key] = step
        if len(self) > STEPS_KEPT:
            del self[next(iter(self))]
