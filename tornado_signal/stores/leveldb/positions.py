"""Where readers have come to, in this engine's numbers."""

from typing import NamedTuple


class _Numbers(NamedTuple):
    serial: int
    listed: int


class TopicPosition(_Numbers):
    """How far a reader of a topic has come: of all sessions up to one, it knows what had become of them by an event.

    Sessions and events have their serials out of one order. A pair, so that the key makes no difference.

    Attributes:
        serial: of that event.
        listed: the serial of that session; as a rule the same, and less while the first listing is still being read.
        key: where in the listing that is, which saves looking for it; None if it is not known.
    """

    key: bytes | None = None

    def at(self, key: bytes) -> "TopicPosition":
        """The same with its key."""
        self.key = key
        return self
