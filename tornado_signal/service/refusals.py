"""Refusals for limits and tokens, which the operator can change: logged when they begin and when they end."""

import asyncio
import logging
from collections import Counter
from typing import Final

log = logging.getLogger(__name__)

CALM_S: Final = 600.0  # without a refusal for a reason, until it has ended. An attacker causes few lines an hour

SETTINGS: Final = {
    "requests of an address": "--rate-per-address",
    "waiting requests of an address": "--max-connections-per-address",
    "connections of an address": "--max-connections-per-address",
    "transport": "--max-connections-per-address",
    "sessions of an address": "--max-sessions-per-address",
    "held offers of an address": "--max-sessions-per-address",
    "bytes of an address": "--max-bytes-per-address",
    "sessions of an origin": "--max-sessions-per-origin",
    "sessions of a topic": "--max-sessions-per-origin",
    "topics of an origin": "--max-sessions-per-origin",
    "candidates of a session": "--max-candidates",
    "bytes of a session": "--max-body-bytes",
}
"""The settings of limits by the reason of the refusal."""
ELSEWHERE: Final = ("blocked", "origin not allowed")
"""The reasons that the log names elsewhere."""


class Refusals:
    """The reasons for which clients are refused now, or were within `CALM_S`. It needs a running event loop.

    Args:
        refused: the numbers of refused requests by status and reason.
    """

    def __init__(self, refused: Counter[tuple[int, str]]) -> None:
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._counted: Counter[tuple[int, str]] = Counter()
        self._before: dict[tuple[int, str], int] = {}  # the number before the first refusal
        self._seen_s: dict[tuple[int, str], float] = {}

    def check(self) -> None:
        """Log each reason whose refusals have begun or ended."""
        now_s = self._loop.time()
        for kind, number in self._refused.items():
            before = self._counted[kind]
            if number == before or not _is_logged(*kind):
                continue
            if kind not in self._seen_s:
                self._before[kind] = before
                log.warning("clients are refused (%d): %s; %s", *kind, _advice(*kind))
            self._counted[kind], self._seen_s[kind] = number, now_s
        for kind in [kind for kind, seen_s in self._seen_s.items() if now_s - seen_s >= CALM_S]:
            del self._seen_s[kind]
            number = self._counted[kind] - self._before.pop(kind)
            log.warning("clients are no longer refused (%d): %s; it was %d requests", *kind, number)


def _is_logged(status: int, reason: str) -> bool:
    return (status in (401, 403, 429) or reason == "unfinished bodies") and reason not in ELSEWHERE


def _advice(status: int, reason: str) -> str:
    if status in (401, 403):
        return "tornado-signal token --check explains a token"
    return f"the limit is {SETTINGS[reason]}" if reason in SETTINGS else "the limit is fixed"
