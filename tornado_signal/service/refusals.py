"""Refused requests and closed connections of clients: logged when they begin and when they end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ..errors import TooMany
from .other_protocols import PATHS, describe

log = logging.getLogger(__name__)

CALM_S: Final = 600.0  # a reason has ended after this time without a refusal. An attacker causes few lines an hour

CLOSED_BY_OPERATOR: Final = "closed by the operator"
BLOCKED_BY_OPERATOR: Final = "blocked by the operator"
"""The reasons of close frames for an operator's actions."""

SETTINGS: Final = {
    "requests of an address": "--rate-per-address",
    "frames": "--rate-per-address",
    "waiting requests of an address": "--max-connections-per-address",
    "connections of an address": "--max-connections-per-address",
    "sessions of an address": "--max-sessions-per-address",
    "held offers of an address": "--max-sessions-per-address",
    "bytes of an address": "--max-bytes-per-address",
    "sessions of an origin": "--max-sessions-per-origin",
    "candidates of a session": "--max-candidates",
    "bytes of a session": "--max-body-bytes",
    "body too large": "--max-body-bytes",
    "unread data of all clients": "--max-unsent-bytes",
    "unfinished input of all clients": "--max-unsent-bytes",
}
"""The settings of limits by the reason of the refusal."""
NAMES: Final = {
    (408, "transport"): "requests that do not arrive in time",
    (413, "transport"): "body too large",
    (429, "transport"): "connections of an address",
    (0, "too many"): "connections of an address",
    (0, "unsent"): "unread data of all clients",
    (0, "unfinished"): "unfinished input of all clients",
}
"""The names of reasons in the log, by the status or 0 for a closed connection, and by the reason in metrics."""
ELSEWHERE: Final = {
    *("blocked", "origin not allowed", CLOSED_BY_OPERATOR, BLOCKED_BY_OPERATOR),
    *(describe(path, protocol) for path in PATHS.values() for protocol in PATHS),
}
"""The reasons that the log names elsewhere."""


class Refusals:
    """The reasons for which clients are refused now, or were within `CALM_S`. It needs a running event loop.

    `refused` counts refused requests by status and reason, and `cut_off` returns the closed connections by reason.
    """

    def __init__(self, refused: Counter[tuple[int, str]], advice: Callable[[int, str], str] | None = None) -> None:
        self._refused = refused
        self._advice = advice or _advice
        self.cut_off: Callable[[], Mapping[str, int]] = dict
        self._loop = asyncio.get_running_loop()
        self._counted: Counter[tuple[int, str]] = Counter()
        self._before: dict[tuple[int, str], int] = {}  # the number before the first refusal
        self._seen_s: dict[tuple[int, str], float] = {}

    def check(self) -> None:
        """Log each reason whose refusals have begun or ended."""
        now_s = self._loop.time()
        for kind, number in self._numbers():
            before = self._counted[kind]
            if number == before or not _is_logged(*kind):
                continue
            if kind not in self._seen_s:
                self._before[kind] = before
                log.warning("%s: %s%s", _describe(kind[0]), _name(*kind), self._advice(*kind))
            self._counted[kind], self._seen_s[kind] = number, now_s
        for kind in [kind for kind, seen_s in self._seen_s.items() if now_s - seen_s >= CALM_S]:
            del self._seen_s[kind]
            number = self._counted[kind] - self._before.pop(kind)
            what = "requests" if kind[0] else "connections"
            ended = _describe(kind[0]).replace("are", "are no longer")
            log.warning("%s: %s; it was %d %s", ended, _name(*kind), number, what)

    @property
    def active(self) -> bool:
        """Whether there are refusals that have not ended."""
        return bool(self._seen_s)

    def _numbers(self) -> Iterator[tuple[tuple[int, str], int]]:
        """Yield the numbers by status, which is 0 for closed connections, and reason."""
        yield from self._refused.items()
        for reason, number in self.cut_off().items():
            yield (0, reason), number


def _is_logged(status: int, reason: str) -> bool:
    return (status in (0, 401, 403, 408, 413, 429) or reason == "unfinished bodies") and reason not in ELSEWHERE


def _name(status: int, reason: str) -> str:
    return NAMES.get((status, reason), reason)


def _describe(status: int) -> str:
    return f"clients are refused ({status})" if status else "clients are disconnected"


def _advice(status: int, reason: str) -> str:
    """Return what to do, after a semicolon. It is empty if only the client can do something."""
    name = _name(status, reason).removeprefix("too many ")
    if status in (401, 403) or "token" in name:
        return "; tornado-signal token --check explains a token"
    if name.startswith("messages have at most"):
        name = "body too large"
    if name in SETTINGS:
        return f"; the limit is {SETTINGS[name]}"
    return "; the limit is fixed" if status or "too many" in reason else ""


def close_reason(error: TooMany) -> str:
    return BLOCKED_BY_OPERATOR if error.reason == "blocked" else f"too many {error.reason}"
