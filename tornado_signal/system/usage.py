"""The resources of this process, from /proc.

It also works where /proc contains only processes (ProcSubset=pid in the unit). The library of Prometheus yields nothing
there.
"""

import asyncio
import errno
import itertools
import os
import resource
import time
from pathlib import Path
from typing import Final, NamedTuple

COUNT_STEP: Final = 1000  # descriptors counted per event-loop iteration
STAT: Final = Path("/proc/self/stat")  # Linux only
IMPORTED_S: Final = time.time()


class Usage(NamedTuple):
    """The resources of this process."""

    cpu_s: float  # user and system time in seconds
    virtual_bytes: int
    resident_bytes: int
    max_descriptors: int  # the maximum number of open file descriptors


def read_usage() -> Usage:
    """Return the resources of this process. Without /proc, memory is the largest that it has used."""
    if not STAT.exists():
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak_bytes = used.ru_maxrss  # in bytes on macOS
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return Usage(used.ru_utime + used.ru_stime, peak_bytes, peak_bytes, limit)
    fields = _stat()
    user, system, virtual, resident = (fields[at] for at in (11, 12, 20, 21))
    return Usage(
        (user + system) / os.sysconf("SC_CLK_TCK"),
        virtual,
        resident * os.sysconf("SC_PAGE_SIZE"),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


async def count_descriptors() -> int:
    """Return the number of open file descriptors. Others can be opened and closed meanwhile.

    0 for a process that root has started in another user's directory: the kernel does not show them.
    """
    number = 0
    try:
        entries = os.scandir("/proc/self/fd" if STAT.exists() else "/dev/fd")
    except PermissionError:
        return 0
    with entries:
        while step := sum(1 for _ in itertools.islice(entries, COUNT_STEP)):
            number += step
            await asyncio.sleep(0)
    return number - 1  # the one that lists them


def descriptors_left() -> bool:
    """Return whether this process can open one more file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True


def started_s() -> float:
    """Return the start time of this process, Unix time in seconds. It varies, because it depends on two clocks."""
    if not STAT.exists():
        return IMPORTED_S
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_s + _stat()[19] / os.sysconf("SC_CLK_TCK")


def _stat() -> list[int]:
    """Return the numbers of /proc/self/stat after the name and the state. See proc(5)."""
    return [0, *map(int, STAT.read_text().rpartition(")")[2].split()[1:])]
