"""The nodes: commands that come while others are away leave together, in their order.

Each node has two lanes, each with a connection of its own: reads are not held up by what writes wait for.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from .connections import Access, Address, Command, Connection, Failure, Refused


class NodeLost(Failure):
    """The connection has failed, or no answer came in time: what was asked may have been done or not."""


class NotReplicated(Failure):
    """A change is not, or not yet, where it must be to be acknowledged."""


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
        address: of the node.
        access: how to get in.
        acknowledgement: of what is sent here; None for reads.

    Attributes:
        now_ms: for reads, the node's time at the last ones, Unix milliseconds.
    """

    def __init__(self, address: Address, access: Access, acknowledgement: Acknowledgement | None = None) -> None:
        self._address = address
        self._access = access
        self._acknowledgement = acknowledgement
        self.now_ms = 0
        self._last: Command | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue: list[tuple[Command, asyncio.Future[Any]]] = []
        self._batch: list[tuple[Command, asyncio.Future[Any]]] = []
        self._replies: list[Any] = []
        self._expected = 0  # replies
        self._working = False
        self._loop = asyncio.get_running_loop()
        self._late: asyncio.TimerHandle | None = None

    def submit(self, *commands: Command) -> "asyncio.Future[Any]":
        """Send commands one behind the other.

        Returns:
            A future with the reply to the last of them: what came, or an exception as its value (Refused, NodeLost,
            or NotReplicated).
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        for command in commands:
            future = self._loop.create_future()
            self._queue.append((command, future))
        if not self._working:
            self._working = True
            self._loop.call_soon(self._send)
        return future

    def _send(self) -> None:
        """Send what is there, after all that was ready to ask has done so."""
        if self._batch or self._connecting is not None:
            return
        if not self._queue:
            self._working = False
        elif self._connection is None:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._batch, self._queue = self._queue, []
            commands = [command for command, _ in self._batch]
            if self._acknowledgement is None:
                commands.insert(0, (b"TIME",))
            else:
                self._last = self._acknowledgement.command(self._access.timeout_s)
                if self._last is not None:
                    commands.append(self._last)
            self._expected = len(commands)
            self._late = self._loop.call_later(self._access.timeout_s, self._lose, "no answer in time")
            self._connection.send(commands)

    async def _connect(self) -> None:
        try:
            self._connection = await self._access.connect(self._address, self._on_reply, self._lose)
        except (OSError, Refused) as error:
            self._lose(str(error) or type(error).__name__)
        self._connecting = None
        self._send()

    def _on_reply(self, reply: Any) -> None:
        if isinstance(reply, Refused) and reply.kind == "NOREPLICAS":  # with `min-replicas-to-write`
            reply = NotReplicated("it has too few replicas to write")
        self._replies.append(reply)
        if len(self._replies) == self._expected:
            replies, self._replies, self._expected = self._replies, [], 0
            if self._acknowledgement is None:
                time = replies.pop(0)
                if not isinstance(time, Exception):
                    self.now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
            elif self._last is not None:
                missing = self._acknowledgement.missing(replies.pop())
                if missing is not None:
                    failed = NotReplicated(missing)
                    replies = [reply if isinstance(reply, Exception) else failed for reply in replies]
            batch, self._batch = self._batch, []
            self._settle(batch, replies)
            self._loop.call_soon(self._send)

    def _lose(self, why: str = "the connection was closed") -> None:
        """Nothing more comes on the connection; what was asked for since has waited for as long."""
        self.disconnect()
        self._replies, self._expected, self._working = [], 0, False
        batch, self._batch, self._queue = self._batch + self._queue, [], []
        self._settle(batch, [NodeLost(why)] * len(batch))

    def _settle(self, batch: list[tuple[Command, asyncio.Future[Any]]], replies: list[Any]) -> None:
        if self._late is not None:
            self._late.cancel()
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)

    def disconnect(self) -> None:
        """Close the connection, if there is one; the next command opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Finish what was asked for, and disconnect."""
        while pending := [future for _, future in self._batch + self._queue]:
            await asyncio.wait(pending)
        self.disconnect()


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
        self.reads = Lane(address, access)
        self.writes = Lane(address, access, acknowledgement)
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
