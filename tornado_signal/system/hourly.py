"""Warnings that clients can cause at will, so that each address or origin causes one in an hour."""

from typing import Final

INTERVAL_S: Final = 3600.0
MAX_CAUSES: Final = 1000


class HourlyWarnings:
    """The causes of warnings in the last hour, such as addresses. After `max_causes`, a new one causes no warning."""

    def __init__(self, max_causes: int = MAX_CAUSES) -> None:
        self._max_causes = max_causes
        self._next_s: dict[str, float] = {}  # when each may cause the next one, the earliest first

    def due(self, cause: str, now_s: float) -> bool:
        """Return whether to log a warning of this cause now. If so, its next one is due an hour after `now_s`."""
        while self._next_s and self._next_s[first := next(iter(self._next_s))] <= now_s:
            del self._next_s[first]
        if cause in self._next_s or len(self._next_s) >= self._max_causes:
            return False
        self._next_s[cause] = now_s + INTERVAL_S
        return True
