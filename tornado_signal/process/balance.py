"""Which of several processes accept connections on the sockets that they share.

The kernel wakes all of them for each connection, and on a quiet machine the same one is always first: it would have all
WebSockets. So a process that has clearly more of them than another one leaves new connections to that one.
"""

import math
import mmap
import os
import struct
import time

PERIOD_S = 0.1  # between two calls of `accepts`
FRESH_S = 0.3  # for a process that does not call it, before it counts as stuck
BUSY = 0.25  # share of a processor beyond which a process attracts no further connections
SLACK = 2  # WebSockets more than another one that matter in no case
_ROW = struct.Struct("dq")  # the time until which a process attracts connections, and its number of WebSockets


class Balance:
    """The numbers of WebSockets of all processes, in memory that they share.

    Args:
        descriptor: a file that `share` has made.
        number: the number of this process, from 1 on.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self._rows = mmap.mmap(descriptor, 0)
        self._at = (number - 1) * _ROW.size
        self._now_s, self._cpu_s = time.monotonic(), time.process_time()

    def accepts(self, websockets: int) -> bool:
        """Record the number of WebSockets of this process and return whether it is to accept connections."""
        before_s, before_cpu_s = self._now_s, self._cpu_s
        self._now_s, self._cpu_s = time.monotonic(), time.process_time()
        busy = self._cpu_s - before_cpu_s > BUSY * (self._now_s - before_s)
        _ROW.pack_into(self._rows, self._at, 0, websockets)
        least = min((each for until_s, each in _ROW.iter_unpack(self._rows) if self._now_s < until_s), default=math.inf)
        accepts = websockets <= least + max(SLACK, websockets // 8)
        if accepts and not busy:
            _ROW.pack_into(self._rows, self._at, self._now_s + FRESH_S, websockets)
        return accepts


def share(processes: int) -> int:
    """Make the memory for some processes and return its descriptor."""
    descriptor = os.memfd_create("balance")
    os.truncate(descriptor, processes * _ROW.size)
    return descriptor
