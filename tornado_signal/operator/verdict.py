"""The verdict: whether a server is well, strained or failing, since when, and why. No I/O.

`RULES` is the only home of its thresholds. The alert rules have the same ones (systemd/monitoring/alerts.yml).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..limits.recent import SLICE_S
from .fullness import RESOURCES
from .history import Point

WELL, STRAINED, FAILING = "well", "strained", "failing"
WINDOW: Final = round(300 / SLICE_S)  # points of five minutes
MINUTE: Final = round(60 / SLICE_S)
LEAST_REPORTED: Final = 20  # connections in an hour: fewer are not a trouble
LEAST_REFUSED: Final = 30  # in five minutes: fewer are not a trouble
NOT_REFUSED: Final = ("blocked", "session not found", "already answered")
"""The reasons that do not count as refused: the operator's own blocks, and what happens between peers that race."""
NETWORKS: Final = ("/24", "/48")
"""The ends of the names of several clients; an IPv6 client is a /64 (limits/recent.py)."""
MOST: Final = 0.5  # the share of refusals from which on a client causes them


def _refused(points: Sequence[Point]) -> float:
    refused = sum(point.refused for point in points[-WINDOW:])
    requests = max(refused, sum(point.requests for point in points[-WINDOW:]))
    return refused / requests if refused > LEAST_REFUSED else 0.0


def _unconnected(points: Sequence[Point]) -> float:
    unconnected = sum(point.unconnected for point in points)
    reports = unconnected + sum(point.connected for point in points)
    return unconnected / reports if reports >= LEAST_REPORTED else 0.0


def _lag(points: Sequence[Point]) -> float:
    return min(point.lag_s or 0.0 for point in points[-MINUTE:]) if len(points) >= MINUTE else 0.0


def _recent(name: str) -> Callable[[Sequence[Point]], float]:
    return lambda points: sum(getattr(point, name) for point in points[-WINDOW:])


def _now(name: str) -> Callable[[Sequence[Point]], float]:
    return lambda points: float(getattr(points[-1], name))


class Rule(NamedTuple):
    """A rule: it applies while `measure` of the points of a process exceeds the threshold."""

    name: str
    level: str
    threshold: float
    meaning: str  # when it applies, as in docs/operator-page.md
    alerts: tuple[str, ...]  # the alert rules with the same threshold
    measure: Callable[[Sequence[Point]], float] = lambda points: 0.0  # 0 if it is not about the points of a process


_LAG: Final = "99 % of the lags of the event loop exceed 100 ms for a minute"
_REFUSED: Final = "more than 5 % of the requests of 5 minutes are refused"
_UNCONNECTED: Final = "more than 10 % of the reported connections of an hour fail"
_LIMITS: Final = ("Connections", "StoreSize")

RULES: Final = (
    Rule("store", FAILING, 0, "the store is not available", ("NotReady",), _now("down")),
    Rule("missing", FAILING, 0, "a process or a server does not respond", ("WorkerMissing",)),
    Rule("defects", FAILING, 0, "an internal error in 5 minutes", ("Defect",), _recent("defects")),
    Rule("failed", FAILING, 0, "a 5xx in 5 minutes", ("Errors",), _recent("failed")),
    Rule("full", STRAINED, 0, "a resource is full", ("Full",), _now("full")),
    Rule("limit", STRAINED, 0.8, "more than 80 % of a limit are used", _LIMITS, _now("used")),
    Rule("lag", STRAINED, 0.1, _LAG, ("LoopLag",), _lag),
    Rule("refused", STRAINED, 0.05, _REFUSED, ("Refusals",), _refused),
    Rule("unconnected", STRAINED, 0.1, _UNCONNECTED, ("Unconnected",), _unconnected),
)


def find_troubles(points: Sequence[Point]) -> dict[str, float]:
    """Return the values of the rules that apply at the end of some points, by name."""
    return {rule.name: value for rule in RULES if (value := rule.measure(points)) > rule.threshold}


def judge(processes: Sequence[Mapping[str, Any]], missing: Sequence[str]) -> dict[str, Any]:
    """Return the verdict on processes, as /status describes them: `level`, `since` and `causes`, the worst first.

    `since` is in Unix milliseconds, or None if it is unknown.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    for process in processes:
        for name, since_ms, value in process.get("troubles", ()):
            found.setdefault(name, []).append((since_ms, value))
    causes: list[dict[str, Any]] = []
    for rule in RULES:
        if rule.name == "missing" and missing:
            text = f"no response from {', '.join(missing)}"
        elif rule.name in found:
            text = _explain(rule, max(value for _, value in found[rule.name]), processes)
        else:
            continue
        since = min((since_ms for since_ms, _ in found.get(rule.name, ())), default=None)
        causes.append({"rule": rule.name, "level": rule.level, "since": since, "text": text})
    level = causes[0]["level"] if causes else WELL  # `RULES` begins with the worst
    times = [cause["since"] for cause in causes if cause["level"] == level]
    since = None if None in times else min(times, default=None)
    return {"level": level, "since": since, "causes": causes}


def _explain(rule: Rule, value: float, processes: Sequence[Mapping[str, Any]]) -> str:
    """Return the cause in words."""
    match rule.name:
        case "refused":
            return _explain_refused(value, processes)
        case "limit":
            rooms = (room for process in processes for room in process["room"].items())
            share, name = max((used / most, name) for name, (used, most) in rooms if most)
            return f"{100 * share:.0f} % of the limit of {name} are used"
        case "full":
            return "; ".join(RESOURCES[name] for name in sorted({name for each in processes for name in each["full"]}))
        case "failed":
            reasons = _reasons(processes, lambda status, _: status >= 500)
            first = f": {reasons.most_common(1)[0][0]}" if reasons else ""
            return f"{value:.0f} {'request' if value == 1 else 'requests'} of 5 minutes failed (5xx){first}"
        case "defects":
            return f"{value:.0f} internal {'error' if value == 1 else 'errors'} in 5 minutes; the log has a traceback"
        case "unconnected":
            failed = f"{100 * value:.0f} % of the reported connections of an hour have failed"
            return f"{failed}; a TURN server may be missing"
        case "lag":
            return f"the event loop is {1000 * value:.0f} ms late"
    return rule.meaning


def _explain_refused(share: float, processes: Sequence[Mapping[str, Any]]) -> str:
    reasons = _reasons(processes, lambda status, reason: status < 500 and reason not in NOT_REFUSED)
    clients: Counter[str] = Counter()
    for process in processes:
        clients.update({row["client"]: row["refused"] for row in process["clients"]})
    number = reasons.total()
    text = f"{100 * share:.0f} % of the requests are refused, {number} in 5 minutes"
    if reasons:
        text += f": {reasons.most_common(1)[0][0]}"
    # A network is named only if it causes more than each of its clients.
    for networks in (False, True):
        named = [(count, name) for name, count in clients.items() if name.endswith(NETWORKS) == networks]
        if named and max(named)[0] > MOST * number:
            count, name = max(named)
            return f"{text}; {min(100, round(100 * count / number))} % from {name}"
    return f"{text}; from {sum(count > 0 and not name.endswith(NETWORKS) for name, count in clients.items())} clients"


def _reasons(processes: Sequence[Mapping[str, Any]], counts: Callable[[int, str], bool]) -> Counter[str]:
    """Return the numbers of refused requests of the last five minutes by reason."""
    reasons: Counter[str] = Counter()
    for process in processes:
        for status, reason, *numbers in process["refusals"]:
            if counts(status, reason) and len(numbers) > 2:
                reasons[name_reason(status, reason)] += numbers[2]
    return +reasons


def name_reason(status: int, reason: str) -> str:
    """Return the reason of a refusal in words. That of a missing parameter is the name of the parameter."""
    if status == 400 and reason not in ("transport", "handler"):
        return "no Origin" if reason == "Origin" else f"invalid {reason}"
    return f"{reason} ({status})"
