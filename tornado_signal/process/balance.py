"""Balancing of connections among processes that share listening sockets.

The kernel wakes all processes for each connection. On an idle machine the same process always wins and would have all
WebSockets. So a process with clearly more WebSockets than another one stops accepting.
"""

import math
import mmap
import os
import struct
import tempfile
import time

PERIOD_S = 0.1  # between two calls of `accepts`
FRESH_S = 0.3  # without a call, after which a process counts as stuck
BUSY = 0.25  # share of a processor beyond which others do not leave connections to a process
SLACK = 2  # WebSockets more than the least loaded process that are always tolerated
_ROW = struct.Struct("dq")  # the time until which others leave connections to a process, and its number of WebSockets


class Balance:
    """The number of WebSockets of each process, in shared memory from `share`. Processes are numbered from 1."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._rows = mmap.mmap(descriptor, 0)
        self._at = (number - 1) * _ROW.size
        self._now_s, self._cpu_s = time.monotonic(), time.process_time()

    def accepts(self, websockets: int) -> bool:
        """Record the number of WebSockets of this process, and return whether it should accept connections."""
        before_s, before_cpu_s = self._now_s, self._cpu_s
        self._now_s, self._cpu_s = time.monotonic(), time.process_time()
        busy = self._cpu_s - before_cpu_s > BUSY * (self._now_s - before_s)
        _ROW.pack_into(self._rows, self._at, 0, websockets)
        least = min(
            (count for until_s, count in _ROW.iter_unpack(self._rows) if self._now_s < until_s), default=math.inf
        )
        accepts = websockets <= least + max(SLACK, websockets // 8)
        if accepts and not busy:
            _ROW.pack_into(self._rows, self._at, self._now_s + FRESH_S, websockets)
        return accepts


def share(processes: int) -> int:
    """Create the shared memory and return its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("balance")
    else:  # as on macOS
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, processes * _ROW.size)
    return descriptor
