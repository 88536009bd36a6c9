"""Nodes and their pipelines: commands submitted while a batch is in flight form the next batch, in order.

Each node has pipelines with a connection each, so that reads never wait for the replication of writes.
"""

import asyncio
import logging
import math
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from .connections import Address, Command, Credentials, ErrorReply, Failure, RedisConnection

log = logging.getLogger(__name__)

BATCH: Final = 500  # commands per batch; more would delay all others after a stall
ROUND_S: Final = 0.25  # duration of one WAIT, after which the node reports its replicas again
LEAST_S: Final = 0.05  # minimum time for a batch, even if its commands were queued for long
HISTORY_S: Final = 1.0  # a history id is trusted for this time after the node reported it
REPLACED: Final = "another node is the primary now"

# Advice for the operator about errors of nodes, by the first word of the error.
ADVICE: Final = {
    "OOM": "raise maxmemory",
    "NOAUTH": "set --redis-password-file",
    "WRONGPASS": "see --redis-user and --redis-password-file",
    "NOPERM": "see the permissions of --redis-user",
}

HISTORY: Final = "history"  # stands for the id of the node's history at the end of a command


class NodeLost(Failure):
    """The connection failed, or no reply arrived in time. The commands may have been executed."""


class NotReplicated(Failure):
    """A change cannot be acknowledged: too few replicas have it, or it is not on disk."""


@dataclass
class Acknowledgement:
    """When a write is acknowledged."""

    # `replicated` (also in the memory of replicas), `fsync` (on the primary's disk), `os` (in the primary's memory).
    durability: Literal["replicated", "fsync", "os"] = "replicated"
    replicas: int = 1  # the minimum number of replicas that must have a write
    # Whether the primaries sync each write before the reply, as with `appendfsync always`. Set by the checks at the
    # start.
    always: bool = False
    lag_s: int = 24  # the time after which a silent replica is ignored. The default fits Redis' default node timeout

    def set_replica_timeout(self, node_timeout_s: float) -> None:
        """Wait for a silent replica until a primary in a minority has stopped serving.

        Such a primary stops at most 1.5 times `cluster-node-timeout` after the cut: nodes are pinged twice in that
        time. A replica's last report can be a second older than the cut, and INFO counts whole seconds.
        """
        self.lag_s = math.ceil(1.5 * node_timeout_s + 1.2)

    @property
    def waits(self) -> bool:
        """Whether writes wait for replicas."""
        return self.durability == "replicated" and self.replicas > 0

    def command(self, replicas: int, wait_ms: int) -> Command | None:
        """Return the command that follows writes, or None."""
        if self.waits:
            return (b"WAIT", replicas, wait_ms)
        if self.durability == "fsync" and not self.always:
            return (b"WAITAOF", 1, 0, wait_ms)
        return None

    def missing(self, reply: Any, replicas: int) -> str | None:
        """Return what is missing according to the reply to that command, or None."""
        if self.durability == "fsync":
            return None if isinstance(reply, list) and reply[0] >= 1 else "a write is not on its disk yet"
        have = reply if isinstance(reply, int) else 0
        return None if have >= replicas else f"{have} of {replicas} replicas have a write"


def parse_replication(info: bytes, lag_s: float) -> tuple[bytes, int, int]:
    """Return the id of a primary's history, empty for a replica, and the numbers of its replicas.

    The first is of those that are online and have reported within `lag_s`. The second is of those that copy all data.
    This runs for each batch, so it must be fast.
    """
    history = _HISTORY.search(info) if b"role:master" in info else None
    online = [int(lag) <= lag_s for lag in _LAG.findall(info)]
    return history[1] if history else b"", sum(online), info.count(b",state=") - len(online)


# No anchor at the start of a line: that would take four times as long.
_HISTORY = re.compile(rb"\nmaster_replid:([0-9a-f]+)")
_LAG = re.compile(rb",state=online,offset=[0-9]+,lag=(-?[0-9]+)")

Entry = tuple[tuple[Command, ...], "asyncio.Future[Any]", float]  # with the time when it was submitted


class Pipeline:
    """Commands to one node on one connection, a batch at a time.

    `acknowledgement` is the rule for writes, or None for reads. `confirm` confirms that a node with fewer replicas than
    before is still the primary. It is None in a cluster.
    """

    def __init__(
        self,
        address: Address,
        access: Credentials,
        acknowledgement: Acknowledgement | None = None,
        confirm: Callable[[Address], Awaitable[bool]] | None = None,
    ) -> None:
        self._address = address
        self._access = access
        self._acknowledgement = acknowledgement
        self._confirm = confirm
        self._confirming: asyncio.Task[None] | None = None
        self.now_ms = 0  # the node's Unix time in milliseconds at the last batch of reads
        self._replicas = 0  # replicas to wait for, if more than configured
        self._history = b""
        self._history_s = 0.0  # when the request for it was sent
        self._changed_s = 0.0  # when it was found to be another one
        self._wait: Command | None = None
        self._connection: RedisConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._queue: list[Entry] = []
        self._batch: list[Entry] = []
        self._results: list[Any] | None = None  # replies to the batch, while it waits for replicas
        self._replies: list[Any] = []
        self._expected = 0  # number of replies to the current commands
        self._working = False
        self._loop = asyncio.get_running_loop()
        self._sent_s = self._until_s = 0.0
        self._late: asyncio.TimerHandle | None = None

    def submit(self, *commands: Command) -> "asyncio.Future[Any]":
        """Send commands in order, in the same batch. Return a future with the reply to the last one.

        An error is the future's result, not its exception: an ErrorReply, NodeLost or NotReplicated. If the future is
        done before the batch is sent, the commands are skipped.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((commands, future, self._loop.time()))
        if not self._working:
            self._working = True
            self._loop.call_soon(self._send)
        return future

    def _send(self) -> None:
        """Send the next batch, after all ready callbacks have submitted their commands."""
        if self._batch or self._connecting is not None:
            return
        if not self._queue:
            self._working = False
        elif self._connection is None:
            self._connecting = self._loop.create_task(self._connect())
        else:
            self._batch = [entry for entry in self._queue[:BATCH] if not entry[1].done()]
            del self._queue[:BATCH]
            if not self._batch:
                self._loop.call_soon(self._send)
                return
            commands = [command for entry in self._batch for command in entry[0]]
            self._sent_s = self._loop.time()
            # The first command was submitted first, so its limit keeps the limits of all, including the time queued.
            self._until_s = max(self._batch[0][2] + self._access.timeout_s, self._sent_s + LEAST_S)
            if self._acknowledgement is None:
                self._send_commands([(b"TIME",), *commands])
            else:
                history = self._history if self._sent_s - self._history_s < HISTORY_S else b""
                self._send_writes(
                    [(*command[:-1], history) if command[-1] is HISTORY else command for command in commands],
                    self._acknowledgement,
                )
            self._late = self._loop.call_at(self._until_s, self.lose, "no response in time")

    def _send_commands(self, commands: list[Command]) -> None:
        assert self._connection is not None
        self._expected = len(commands)
        self._connection.send(commands)

    def _send_writes(self, commands: list[Command], acknowledgement: Acknowledgement) -> None:
        """Send writes and the wait for all known replicas, `ROUND_S` at most. Without commands, only wait.

        The reply to INFO then says whether another wait is needed.
        """
        left_s = self._wait_until_s() - self._loop.time()
        self._wait = acknowledgement.command(
            max(self._replicas, acknowledgement.replicas), max(1, int(min(left_s, ROUND_S) * 1000))
        )
        # INFO is last: a replica can appear during the wait.
        self._send_commands([*commands, *([] if self._wait is None else [self._wait]), (b"INFO", b"replication")])

    def _wait_until_s(self) -> float:
        """Return the time at which to stop waiting for replicas. The rest of the time limit is for the reply."""
        return self._sent_s + 0.75 * (self._until_s - self._sent_s)

    async def _connect(self) -> None:
        try:
            self._connection = await self._access.connect(self._address, self._on_reply, self.lose)
        except (OSError, ErrorReply) as error:
            self._connecting = None  # `lose` would cancel this task
            self.lose(reason_of(error))
        else:
            self._connecting = None
            self._send()

    def _on_reply(self, reply: Any) -> None:
        if isinstance(reply, ErrorReply) and reply.kind == "NOREPLICAS":  # with `min-replicas-to-write`
            reply = NotReplicated("it has too few replicas to write")
        self._replies.append(reply)
        if len(self._replies) < self._expected:
            return
        replies, self._replies, self._expected = self._replies, [], 0
        if self._acknowledgement is None:
            time = replies.pop(0)  # of TIME, which precedes each batch of reads: seconds and microseconds
            if not isinstance(time, Exception):
                self.now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
            self._finish(replies)
        else:
            self._on_written(replies, self._acknowledgement)

    def _on_written(self, replies: list[Any], acknowledgement: Acknowledgement) -> None:
        """Finish a batch of writes if it is as safe as configured. Otherwise wait longer or fail."""
        info, before = replies.pop(), self._replicas
        if isinstance(info, bytes):
            # Await the replicas that had reported within `lag_s` when the batch was sent.
            waited_s = self._loop.time() - self._sent_s
            history, replicas, copying = parse_replication(info, acknowledgement.lag_s + waited_s)
            if history != self._history:
                self._history, self._changed_s = history, self._loop.time()
            self._history_s = self._sent_s
            # Soon after a failover, await copying replicas as well: another failover could promote one of them.
            self._count(replicas + copying * (self._loop.time() < self._changed_s + acknowledgement.lag_s))
        if self._wait is not None:
            reply = replies.pop()
            if self._results is None:
                self._results = replies
            missing = acknowledgement.missing(reply, max(before, self._replicas, acknowledgement.replicas))
            # After the loss of a replica, fail at once: the callers repeat their writes, perhaps at another primary.
            in_time = self._loop.time() < self._wait_until_s() and self._replicas >= before
            if missing is not None and in_time and not isinstance(reply, Exception):
                self._send_writes([], acknowledgement)
                return
            replies = self._results
            if missing is not None:
                failed = NotReplicated(missing)
                replies = [reply if isinstance(reply, Exception) else failed for reply in replies]
        self._finish(replies)

    def _count(self, replicas: int) -> None:
        """Record the number of replicas that have reported recently. Fewer than before can need a confirmation."""
        if replicas >= self._replicas or self._confirm is None:
            self._replicas = replicas
        elif self._confirming is None:
            self._confirming = self._loop.create_task(self._reduce(self._confirm, replicas))

    async def _reduce(self, confirm: Callable[[Address], Awaitable[bool]], replicas: int) -> None:
        try:
            if await confirm(self._address):
                self._replicas = replicas
        finally:
            self._confirming = None

    def _finish(self, replies: list[Any]) -> None:
        batch, self._batch, self._results = self._batch, [], None
        if self._late is not None:
            self._late.cancel()
        at = -1
        for commands, future, _ in batch:
            at += len(commands)
            if not future.done():
                future.set_result(replies[at])
        self._loop.call_soon(self._send)

    def lose(self, why: str = "the connection was closed") -> None:
        """Fail all commands, the queued ones included, and disconnect."""
        self.disconnect(discard=True)
        self._replies, self._expected, self._working, self._results = [], 0, False, None
        lost, self._batch, self._queue = self._batch + self._queue, [], []
        for _, future, _ in lost:
            if not future.done():
                future.set_result(NodeLost(why))

    def disconnect(self, *, discard: bool = False) -> None:
        """Close the connection, if any. The next command opens another one. See `RedisConnection.close`."""
        if self._late is not None:
            self._late.cancel()
        for task in (self._connecting, self._confirming):
            if task is not None:
                task.cancel()
        self._connecting = self._confirming = None
        connection, self._connection = self._connection, None
        self._history = b""
        if connection is not None:
            connection.close(discard=discard)

    async def close(self) -> None:
        """Wait for all submitted commands, then disconnect."""
        while pending := [entry[1] for entry in self._batch + self._queue if not entry[1].done()]:
            await asyncio.wait(pending)
        self.disconnect()


class Node:
    """A node."""

    def __init__(
        self,
        address: Address,
        access: Credentials,
        acknowledgement: Acknowledgement,
        confirm: Callable[[Address], Awaitable[bool]] | None = None,
    ) -> None:
        self.address = address
        self._access = access
        # The pipeline for commands that change nothing, or whose changes are not acknowledged.
        self.reads = Pipeline(address, access)
        self.writes = Pipeline(address, access, acknowledgement, confirm)  # the pipeline for acknowledged writes
        self.messages = Pipeline(address, access)  # the pipeline for messages, which delay no other command
        self.problem = ""  # the reason for the last missing response, or empty
        self._lost_s = 0.0
        self.clock_ahead_s: float | None = None  # seconds by which its clock is ahead of the event loop's

    async def read_clock(self) -> None:
        """Check whether it responds, and read its clock."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        reply = await self.reads.submit((b"TIME",))
        if isinstance(reply, NodeLost) and str(reply) == REPLACED:
            return
        before, self.problem = self.problem, str(reply) if isinstance(reply, Exception) else ""
        if not self.problem:
            self.clock_ahead_s = int(reply[0]) + int(reply[1]) / 1_000_000 - began_s
            if before:
                log.info("Redis at %s:%d responds again after %.1f s", *self.address, loop.time() - self._lost_s)
        elif not before:
            self._lost_s = loop.time()
            why = advised(self.problem)
            log.warning("Redis at %s:%d does not respond; its sessions are unavailable: %s", *self.address, why)

    def migration(self, keys: Iterable[bytes], target: "Node", timeout_ms: int, *, replace: bool = False) -> Command:
        """Return the command that moves keys of a moving slot from this node to another one.

        With `replace` it replaces copies there. While this node has a key, nothing changes or reads such a copy.
        """
        user, password = self._access.user or "default", self._access.password
        access = () if password is None else (b"AUTH2", user, password)
        mode = [b"REPLACE"] if replace else []
        return (b"MIGRATE", *target.address, b"", 0, timeout_ms, *mode, *access, b"KEYS", *keys)

    def lose(self, why: str) -> None:
        """Fail all commands, so that callers can send them to another node."""
        for pipeline in (self.reads, self.writes, self.messages):
            pipeline.lose(why)

    async def close(self) -> None:
        for pipeline in (self.reads, self.writes, self.messages):
            await pipeline.close()


def advised(problem: str) -> str:
    """Return an error of a node with advice for the operator."""
    advice = ADVICE.get(problem.partition(" ")[0])
    return f"{problem.rstrip('.')}; {advice}" if advice else problem


def reason_of(error: Exception) -> str:
    """Return why a node cannot be reached, in few words, because it can become the label of a metric."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    # uvloop's `strerror` is the system's text. That of asyncio also contains the address.
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and isinstance(number, int) and number > 0:
        return os.strerror(number)
    return str(error) or type(error).__name__


def text_of(reply: bytes | None) -> str:
    return (reply or b"").decode("utf-8", "replace")


def parse_info(reply: bytes) -> dict[str, str]:
    return dict(line.split(":", 1) for line in text_of(reply).splitlines() if ":" in line)
