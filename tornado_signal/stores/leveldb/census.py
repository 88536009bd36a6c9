"""Counts of a database's content.

Entries are counted one by one in key order. Only the largest few origins and topics are kept in memory.
"""

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..census import make_numbers, zeros
from . import layout

Entry = tuple[bytes, bytes]


class Census:
    """Counts entries of a database.

    Args:
        now_ms: the time by which sessions count as expired.
        max_items: the number of origins and topics to name.
    """

    def __init__(self, now_ms: int, max_items: int) -> None:
        self._now_ms = now_ms
        self._max_items = max_items
        self._entries = self._bytes = 0
        self._total = zeros()
        self._origins = self._topics = 0
        # Heaps: the smallest entry is first and is replaced by a larger one.
        self._largest_origins: list[tuple[int, str, Counter[str]]] = []
        self._largest_topics: list[tuple[int, str, str]] = []
        # The current origin, topic and session.
        self._origin, self._held = "", zeros()
        self._topic, self._listed = ("", ""), 0
        self._live = False

    def count(self, entries: Iterable[Entry]) -> None:
        """Count the next entries."""
        for key, value in entries:
            self._entries += 1
            self._bytes += len(key) + len(value)
            if key.startswith(layout.LISTING):
                self._add_listed(key, value)
            elif key.startswith(layout.SESSIONS):
                self._add_part(key, value)

    def end(self) -> dict[str, Any]:
        """Return all numbers as a JSON object, after the last entry was counted."""
        self._end_topic()
        self._end_origin()
        largest = self._largest_origins, self._largest_topics
        return make_numbers(self._total, self._origins, self._topics, self._entries, self._bytes, *largest)

    def _add_listed(self, key: bytes, value: bytes) -> None:
        topic = layout.unpack_listing_prefix(key)
        if topic != self._topic:
            self._end_topic()
            self._topic = topic
        self._listed += self._now_ms < layout.unpack_listing_value(value)[1]

    def _end_topic(self) -> None:
        if self._listed:
            self._topics += 1
            _keep(self._largest_topics, (self._listed, *self._topic), self._max_items)
        self._listed = 0

    def _add_part(self, key: bytes, value: bytes) -> None:
        origin, _, part = layout.unpack_session_key(key)
        if origin != self._origin:
            self._end_origin()
            self._origin = origin
        held = self._held
        held["bytes"] += len(key) + len(value)
        if part == layout.HEAD:
            self._live = self._now_ms < layout.unpack_head_access(value)[0]
            held["sessions"] += 1
            held["unanswered"] += self._live
            held["expired"] += not self._live
        elif part == layout.ANSWER:
            held["unanswered"] -= self._live
            held["answered"] += self._live
        elif part != layout.OFFER:
            held["candidates"] += 1

    def _end_origin(self) -> None:
        held, self._held = self._held, zeros()
        if held["sessions"]:
            self._origins += 1
            self._total.update(held)
            _keep(self._largest_origins, (held["sessions"], self._origin, held), self._max_items)


def _keep(largest: list[Any], entry: tuple[Any, ...], max_items: int) -> None:
    heapq.heappush(largest, entry)
    if len(largest) > max_items:
        heapq.heappop(largest)
