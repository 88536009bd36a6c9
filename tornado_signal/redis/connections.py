"""Connections to nodes: authentication, commands and replies. An error reply of Redis is an `ErrorReply`."""

import asyncio
import functools
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import hiredis

Command = tuple[bytes | str | int, ...]
Address = tuple[str, int]

_MORE: Final = object()
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Failure(Exception):
    """A command to a node failed."""

    @property
    def kind(self) -> str:
        """The kind of the failure, as one word."""
        return type(self).__name__


class ErrorReply(Failure):
    """An error reply of a node. Its kind is its first word, such as MOVED."""

    @property
    def kind(self) -> str:
        return str(self).partition(" ")[0]

    def elsewhere(self, sender: Address) -> tuple[int, Address]:
        """Return the slot and the address in MOVED and ASK. A missing host is that of the sender."""
        _, slot, address = str(self).split(" ")[:3]
        host, _, port = address.rpartition(":")
        return int(slot), (host or sender[0], int(port))


class RedisConnection(asyncio.Protocol):
    """An open connection. Replies arrive in the order of the commands. An error is an `ErrorReply`.

    `on_lost` is called when the connection is closed, unless `close` closed it.
    """

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None

    @property
    def closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def serve(self, on_reply: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_reply, self._on_lost = on_reply, on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not asyncio.Transport

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _MORE:
                self._on_reply(reply)
        except hiredis.ProtocolError:
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def send(self, commands: Iterable[Command]) -> None:
        assert self._transport is not None
        # hiredis's type stub declares a command as a single word.
        self._transport.write(b"".join([hiredis.pack_command(command) for command in commands]))  # type: ignore[arg-type]

    def close(self, *, discard: bool = False) -> None:
        """Close the connection immediately, without further callbacks.

        With `discard`, the kernel delivers nothing that the node has not received yet. Otherwise it tries for minutes,
        and commands would be executed long after their time limit.
        """
        self.serve(lambda reply: None, lambda: None)
        if self._transport is not None:
            if discard and (connected := self._transport.get_extra_info("socket")) is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()


@dataclass
class Credentials:
    """Credentials for nodes."""

    user: str | None = None  # the user name, or None for the default user
    password: str | None = None  # the password, or None. A reload of the settings can replace it
    tls: bool = False  # whether connections are encrypted
    ca: str | None = None  # the file with the certificate authority of the servers, or None for the system's
    timeout_s: float = 1.0  # the time limit of a connection attempt and of a batch of commands

    @functools.cached_property
    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca) if self.tls else None

    async def connect(
        self, address: Address, on_reply: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> RedisConnection:
        """Open a connection. Raise ErrorReply if the node refuses the credentials."""
        loop = asyncio.get_running_loop()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        connection = RedisConnection(replies.put_nowait, lambda: replies.put_nowait(ConnectionError("closed")))
        try:
            async with asyncio.timeout(self.timeout_s):
                await loop.create_connection(lambda: connection, *address, ssl=self._context)
                if self.user is not None or self.password is not None:
                    connection.send([(b"AUTH", self.user or "default", self.password or "")])
                    reply = await replies.get()
                    if isinstance(reply, Exception):
                        raise reply
                if connection.closing:
                    raise ConnectionError("closed")
        except BaseException:
            connection.close()
            raise
        connection.serve(on_reply, on_lost)
        return connection
