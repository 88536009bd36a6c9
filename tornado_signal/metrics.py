"""Counters and histograms of the server, which `operator/exposition` exports. No I/O.

No label is a topic, a code or an address, because metrics live as long as the process. Origins are labels only if the
operator lists them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple

WORK_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0)
_REQUEST_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_OFFER_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_WAKE_UP_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_LAG_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Histogram:
    """The numbers of observed values by range. The upper bounds ascend and are inclusive. The last range has none."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the number of values in each range
        self.sum = 0.0  # the sum of all values

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family(NamedTuple):
    """A family of metrics, as an engine describes it."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str  # the name without the prefix of the package
    meaning: str  # the text of `HELP`
    # One value, or one for each combination of label values.
    values: float | Histogram | Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


Kind = tuple[str, str, int]
"""A kind of requests: path pattern, method and status of the response."""


class Durations(dict[Kind, Histogram]):
    """Durations of requests in seconds, by kind."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, kind: Kind) -> Histogram:
        self[kind] = Histogram(self._bounds)
        return self[kind]

    def by_pattern(self) -> dict[str, Histogram]:
        """Return the durations by path pattern, for all methods and statuses."""
        patterns: dict[str, Histogram] = {}
        for (pattern, _, _), durations in self.items():
            total = patterns.setdefault(pattern, Histogram(self._bounds))
            total.counts = [a + b for a, b in zip(total.counts, durations.counts, strict=True)]
            total.sum += durations.sum
        return patterns


class SessionMetrics:
    """Metrics of sessions."""

    def __init__(self) -> None:
        self.created = 0  # the number of published sessions
        self.withdrawn = 0  # the number of withdrawn sessions
        # The number of sessions that expired. Redis deletes answered ones itself, so they are not counted there.
        self.swept = 0
        self.offers_waited = Histogram(_OFFER_S)  # seconds between an offer and its answer


class WebhookMetrics:
    """Metrics of webhooks. `families` says what each of them counts."""

    def __init__(self) -> None:
        self.sent = self.failed = self.queued = 0
        self.dropped = Counter(dict.fromkeys(("full", "off", "rejected", "stopped"), 0))
        self.succeeded_s = 0.0

    def families(self) -> Iterator[Family]:
        dropped: Mapping[tuple[str, ...], float] = {(reason,): number for reason, number in self.dropped.items()}
        yield Family("counter", "webhook_events", "Events that the webhook receiver has accepted.", self.sent)
        yield Family("counter", "webhook_dropped", "Events that were not delivered.", dropped, ("reason",))
        yield Family("counter", "webhook_failed_requests", "Requests that the receiver did not accept.", self.failed)
        yield Family("gauge", "webhook_queued", "Events that wait for their delivery.", self.queued)
        meaning = "Time of the last accepted request, Unix time. 0 before the first one."
        yield Family("gauge", "webhook_last_success_timestamp_seconds", meaning, self.succeeded_s)


class RequestMetrics:
    """Metrics of requests and of the event loop."""

    def __init__(self) -> None:
        self.requests = Durations(_REQUEST_S)  # durations of requests that did not wait
        self.waits = Durations(_WAIT_S)  # durations of long polls and streams
        self.waiting: Counter[str] = Counter()  # the number of requests waiting now, by path pattern
        # Seconds from a change, as this process learns of it, to the turn of a waiting request.
        self.wake_ups = Histogram(_WAKE_UP_S)
        self.refusals: Counter[tuple[int, str]] = Counter()  # refused requests by status and reason
        # Requests by allow-list entry of their origin, path pattern and status.
        self.by_origin: Counter[tuple[str, str, int]] = Counter()
        self.tokens: Counter[str] = Counter()  # presented tokens, by the reason of their refusal or `accepted`
        self.defects = 0  # requests that failed because of an internal error
        self.held = 0  # the number of offers that WebSockets hold now
        self.loop_lag = Histogram(_LAG_S)  # delays of the event loop in seconds
