"""Connections to the nodes: commands that come while others are away leave together, in their order.

Each node has two lanes, each with a connection of its own: reads are not held up by what writes wait for.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import RedisError, ResponseError

Command = tuple[bytes | str | int, ...]
Address = tuple[str, int]


class NodeLost(Exception):
    """The connection has failed, or no answer came in time: what was asked may have been done or not."""


class NotReplicated(Exception):
    """A change is not, or not yet, where it must be to be acknowledged."""


@dataclass(frozen=True)
class Access:
    """How to get in.

    Attributes:
        user: the name; None for the default one.
        password: None for none.
        tls: whether connections are encrypted.
        ca: the file of the authority that the servers' certificates are from; None for the system's.
        timeout_s: for a connection, and for a batch of commands.
    """

    user: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    timeout_s: float = 1.0

    def connection(self, address: Address) -> Connection:
        """A connection that is not open yet."""
        host, port = address
        options: dict[str, Any] = {
            "username": self.user,
            "password": self.password,
            "socket_timeout": None,
            "socket_connect_timeout": self.timeout_s,
            "driver_info": None,
            "protocol": 2,
        }
        if self.tls:
            return SSLConnection(host=host, port=port, ssl_ca_certs=self.ca, **options)
        return Connection(host=host, port=port, **options)


@dataclass
class Acknowledgement:
    """When a write is acknowledged.

    Attributes:
        durability: `replicated` (in the memory of so many replicas, too), `fsync` (on the primary's disk), `os` (in the
            primary's memory).
        replicas: how many.
        always: whether the primaries sync each write before they answer, as with `appendfsync always`; known when they
            have been looked at.
    """

    durability: Literal["replicated", "fsync", "os"] = "replicated"
    replicas: int = 1
    always: bool = False

    def command(self, timeout_s: float) -> Command | None:
        """What is to be asked after writes; None for nothing."""
        wait_ms = max(1, int(timeout_s * 750))  # the rest is for the way
        if self.durability == "replicated" and self.replicas:
            return (b"WAIT", self.replicas, wait_ms)
        if self.durability == "fsync" and not self.always:
            return (b"WAITAOF", 1, 0, wait_ms)
        return None

    def missing(self, reply: Any) -> str | None:
        """What the reply to that says is missing; None for nothing."""
        if self.durability == "fsync":
            return None if isinstance(reply, list) and reply[0] >= 1 else "a write is not on its disk yet"
        replicas = reply if isinstance(reply, int) else 0
        return None if replicas >= self.replicas else f"{replicas} of {self.replicas} replicas have a write"


class Lane:
    """Commands to one node on one connection, a batch at a time.

    Args:
        connection: makes a connection.
        timeout_s: for a batch.
        acknowledgement: of what is sent here; None for reads.
    """

    def __init__(
        self, connection: Callable[[], Connection], timeout_s: float, acknowledgement: Acknowledgement | None = None
    ) -> None:
        self._make = connection
        self._timeout_s = timeout_s
        self._acknowledgement = acknowledgement
        self._connection: Connection | None = None
        self._queue: list[tuple[Command, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def submit(self, *commands: Command) -> "asyncio.Future[Any]":
        """Send commands one behind the other.

        Returns:
            A future with the reply to the last of them: what came, or an exception as its value (of Redis, NodeLost,
            or NotReplicated).
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        for command in commands:
            future = self._loop.create_future()
            self._queue.append((command, future))
        if self._task is None:
            self._task = self._loop.create_task(self._work())
        return future

    async def _work(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                try:
                    async with asyncio.timeout(self._timeout_s):
                        replies = await self._exchange([command for command, _ in batch])
                except (OSError, RedisError) as error:
                    await self.disconnect()
                    batch += self._queue  # they have waited for as long
                    self._queue = []
                    replies = [NodeLost(str(error) or type(error).__name__)] * len(batch)
                for (_, future), reply in zip(batch, replies, strict=True):
                    if not future.done():
                        future.set_result(reply)
        finally:
            self._task = None

    async def _exchange(self, commands: list[Command]) -> list[Any]:
        connection = self._connection
        if connection is None:
            connection = self._make()
            await connection.connect()  # type: ignore[no-untyped-call]
            self._connection = connection
        last = self._acknowledgement.command(self._timeout_s) if self._acknowledgement else None
        if last is not None:
            commands.append(last)
        await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response(disable_decoding=True))
            except ResponseError as error:
                few = str(error).startswith("NOREPLICAS")  # with `min-replicas-to-write`
                replies.append(NotReplicated("it has too few replicas to write") if few else error)
        if self._acknowledgement is not None and last is not None:
            missing = self._acknowledgement.missing(replies.pop())
            if missing is not None:
                replies = [reply if isinstance(reply, Exception) else NotReplicated(missing) for reply in replies]
        return replies

    async def disconnect(self) -> None:
        """Close the connection, if there is one; the next command opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(OSError, RedisError):
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Finish what was asked for, and disconnect."""
        if self._task is not None:
            await asyncio.wait((self._task,))
        await self.disconnect()


class Node:
    """A node.

    Args:
        address: its host and port.
        access: how to get in.
        acknowledgement: when a write is acknowledged.

    Attributes:
        reads: what changes nothing, or nothing that anybody is told of.
        writes: what is acknowledged.
        answers: whether it did the last time.
        clock_ahead_s: by how much its clock is ahead of the event loop's.
    """

    def __init__(self, address: Address, access: Access, acknowledgement: Acknowledgement) -> None:
        self.address = address
        self.reads = Lane(lambda: access.connection(address), access.timeout_s)
        self.writes = Lane(lambda: access.connection(address), access.timeout_s, acknowledgement)
        self.answers = True
        self.clock_ahead_s: float | None = None

    async def look(self) -> bool:
        """See whether it answers, and what time it has."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reply = await self.reads.submit((b"TIME",))
        self.answers = not isinstance(reply, Exception)
        if self.answers:
            self.clock_ahead_s = int(reply[0]) + int(reply[1]) / 1_000_000 - began_s
        return self.answers

    async def close(self) -> None:
        """Close both."""
        await self.reads.close()
        await self.writes.close()


def text_of(reply: bytes | None) -> str:
    """A reply as text."""
    return (reply or b"").decode("utf-8", "replace")


def parse_info(reply: bytes) -> dict[str, str]:
    """The reply to INFO."""
    return dict(line.split(":", 1) for line in text_of(reply).splitlines() if ":" in line)
