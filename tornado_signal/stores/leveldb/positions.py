"""Positions of readers of a topic or a listing in this engine."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The position of a reader: it knows the sessions up to `listed`, and all their events up to `serial`.

    Sessions and events share one sequence of serials.
    """

    serial: int  # the serial of the last known event. For a listing: of its newest change
    # The serial of the last known session, lower while the first listing is read. For a listing: its length.
    listed: int
    # The key in the listing if it is known. Otherwise it is searched.
    key: bytes | None = field(default=None, compare=False)
