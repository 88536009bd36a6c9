"""How much an origin may have in the store: of what is listed, and of what is on its way to the disk. No I/O."""

from typing import NamedTuple

from ..errors import TooMany
from .leveldb.topic_index import TopicIndex

UNLIMITED = 2**53
RETRY_AFTER_S = 10  # listings get shorter when somebody is answered or expires, whenever that is


class Quotas(NamedTuple):
    """The most there may be.

    Attributes:
        sessions_per_origin: unanswered sessions of one origin.
        sessions_per_topic: unanswered sessions of one topic.
        topics_per_origin: topics with unanswered sessions of one origin.
        candidates: of one side of a session.
        side_bytes: of one side of a session: its offer or answer, and its candidates.
    """

    sessions_per_origin: int = UNLIMITED
    sessions_per_topic: int = UNLIMITED
    topics_per_origin: int = UNLIMITED
    candidates: int = UNLIMITED
    side_bytes: int = UNLIMITED


class Rooms:
    """Keeps a place for each session that is on its way."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._coming: dict[str, dict[str, int]] = {}  # by origin and topic
        self._counts: dict[str, int] = {}  # by origin

    def take(self, index: TopicIndex, origin: str, topic: str) -> None:
        """Keep a place for one more session of a topic; goes with one `give_back`.

        Raises:
            TooMany: a quota is used up.
        """
        quotas = self._quotas
        coming = self._coming.get(origin, {})
        count = self._counts.get(origin, 0)
        sessions, topics, in_topic = index.sizes(origin, topic)
        if sessions + count >= quotas.sessions_per_origin:
            raise TooMany("sessions of an origin", RETRY_AFTER_S)
        if in_topic + coming.get(topic, 0) >= quotas.sessions_per_topic:
            raise TooMany("sessions of a topic", RETRY_AFTER_S)
        if not in_topic and topic not in coming and topics + len(coming) >= quotas.topics_per_origin:
            new = sum(not index.sizes(origin, each)[2] for each in coming)
            if topics + new >= quotas.topics_per_origin:
                raise TooMany("topics of an origin", RETRY_AFTER_S)
        coming[topic] = coming.get(topic, 0) + 1
        self._coming[origin] = coming
        self._counts[origin] = count + 1

    def give_back(self, origin: str, topic: str) -> None:
        """It is listed, or has failed."""
        coming = self._coming[origin]
        coming[topic] -= 1
        self._counts[origin] -= 1
        if not coming[topic]:
            del coming[topic]
            if not coming:
                del self._coming[origin], self._counts[origin]
