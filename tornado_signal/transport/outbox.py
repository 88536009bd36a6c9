"""Bytes on their way out: what all connections send in one turn of the event loop leaves together."""

import asyncio
from typing import Final, Protocol

TURN_BYTES: Final = 64 * 1024  # kept at most; a connection's back-pressure is late by so much


class Writer(Protocol):
    """Where bytes go."""

    def write(self, data: bytes) -> None:
        """Send them now."""


class Outbox:
    """What connections have sent in this turn of the loop.

    So handlers run one after the other, and then the system calls do. Taking turns they push each other out of the
    processor's caches, and every answer wakes its client anew: that was a third of what a poll cost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._unsent: list[tuple[Writer, bytes]] = []
        self._unsent_bytes = 0

    def send(self, writer: Writer, data: bytes) -> None:
        """Send bytes, in this turn of the loop."""
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append((writer, data))
        self._unsent_bytes += len(data)
        if self._unsent_bytes > TURN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send it now."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        for writer, data in unsent:
            writer.write(data)
