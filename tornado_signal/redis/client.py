"""Calls that are retried within their time limit while a node is unavailable, fails over or moves a slot."""

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from ..errors import Unavailable
from .connections import Address, Command, Credentials, ErrorReply, Failure
from .nodes import HISTORY, Acknowledgement, Node, NodeLost, NotReplicated, Pipeline, advised
from .scripts import Call, Script
from .slots import key_slot
from .topology import Topology

log = logging.getLogger(__name__)

CLOCK_READ_S: Final = 1.0  # interval between two reads of each node's clock
OUTAGE_CLOCK_READ_S: Final = 0.1  # the same while a primary does not respond
PAUSE_S: Final = 0.01  # delay of the first retry, doubled for each further one
MAX_PAUSE_S: Final = 0.2
MEMORY_FULL_S: Final = 5.0  # after a node has refused a command because its memory is full
MIGRATE_S: Final = 1.0  # time limit of moving a script's keys, during which a node may serve nobody
MIGRATE_PAUSE_S: Final = 5.0  # after keys could not be moved
REPEATED_S: Final = 60.0  # interval between log lines about the same error of a node

# Kinds of errors after which the command is sent again, to the same node or another one.
UNAVAILABLE: Final = frozenset({"NodeLost", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING"})
RETRIED: Final = UNAVAILABLE | {"TRYAGAIN", "NotReplicated"}
OF_SLOT: Final = frozenset({"CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK"})  # they concern a slot, not the whole node


class RedisClient:
    """Calls to the primary of a slot. `access.timeout_s` limits a call with all its retries.

    `Topology` describes the addresses. All keys and channels begin with `prefix`.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        sentinel: str,
        access: Credentials,
        sentinel_access: Credentials,
        acknowledgement: Acknowledgement,
        prefix: str,
    ) -> None:
        self.access, self._sentinel_access = access, sentinel_access
        self.topology = Topology(addresses, sentinel, access, sentinel_access, acknowledgement)
        self.metrics = self.topology.metrics
        self.prefix = prefix
        self.process_id = os.urandom(8)  # the identifier of this process
        self._loop = asyncio.get_running_loop()
        # The node's Unix time in milliseconds at the last read. Valid until the caller awaits anything else.
        self.read_ms = 0
        self._out_of_memory_s = -math.inf
        self._migrate_from_s = -math.inf  # no keys are moved before this time
        self._closed = False
        self._refusals = Refusals()
        self._clock_reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the clocks of the nodes, now and at intervals."""
        for node in self.topology.primaries:
            await node.read_clock()
        self._clock_reading = self._loop.create_task(self._read_clocks())

    async def close(self) -> None:
        """Stop reading the clocks. Further calls fail."""
        self._closed = True
        if self._clock_reading is not None:
            self._clock_reading.cancel()
            await asyncio.wait((self._clock_reading,))

    def use_passwords(self, password: str | None, sentinel_password: str | None) -> None:
        """Use these passwords for new connections to nodes and to Sentinels."""
        self.access.password = password
        self._sentinel_access.password = sentinel_password

    @property
    def memory_full(self) -> bool:
        """Whether a node has recently refused a command because its memory is full."""
        return self._loop.time() - self._out_of_memory_s < MEMORY_FULL_S

    def now_ms(self, slot: int | None = None) -> int:
        """Return the estimated time of the node that has a slot, or the latest of all nodes."""
        nodes = self.topology.primaries if slot is None else [self.topology.node(slot)]
        ahead_s = [node.clock_ahead_s for node in nodes if node.clock_ahead_s is not None]
        return int((self._loop.time() + max(ahead_s, default=0.0)) * 1000)

    def key(self, name: str) -> bytes:
        return f"{self.prefix}{name}".encode()

    async def run(self, slot: int, keys: tuple[bytes, ...], script_call: Call, *more: bytes, write: bool = True) -> Any:
        """Run a script. Its arguments and `more` precede the node's history id, empty if unknown or for a read."""
        script, arguments = script_call
        # The pipeline replaces HISTORY by the id when it sends the command.
        command = (b"EVALSHA", script.sha, len(keys), *keys, *arguments, *more, HISTORY if write else b"")
        return await self.call(slot, command, write, script)

    def call_key(self, name: bytes, key: bytes, *arguments: bytes | str | int, write: bool = False) -> Awaitable[Any]:
        return self.call(key_slot(key), (name, key, *arguments), write)

    async def call(self, slot: int, command: Command, write: bool, script: Script | None = None) -> Any:
        """Send a command, and retry while that can help. It may be executed more than once.

        The reply to a write waits for the configured acknowledgement. A node that does not have the script gets its
        text. Raise Unavailable after the time limit or if a node refuses. The command may have been executed.
        """
        if self._closed:
            raise Unavailable("Redis: closed")
        began_s = self._loop.time()
        try:
            return await self._try(slot, command, write, script, began_s + self.access.timeout_s)
        except Unavailable:
            self.metrics.failed += 1
            raise
        finally:
            self.metrics.seconds.observe(self._loop.time() - began_s)

    async def claim(self, task: str, claim_ms: int) -> bool:
        """Claim a task for this process, or renew its claim. Return whether it has the claim."""
        key = self.key(f"claim:{task}")
        holder = await self.call_key(b"SET", key, self.process_id, b"NX", b"GET", b"PX", claim_ms)
        if holder == self.process_id:
            await self.call_key(b"PEXPIRE", key, claim_ms)
        return holder in (None, self.process_id)

    async def _try(self, slot: int, command: Command, write: bool, script: Script | None, until_s: float) -> Any:
        node = self.topology.node(slot)
        reply = await (node.writes if write else node.reads).submit(command)
        if not isinstance(reply, Failure):
            self.read_ms = node.reads.now_ms
            return reply
        pause_s = PAUSE_S
        redirected = False
        asking: tuple[Command, ...] = ()
        while True:
            kind, address = reply.kind, node.address
            self.metrics.retries[kind] += 1
            if script is not None and kind in ("ASK", "TRYAGAIN"):
                result = await self._run_at_target(node, reply, command, write, script, until_s)
                if not isinstance(result, Failure):
                    return result
            node, asking = self.topology.node(slot), ()
            if kind in UNAVAILABLE:
                self.topology.refresh_soon()  # also for the next call, if this one has no time left
            if kind in RETRIED or (kind in ("MOVED", "ASK") and redirected):
                if self._loop.time() + pause_s > until_s:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                node = self.topology.node(slot)
            if kind == "NOSCRIPT" and script is not None:
                command = (b"EVAL", script.text, *command[2:])
            elif isinstance(reply, ErrorReply) and kind == "MOVED":
                redirected = True
                self.topology.moved(*reply.elsewhere(address))
                node = self.topology.node(slot)
            elif isinstance(reply, ErrorReply) and kind == "ASK":
                redirected = True
                node, asking = self.topology.node_at(reply.elsewhere(address)[1]), ((b"ASKING",),)
            elif kind not in RETRIED:
                if kind == "OOM":
                    self._out_of_memory_s = self._loop.time()
                self._refusals.log(address, kind, f"a command: {advised(str(reply))}")
                break
            if self._loop.time() > until_s:
                break
            before, reply = reply, await self._send(node.writes if write else node.reads, until_s, *asking, command)
            if not isinstance(reply, Failure):
                self.read_ms = node.reads.now_ms
                return reply
            informative = isinstance(before, NotReplicated) or before.kind in OF_SLOT
            if isinstance(reply, NodeLost) and informative and self._loop.time() >= until_s:
                reply = before  # more informative than an attempt without enough time
                break
        if reply.kind in OF_SLOT:
            self._refusals.log(
                node.address, reply.kind, f"slot {slot}, and all topics of an origin with a partition in it: {reply}"
            )
        reason = advised(str(reply) if isinstance(reply, NotReplicated | NodeLost) else reply.kind)
        raise Unavailable("Redis at {}:{}: {}".format(*node.address, reason)) from reply

    async def _run_at_target(
        self, source: Node, reply: Failure, command: Command, write: bool, script: Script, until_s: float
    ) -> Any:
        """Run a script at the node that its slot is moving to, after moving the script's keys there.

        The `reply` of node `source` was ASK or TRYAGAIN. `until_s` is the end of the call's time limit, in the event
        loop's time. If a Failure is returned, nothing was executed, or it is not known.
        """
        count = command[2]
        assert isinstance(count, int)
        keys, arguments = [key for key in command[3 : 3 + count] if isinstance(key, bytes)], command[3 + count :]
        if self._loop.time() < self._migrate_from_s:
            return reply
        if reply.kind == "TRYAGAIN":  # only ASK names the other node
            reply = await self._send(source.reads, until_s, (b"EXISTS", keys[0] + b":no-such-key"))
        if not isinstance(reply, ErrorReply) or reply.kind != "ASK":
            return NodeLost("the slot is not moving any more")
        target = self.topology.node_at(reply.elsewhere(source.address)[1])
        timeout_ms = int(MIGRATE_S * 1000)
        moved = await self._send(source.reads, until_s, source.migration(keys, target, timeout_ms))
        if isinstance(moved, Failure) and "BUSYKEY" in str(moved):  # an earlier move failed after the copy
            moved = await self._send(source.reads, until_s, source.migration(keys, target, timeout_ms, replace=True))
        if isinstance(moved, Failure):
            if moved.kind == "MOVED":  # the slot has moved meanwhile
                return moved
            self._migrate_from_s = self._loop.time() + MIGRATE_PAUSE_S
            self._refusals.log(source.address, "MIGRATE", f"to move keys to another node: {advised(str(moved))}")
            return moved
        run = (b"EVAL", script.text_at_target, 0, count, *keys, *arguments)
        result = await self._send(target.writes if write else target.reads, until_s, (b"ASKING",), run)
        if isinstance(result, Failure):
            return result
        self.read_ms = target.reads.now_ms
        for channel in result[1]:
            source.reads.submit((b"SPUBLISH", channel, b""))
        return result[0]

    async def _send(self, pipeline: Pipeline, until_s: float, *commands: Command) -> Any:
        """Return the reply to the last command, or a NodeLost after the time limit."""
        future = pipeline.submit(*commands)
        timer = self._loop.call_at(until_s, _expire, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def _read_clocks(self) -> None:
        """Read the clocks at intervals, which also notices primaries that do not respond. Then look for new ones."""
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(CLOCK_READ_S if self.topology.available else OUTAGE_CLOCK_READ_S)
                reads = {self._loop.create_task(node.read_clock()) for node in self.topology.primaries}
                while reads:
                    _, reads = await asyncio.wait(reads, timeout=OUTAGE_CLOCK_READ_S)
                    if reads or not self.topology.available:  # a primary is slow, or does not respond
                        self.topology.refresh_soon()


def _expire(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_result(NodeLost("no response in time"))


class Refusals:
    """Log of the errors of nodes: the first at once, repetitions as a count at intervals."""

    def __init__(self) -> None:
        self._repeated: dict[tuple[Address, str], int] = {}  # the number since the last line

    def log(self, address: Address, kind: str, refused: str) -> None:
        """Log what is refused with an error of a kind, or count it."""
        key = address, kind
        if key in self._repeated:
            self._repeated[key] += 1
        else:
            log.error("Redis at %s:%d refuses %s", *address, refused)
            self._count(key)

    def _count(self, key: tuple[Address, str]) -> None:
        self._repeated[key] = 0
        asyncio.get_running_loop().call_later(REPEATED_S, self._report, key)

    def _report(self, key: tuple[Address, str]) -> None:
        if number := self._repeated.pop(key):
            (host, port), kind = key
            log.error("Redis at %s:%d has refused %d more commands in %d s: %s", host, port, number, REPEATED_S, kind)
            self._count(key)
