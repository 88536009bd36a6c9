"""How many unanswered sessions each topic has at any instant, in memory and without scanning. No I/O.

Kept for each origin: its topics in alphabetical order, for each topic the sorted expiry times of its unanswered
sessions (8 bytes each), and a heap of the instants at which something of a topic may expire. The instant kept for
a topic is a lower bound: it is never later than the topic's first expiry, and is put right when it comes up.
"""

import heapq
import itertools
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from sortedcontainers import SortedDict


class _Origin:
    __slots__ = ("due", "due_of", "topics")

    def __init__(self) -> None:
        # Keys are the topics' UTF-8 bytes, whose order is the order of code points (contract B12).
        self.topics: SortedDict[bytes, array[int]] = SortedDict()
        self.due: list[tuple[int, bytes]] = []
        # The one instant that counts for each topic; a heap entry with another is a leftover.
        self.due_of: dict[bytes, int] = {}

    def schedule(self, name: bytes, expires_ms: int) -> None:
        due = self.due_of.get(name)
        if due is None or expires_ms < due:
            self.due_of[name] = expires_ms
            heapq.heappush(self.due, (expires_ms, name))


class TopicIndex:
    """The counts and the alphabetical order behind `GET /topics`."""

    def __init__(self) -> None:
        self._origins: dict[str, _Origin] = {}

    def fill(self, topics: Iterable[tuple[str, str, "array[int]"]]) -> None:
        """Count all at once what a whole store holds.

        Args:
            topics: origin, topic and the expiry times of its unanswered sessions; those of one origin together.
        """
        for origin, group in itertools.groupby(topics, key=lambda topic: topic[0]):
            held = self._origins[origin] = _Origin()
            counted = {topic.encode(): array("Q", sorted(expiries)) for _, topic, expiries in group}
            held.due_of = {name: expiries[0] for name, expiries in counted.items()}
            held.due = [(expires_ms, name) for name, expires_ms in held.due_of.items()]
            heapq.heapify(held.due)
            held.topics.update(counted)

    def add(self, origin: str, topic: str, expires_ms: int) -> None:
        """Count one unanswered session."""
        held = self._origins.get(origin)
        if held is None:
            held = self._origins[origin] = _Origin()
        name = topic.encode()
        held.schedule(name, expires_ms)
        expiries = held.topics.get(name)
        if expiries is None:
            held.topics[name] = array("Q", (expires_ms,))
        else:
            insort(expiries, expires_ms)

    def remove(self, origin: str, topic: str, expires_ms: int) -> None:
        """Stop counting one session that was added; nothing happens if it has expired out of the count already."""
        held = self._origins.get(origin)
        name = topic.encode()
        expiries = held.topics.get(name) if held else None
        if held is None or expiries is None:
            return
        at = bisect_left(expiries, expires_ms)
        if at < len(expiries) and expiries[at] == expires_ms:
            del expiries[at]
            self._tidy(origin, held, name, expiries)

    def settle(self, origin: str, now_ms: int, steps: int) -> bool:
        """Take what has expired by now out of an origin's counts, at most `steps` topics at a time.

        Returns:
            Whether the counts are exact now; if not, call again.
        """
        held = self._origins.get(origin)
        while held and held.due and held.due[0][0] <= now_ms:
            if steps == 0:
                return False
            steps -= 1
            due, name = heapq.heappop(held.due)
            if held.due_of.get(name) != due:
                continue
            del held.due_of[name]
            expiries = held.topics.get(name)
            if expiries is not None:
                del expiries[: bisect_right(expiries, now_ms)]
                if expiries:
                    held.schedule(name, expiries[0])
                self._tidy(origin, held, name, expiries)
        return True

    def page(self, origin: str, offset: int, limit: int) -> tuple[list[tuple[str, int]], int]:
        """A page of an origin's topics, alphabetically, exact once `settle` has returned True.

        Returns:
            Pairs of topic and count, and the number of topics in all.
        """
        held = self._origins.get(origin)
        if held is None:
            return [], 0
        names = held.topics.keys()[offset : offset + limit]
        return [(name.decode(), len(held.topics[name])) for name in names], len(held.topics)

    def counted(self, origin: str, topic: str, now_ms: int) -> tuple[int, int | None]:
        """How many sessions of one topic are live, and when the first of them expires (None if there is none)."""
        held = self._origins.get(origin)
        expiries = held.topics.get(topic.encode()) if held else None
        if expiries is None:
            return 0, None
        live = bisect_right(expiries, now_ms)
        return len(expiries) - live, expiries[live] if live < len(expiries) else None

    def origins(self) -> list[str]:
        """The origins that have anything counted."""
        return list(self._origins)

    def _tidy(self, origin: str, held: _Origin, name: bytes, expiries: "array[int]") -> None:
        if not expiries:
            del held.topics[name]
        if not held.topics:
            del self._origins[origin]
