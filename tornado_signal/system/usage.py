"""The resources of this process, from /proc.

It also works where /proc contains only processes (ProcSubset=pid in the unit). The library of Prometheus yields nothing
there.
"""

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """The resources of this process."""

    cpu_s: float  # user and system time in seconds
    virtual_bytes: int
    resident_bytes: int
    descriptors: int  # the number of open file descriptors
    max_descriptors: int  # their maximum number


def read_usage() -> Usage:
    """Return the resources of this process."""
    fields = _stat()
    user, system, virtual, resident = (fields[at] for at in (11, 12, 20, 21))
    return Usage(
        (user + system) / os.sysconf("SC_CLK_TCK"),
        virtual,
        resident * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir("/proc/self/fd")),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def started_s() -> float:
    """Return the start time of this process, Unix time in seconds. It varies, because it depends on two clocks."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + _stat()[19] / os.sysconf("SC_CLK_TCK")


def _stat() -> list[int]:
    """Return the numbers of /proc/self/stat after the name and the state. See proc(5)."""
    return [0, *map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:])]
