"""The resources of this process.

It also works where /proc contains only processes (ProcSubset=pid in the unit). The library of Prometheus yields nothing
there, and would count all descriptors in one event-loop iteration.
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
MEMORY: Final = Path("/proc/self/statm")  # Linux only


class Usage(NamedTuple):
    """The resources of this process."""

    cpu_s: float  # user and system time in seconds
    virtual_bytes: int
    resident_bytes: int
    max_descriptors: int  # the maximum number of open file descriptors


def read_usage() -> Usage:
    """Return the resources of this process. Without /proc, memory is the largest that it has used."""
    virtual = resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS
    if MEMORY.exists():
        virtual, resident = (int(pages) * resource.getpagesize() for pages in MEMORY.read_text().split()[:2])
    return Usage(time.process_time(), virtual, resident, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


async def count_descriptors() -> int:
    """Return the number of open file descriptors. Others can be opened and closed meanwhile.

    0 for a process that root has started in another user's directory: the kernel does not show them.
    """
    number = 0
    try:
        entries = os.scandir("/proc/self/fd" if MEMORY.exists() else "/dev/fd")
    except PermissionError:
        return 0
    with entries:
        while step := sum(1 for _ in itertools.islice(entries, COUNT_STEP)):
            number += step
            await asyncio.sleep(0)
    return number - 1  # the one that lists them


def descriptors_left() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    return True
