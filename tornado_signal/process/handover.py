"""Data from the supervisor to its workers: sockets, settings, and a pipe whose end stops them."""

import asyncio
import base64
import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from ..settings.settings import Settings
from ..system.loop import guarded
from .balance import Balance

log = logging.getLogger(__name__)

MAX_ENCODED_BYTES = 1 << 24


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
