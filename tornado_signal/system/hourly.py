"""Warnings that clients can cause at will, so that each address causes one in an hour."""

from typing import Final

INTERVAL_S: Final = 3600.0
MAX_ADDRESSES: Final = 1000


class HourlyWarnings:
    """The addresses that have caused a warning in the last hour. More than `MAX_ADDRESSES` cause none."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}  # when each may cause the next one, the earliest first

    def due(self, address: str, now_s: float) -> bool:
        """Return whether to log a warning now, and count it.

        Args:
            address: the address of the client.
            now_s: the monotonic time.
        """
        while self._next_s and self._next_s[first := next(iter(self._next_s))] <= now_s:
            del self._next_s[first]
        if address in self._next_s or len(self._next_s) >= MAX_ADDRESSES:
            return False
        self._next_s[address] = now_s + INTERVAL_S
        return True
