"""The quotas of listings, for sessions that are on their way to the disk as for those that are listed. No I/O."""

from ...errors import TooMany
from ..quotas import Quotas
from .topic_index import TopicIndex

RETRY_AFTER_S = 10  # listings get shorter when a session is answered or expires, whenever that is


class Reservations:
    """Keeps a place for each session that is on its way."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._reserved: dict[str, dict[str, int]] = {}  # by origin and topic
        self._counts: dict[str, int] = {}  # by origin

    def reserve(self, index: TopicIndex, origin: str, topic: str) -> None:
        """Keep a place for one more session of a topic; goes with one `release`.

        Raises:
            TooMany: a quota is used up.
        """
        quotas = self.quotas
        reserved = self._reserved.get(origin, {})
        count = self._counts.get(origin, 0)
        sessions, topics, in_topic = index.sizes(origin, topic)
        if sessions + count >= quotas.sessions_per_origin:
            raise TooMany("sessions of an origin", RETRY_AFTER_S)
        if in_topic + reserved.get(topic, 0) >= quotas.sessions_per_topic:
            raise TooMany("sessions of a topic", RETRY_AFTER_S)
        if not in_topic and topic not in reserved and topics + len(reserved) >= quotas.topics_per_origin:
            new = sum(not index.sizes(origin, each)[2] for each in reserved)
            if topics + new >= quotas.topics_per_origin:
                raise TooMany("topics of an origin", RETRY_AFTER_S)
        reserved[topic] = reserved.get(topic, 0) + 1
        self._reserved[origin] = reserved
        self._counts[origin] = count + 1

    def release(self, origin: str, topic: str) -> None:
        """It is listed, or has failed."""
        reserved = self._reserved[origin]
        reserved[topic] -= 1
        self._counts[origin] -= 1
        if not reserved[topic]:
            del reserved[topic]
            if not reserved:
                del self._reserved[origin], self._counts[origin]
