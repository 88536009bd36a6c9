"""The processes of this machine: their descendants, CPU time and memory."""

import contextlib
import os
import signal
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def family(pid):
    parents = {}
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has exited
            parents[int(each.name)] = int(stat(each)[1])
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


@contextlib.contextmanager
def stopped(pids):
    """Keep processes from running for the duration of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def stat(place):
    """Return the fields after the name in the `stat` of a process or thread, beginning with the state."""
    return (place / "stat").read_text().rpartition(") ")[2].split()


def cpu_s(pid):
    """Return the user and system time so far of a process and its descendants, also of those that have exited."""
    used_s = sum(map(int, stat(Path(f"/proc/{pid}"))[13:15])) / TICKS  # of exited children
    for member in family(pid):
        with contextlib.suppress(OSError):
            used_s += time.clock_gettime(~member << 3 | 2)  # clock_getcpuclockid(3), to the nanosecond
    return used_s


def memory_bytes(pid, name="RssAnon"):
    """Return a figure of `status` for a process and its descendants, by default their private resident memory.

    This is without the pages of LevelDB's files, which the kernel can reclaim.
    """
    lines = [line for member in family(pid) for line in Path(f"/proc/{member}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
