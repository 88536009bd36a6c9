"""Log lines that clients can cause at will: each at most once an hour."""

from time import monotonic
from typing import Final

HOUR_S: Final = 3600.0
MAX_KEPT: Final = 1000  # lines remembered; beyond them nothing is logged


class Notices:
    """The lines of the last hour."""

    def __init__(self) -> None:
        self._next_s: dict[tuple[str, ...], float] = {}

    def due(self, *key: str) -> bool:
        """Return whether a line may be logged, and remember it for an hour. The key is its kind and its cause."""
        now_s = monotonic()
        if self._next_s.get(key, 0.0) > now_s:
            return False
        self._next_s.pop(key, None)  # so that the order is that of time
        while self._next_s and next(iter(self._next_s.values())) <= now_s:
            del self._next_s[next(iter(self._next_s))]
        if len(self._next_s) >= MAX_KEPT:
            return False
        self._next_s[key] = now_s + HOUR_S
        return True
