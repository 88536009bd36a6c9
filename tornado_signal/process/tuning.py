"""Tuning of the C library, of Python and of the kernel's limits before the server starts."""

import contextlib
import ctypes
import gc
import math
import os
import resource
import time
from collections.abc import Callable

from ..errors import OperatorError
from ..settings.settings import Settings
from ..system.loop import Repeating

DESCRIPTORS_KEPT = 800  # for LevelDB and everything else but connections
# Options of mallopt(3). Setting one disables their automatic growth.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 * 1024
FREEZE_S = 0.5  # between two collections of young objects
COLLECT_S = 86_400.0  # between two full collections
COLLECT_IDLE_S = 60.0  # the same while few connections are open
IDLE_CONNECTIONS = 200
NO_FULL_COLLECTIONS = 1 << 30  # the threshold of the oldest generation
TRIM_CONNECTIONS = 500  # closed since the peak, whose memory is worth returning to the system
TRIM_S = 30.0  # between two such returns


def number_of_workers(settings: Settings) -> int:
    """Return the number of workers: as configured, or one per processor."""
    if settings.workers != "auto":
        return settings.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the maximum, and return how many connections it permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    connections = (hard if hard != resource.RLIM_INFINITY else 1_000_000) - DESCRIPTORS_KEPT
    if connections <= 0:
        raise OperatorError(
            f"{hard} open files are allowed, but {DESCRIPTORS_KEPT} are needed in addition to connections; "
            "raise the limit with LimitNOFILE= of a unit or ulimit -n of a shell"
        )
    return connections


def tune_malloc() -> None:
    """Make the C library return large blocks to the system as soon as they are free.

    By default it keeps them. After a minute of large responses an idle server would hold hundreds of megabytes. A C
    library without `mallopt` is not changed.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, LARGE_BLOCK_BYTES)


def peak_memory() -> int:
    """Return the largest amount of memory that this process has used. The unit depends on the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class GarbageCollection:
    """Collection of reference cycles without a standstill. It needs a running event loop.

    A full collection looks at all objects: with 18,000 waiting requests it blocks the event loop for 0.4 s, and finds
    almost nothing, because requests and connections are freed without it. So twice a second the young objects are
    collected, and the others are excluded from later collections (`gc.freeze`). They are all collected while few
    connections are open, when the peak of memory has doubled since, and otherwise once a day. Memory that has doubled
    together with the connections, as in a burst of them, is in use.

    After many connections have closed, their memory is returned to the system. That takes about 10 ms.
    """

    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, NO_FULL_COLLECTIONS)
        gc.freeze()
        self._collected_s, self._counted_peak, self._counted_connections = time.monotonic(), peak_memory(), 0
        self._trimmed_s, self._most_connections = -math.inf, 0
        self.stop = Repeating(self._freeze, FREEZE_S).stop  # frozen objects stay frozen

    def _freeze(self) -> None:
        since_s, connections = time.monotonic() - self._collected_s, self._connections()
        doubled = peak_memory() >= 2 * self._counted_peak
        in_use = doubled and connections > 2 * max(self._counted_connections, IDLE_CONNECTIONS)
        due = since_s >= (COLLECT_IDLE_S if connections <= IDLE_CONNECTIONS else COLLECT_S)
        if due or (doubled and not in_use):
            gc.unfreeze()
            gc.collect()
            self._collected_s = time.monotonic()
        else:
            gc.collect(1)
        if due or doubled:
            self._counted_peak, self._counted_connections = peak_memory(), connections
        gc.freeze()
        self._trim()

    def _trim(self) -> None:
        """Return the memory of many closed connections to the system. Those of TLS leave it scattered over the heap."""
        connections, now_s = self._connections(), time.monotonic()
        self._most_connections = max(self._most_connections, connections)
        if self._most_connections - connections >= TRIM_CONNECTIONS and now_s - self._trimmed_s >= TRIM_S:
            self._trimmed_s, self._most_connections = now_s, connections
            with contextlib.suppress(AttributeError):  # a C library that cannot do that
                ctypes.CDLL(None).malloc_trim(0)
