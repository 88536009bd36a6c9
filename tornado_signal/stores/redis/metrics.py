"""What the engine on Redis counts."""

from collections import Counter
from collections.abc import Iterator

from ...metrics import WORK_S, Family, Histogram


class RedisMetrics:
    """What the engine on Redis has done.

    Attributes:
        seconds: how long calls took, with all repetitions.
        retries: how many were repeated, by why.
        failed: how many were given up.
        failovers: how often slots were found to have other primaries.
        subscribed: how many channels are.
    """

    def __init__(self) -> None:
        self.seconds = Histogram(WORK_S)
        self.retries: Counter[str] = Counter()
        self.failed = 0
        self.failovers = 0
        self.subscribed = 0

    def families(self) -> Iterator[Family]:
        """Yield everything that was counted."""
        meaning = "How long calls of Redis took, all repetitions included."
        yield Family("histogram", "redis_call_duration_seconds", meaning, self.seconds)
        retries: dict[tuple[str, ...], float] = {(reason,): number for reason, number in self.retries.items()}
        yield Family("counter", "redis_retries", "Calls of Redis that were repeated, and why.", retries, ("reason",))
        yield Family("counter", "redis_failed_calls", "Calls of Redis that did not work in time.", self.failed)
        meaning = "How often slots were found to have other primaries."
        yield Family("counter", "redis_failovers", meaning, self.failovers)
        yield Family("gauge", "redis_subscriptions", "Channels that are subscribed.", self.subscribed)
