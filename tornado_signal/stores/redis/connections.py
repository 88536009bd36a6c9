"""Connections to nodes: how to get in, and commands and replies on the wire. What Redis calls an error is a reply."""

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import hiredis

Command = tuple[bytes | str | int, ...]
Address = tuple[str, int]

_MORE: Final = object()


class Failure(Exception):
    """Something that was asked of a node has not worked."""

    @property
    def kind(self) -> str:
        """What has happened, as one word."""
        return type(self).__name__


class ErrorReply(Failure):
    """An error that a node has answered with; its kind is the word that it begins with, such as MOVED."""

    @property
    def kind(self) -> str:
        return str(self).partition(" ")[0]

    def elsewhere(self, asked: Address) -> tuple[int, Address]:
        """The slot and the address that MOVED and ASK name; without a host it is that of the node that was asked."""
        _, slot, address = str(self).split(" ")[:3]
        host, _, port = address.rpartition(":")
        return int(slot), (host or asked[0], int(port))


class Connection(asyncio.Protocol):
    """An open connection: replies come in the order of what was sent.

    Args:
        on_reply: called with each reply, an error as a `ErrorReply`.
        on_lost: called when the connection has ended, unless it was closed here.
    """

    def __init__(self, on_reply: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._reader = hiredis.Reader(replyError=ErrorReply, notEnoughData=_MORE)
        self._transport: asyncio.Transport | None = None

    @property
    def closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    def serve(self, on_reply: Callable[[Any], None], on_lost: Callable[[], None]) -> None:
        """Have replies go elsewhere from now on."""
        self._on_reply, self._on_lost = on_reply, on_lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's have no such class

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
        """Send commands one behind the other."""
        assert self._transport is not None
        # Its types say that a command is one word.
        self._transport.write(b"".join([hiredis.pack_command(command) for command in commands]))  # type: ignore[arg-type]

    def close(self) -> None:
        """End it at once; nothing more is heard of it."""
        self.serve(lambda reply: None, lambda: None)
        if self._transport is not None:
            self._transport.abort()


@dataclass
class Credentials:
    """How to get in.

    Attributes:
        user: the name; None for the default one.
        password: None for none; a reload of the settings can replace it.
        tls: whether connections are encrypted.
        ca: the file of the authority that the servers' certificates are from; None for the system's.
        timeout_s: for a connection, and for a batch of commands.
    """

    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    timeout_s: float = 1.0

    @functools.cached_property
    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.ca) if self.tls else None

    async def connect(
        self, address: Address, on_reply: Callable[[Any], None], on_lost: Callable[[], None]
    ) -> Connection:
        """Open a connection; the arguments are those of `Connection`.

        Raises:
            OSError: that does not work, or takes too long.
            ErrorReply: the node does not let this in.
        """
        loop = asyncio.get_running_loop()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        connection = Connection(replies.put_nowait, lambda: replies.put_nowait(ConnectionError("closed")))
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
