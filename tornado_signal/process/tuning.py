"""Tuning of the C library, of Python and of the kernel's limits before the server starts."""

import contextlib
import ctypes
import gc
import os
import resource

from ..errors import OperatorError
from ..settings.settings import Settings

DESCRIPTORS_KEPT = 800  # for LevelDB and everything else but connections
# Options of mallopt(3). Setting one disables their automatic growth.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 * 1024


def number_of_workers(settings: Settings) -> int:
    """Return the number of workers: as configured, or one per processor."""
    return len(os.sched_getaffinity(0)) if settings.workers == "auto" else settings.workers


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the maximum, and return how many connections it permits.

    Raises:
        OperatorError: it permits none.
    """
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


def tune_gc() -> None:
    """Run full garbage collections ten times less often, and never scan objects created at startup.

    A full collection blocks the event loop: for 0.1 s with 5,000 WebSockets. The memory of requests and
    connections is freed without it.
    """
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 10 * old)
