"""Writes over TLS that get no further than the client reads."""

import asyncio
from collections import deque
from typing import Any, Final

WRITE_BYTES: Final = 16 << 10  # of one write, and of a record of TLS
HIGH_WATER_BYTES: Final = 16 << 10  # unsent, above which a connection is counted with those that read too slowly


class PacedTransport(asyncio.Transport):
    """A transport of TLS that keeps what waits, until the one below takes it.

    OpenSSL encrypts at once whatever is written. It keeps the memory for the most that has ever waited in it, which
    no budget can count.
    """

    __slots__ = ("_transport", "_waiting", "_waiting_bytes")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._waiting: deque[bytes] = deque()  # in pieces of `WRITE_BYTES`
        self._waiting_bytes = 0

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if len(data) <= WRITE_BYTES:
            self._waiting.append(data)
        else:
            self._waiting.extend(data[at : at + WRITE_BYTES] for at in range(0, len(data), WRITE_BYTES))
        self._waiting_bytes += len(data)
        self.write_more()

    def write_more(self) -> bool:
        """Pass on what the transport takes now. Return whether it is full."""
        transport, waiting = self._transport, self._waiting
        while not transport.is_closing():
            if transport.get_write_buffer_size() > HIGH_WATER_BYTES:
                return True
            if not waiting:
                return False
            self._pass_on()
        return False

    def _pass_on(self) -> None:
        data = self._waiting.popleft()
        self._waiting_bytes -= len(data)
        self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._waiting_bytes

    def close(self) -> None:
        """Close the connection after the client has read everything."""
        while self._waiting:
            self._pass_on()
        self._transport.close()

    def abort(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        self._transport.abort()

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


def is_full(transport: asyncio.Transport) -> bool:
    """Continue to write what waits, and return whether the transport still takes nothing more."""
    return isinstance(transport, PacedTransport) and transport.write_more()
