"""What a process asks of its C library, of Python and of the kernel before it serves."""

import contextlib
import ctypes
import gc
import os
import resource

from ..errors import OperatorError
from ..settings.settings import Settings

DESCRIPTORS_KEPT = 800  # for LevelDB's files and everything but connections
# Of mallopt(3); setting one of them ends their growth.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 * 1024


def number_of_workers(settings: Settings) -> int:
    """Return how many processes serve: the configured number, or one for each processor."""
    return len(os.sched_getaffinity(0)) if settings.workers == "auto" else settings.workers


def raise_descriptor_limit() -> int:
    """Raise the limit on open files as far as it goes; how many connections it leaves room for.

    Raises:
        OperatorError: it leaves room for none.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = (hard if hard != resource.RLIM_INFINITY else 1_000_000) - DESCRIPTORS_KEPT
    if room <= 0:
        raise OperatorError(
            f"{hard} open files are allowed, and {DESCRIPTORS_KEPT} of them are needed beside connections; "
            "allow more: LimitNOFILE= of a unit, ulimit -n of a shell"
        )
    return room


def tune_malloc() -> None:
    """Make the C library return large blocks to the system as soon as they are free.

    By default it keeps them: after a minute of large answers an idle server would hold hundreds of megabytes. A C
    library without `mallopt` is left as it is.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, LARGE_BLOCK_BYTES)


def tune_gc() -> None:
    """Let Python search all objects for unused ones ten times more rarely, and spare those of the start.

    Nothing else runs meanwhile: for a tenth of a second, with 5,000 WebSockets. What requests and connections leave
    is freed without it.
    """
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 10 * old)
