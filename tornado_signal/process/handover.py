"""Data that a supervisor shares with its workers: sockets, settings, a pipe whose end stops them, and their balance.

The kernel wakes all processes for each connection. On an idle machine the same process always wins and would have all
WebSockets. So a process with clearly more WebSockets than another one stops accepting.
"""

import asyncio
import base64
import contextlib
import logging
import math
import mmap
import os
import pickle
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ..settings.settings import Settings
from ..system.loop import guarded

log = logging.getLogger(__name__)

MAX_ENCODED_BYTES = 1 << 24
PERIOD_S = 0.1  # interval between two calls of `accepts`
FRESH_S = 0.3  # a process that has not called for this time counts as stuck
BUSY = 0.25  # share of a processor beyond which others do not leave connections to a process
SLACK = 2  # WebSockets more than the least loaded process that are always tolerated
_ROW = struct.Struct("dq")  # the time until which others leave connections to a process, and its number of WebSockets


class Balance:
    """The number of WebSockets of each process, in memory of `create_balance_memory`. Processes are numbered from 1."""

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


def create_balance_memory(processes: int) -> int:
    """Create the shared memory of `Balance` and return its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("balance")
    else:  # as on macOS
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, processes * _ROW.size)
    return descriptor


class Inherited(NamedTuple):
    """Data from the supervisor to a worker."""

    worker: int  # the number of the worker
    public: list[socket.socket]  # the public listener's sockets
    admin: list[socket.socket]  # the admin listener's sockets
    supervisor_pipe: int  # the descriptor that `watch_pipe` reads
    balance: Balance  # decides whether the worker accepts connections


def encode(value: object) -> bytes:
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def decode(line: bytes) -> Any:
    return pickle.loads(base64.b64decode(line))


async def watch_pipe(supervisor_pipe: int, apply: Callable[[Settings], None], stop: Callable[[], None]) -> None:
    """Apply the settings that arrive on a pipe, and call `stop` at its end or when it cannot be read."""
    reader = asyncio.StreamReader(limit=MAX_ENCODED_BYTES)
    loop = asyncio.get_running_loop()
    try:
        file = os.fdopen(supervisor_pipe, "rb")
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        with contextlib.closing(transport):
            while (line := await reader.readline()).endswith(b"\n"):
                guarded(lambda line: apply(decode(line)), line)
    except Exception:
        log.exception("cannot read from the supervisor: stopping")
    stop()
