"""Metrics of the engine on Redis."""

from collections import Counter
from collections.abc import Iterator

from ..metrics import WORK_S, Family, Histogram


class RedisMetrics:
    """Metrics of the engine on Redis."""

    def __init__(self) -> None:
        self.seconds = Histogram(WORK_S)  # durations of calls, with all repetitions
        self.retries: Counter[str] = Counter()  # the number of repeated calls by reason
        self.failed = 0  # the number of failed calls
        self.failovers = 0  # the number of changes of primaries
        self.subscribed = 0  # the number of subscribed channels

    def families(self) -> Iterator[Family]:
        meaning = "How long calls of Redis took, all repetitions included."
        yield Family("histogram", "redis_call_duration_seconds", meaning, self.seconds)
        retries: dict[tuple[str, ...], float] = {(reason,): number for reason, number in self.retries.items()}
        yield Family("counter", "redis_retries", "Calls of Redis that were repeated, and why.", retries, ("reason",))
        yield Family("counter", "redis_failed_calls", "Calls of Redis that did not work in time.", self.failed)
        meaning = "How often slots were found to have other primaries."
        yield Family("counter", "redis_failovers", meaning, self.failovers)
        yield Family("gauge", "redis_subscriptions", "Channels that are subscribed.", self.subscribed)
