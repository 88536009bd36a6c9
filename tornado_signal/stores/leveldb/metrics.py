"""Metrics of the LevelDB engine."""

from collections.abc import Iterator

from ...metrics import WORK_S, Family, Histogram

_CHANGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class DatabaseMetrics:
    """Metrics of the LevelDB engine."""

    def __init__(self) -> None:
        self.writes = Histogram(WORK_S)  # durations of writes in seconds, syncs included
        self.changes = Histogram(_CHANGES)  # the number of changes per write
        self.failed = 0  # the number of failed writes
        self.reopened = 0  # the number of times that the database was reopened
        self.sweeps = Histogram(WORK_S)  # durations of sweeps in seconds
        self.compactions = Histogram(WORK_S)  # durations of compactions in seconds

    def families(self) -> Iterator[Family]:
        meaning = "How long writes took, each with its sync if there is one."
        yield Family("histogram", "store_write_duration_seconds", meaning, self.writes)
        yield Family("histogram", "store_write_changes", "How many changes shared a write.", self.changes)
        yield Family("counter", "store_failed_writes", "Writes that did not work.", self.failed)
        yield Family("counter", "store_reopenings", "How often the store was opened again.", self.reopened)
        meaning = "How long it took to look for what has expired, and to delete it."
        yield Family("histogram", "sweep_duration_seconds", meaning, self.sweeps)
        yield Family("histogram", "compaction_duration_seconds", "How long compactions took.", self.compactions)
