"""Where readers of a topic or of a listing are, in this engine's numbers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """How far a reader knows a topic: of all sessions up to one, everything up to an event.

    Sessions and events have serials of one sequence.

    Attributes:
        serial: of that event; of a listing, of its newest change.
        listed: the serial of that session. It is lower while the first listing is read. Of a listing, its length.
        key: the place in the listing, if it is known. Without it the place is searched for.
    """

    serial: int
    listed: int
    key: bytes | None = field(default=None, compare=False)
