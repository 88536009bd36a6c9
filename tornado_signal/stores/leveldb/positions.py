"""Positions of readers of a topic or a listing in this engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The position of a reader: it knows the sessions up to `listed`, and all their events up to `serial`.

    Sessions and events share one sequence of serials.
    """

    serial: int  # the serial of the last known event. For a listing: of its newest session
    # The serial of the last known session, lower while the first listing is read. For a listing: its length.
    listed: int
    store: str  # the identity of the store
