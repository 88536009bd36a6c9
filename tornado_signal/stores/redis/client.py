"""Calls that are tried again while a node is away, fails over, or hands a slot to another, up to their time."""

import asyncio
import contextlib
import logging
from typing import Any, Final

from ...errors import Unavailable
from ...metrics import RedisMetrics
from .connections import Command, Failure, Refused
from .nodes import NodeLost, NotReplicated
from .scripts import Script
from .topology import Topology

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at each node
PAUSE_S: Final = 0.01  # before the first repetition; twice as long before each other
MAX_PAUSE_S: Final = 0.2

# Other nodes may have to be asked, or the same ones once more.
AWAY: Final = frozenset({"NodeLost", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "LOADING"})
AGAIN: Final = AWAY | {"TRYAGAIN", "NotReplicated"}


class Client:
    """Calls to whichever node has a slot.

    Args:
        topology: where the slots are.
        timeout_s: how long a call is tried.
        metrics: what is counted.

    Attributes:
        read_ms: the node's time at the last read, for what has awaited that until now; Unix milliseconds.
    """

    def __init__(self, topology: Topology, timeout_s: float, metrics: RedisMetrics) -> None:
        self.topology = topology
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self.read_ms = 0
        self._closed = False
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Look at the nodes once, and go on with that."""
        for node in self.topology.primaries:
            await node.look()
        self._looking = self._loop.create_task(self._look())

    async def close(self) -> None:
        """Stop looking; nothing can be asked any more."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def now_ms(self, slot: int | None = None) -> int:
        """Return the time of the node that has a slot, or of the node whose clock is most ahead, as far as it is known."""
        nodes = self.topology.primaries if slot is None else [self.topology.node(slot)]
        ahead_s = [node.clock_ahead_s for node in nodes if node.clock_ahead_s is not None]
        return int((self._loop.time() + max(ahead_s, default=0.0)) * 1000)

    async def run(self, slot: int, script: Script, keys: tuple[bytes, ...], *arguments: Any, write: bool = True) -> Any:
        """Run a script.

        Raises:
            Unavailable: as `call`.
        """
        tail = (len(keys), *keys, *arguments)
        return await self.call(slot, (b"EVALSHA", script.sha, *tail), write, (b"EVAL", script.text, *tail))

    async def call(self, slot: int, command: Command, write: bool, unknown: Command | None = None) -> Any:
        """Send a command, and again as long as that can help.

        A command may be executed more than once.

        Args:
            slot: where its keys are.
            command: what to send.
            write: whether it is acknowledged only when it is as safe as configured.
            unknown: what to send instead to a node that does not know a script.

        Raises:
            Unavailable: it did not work in time; it may have been executed or not.
        """
        if self._closed:
            raise Unavailable("Redis: closed")
        began_s = self._loop.time()
        try:
            return await self._try(slot, command, write, unknown, began_s + self._timeout_s)
        except Unavailable:
            self._metrics.failed += 1
            raise
        finally:
            self._metrics.seconds.observe(self._loop.time() - began_s)

    async def _try(self, slot: int, command: Command, write: bool, unknown: Command | None, until_s: float) -> Any:
        node = self.topology.node(slot)
        reply = await (node.writes if write else node.reads).submit(command)
        if not isinstance(reply, Failure):
            self.read_ms = node.reads.now_ms
            return reply
        pause_s = PAUSE_S
        asking: tuple[Command, ...] = ()
        while True:
            kind, asked = reply.kind, node.address
            self._metrics.retries[kind] += 1
            node, asking = self.topology.node(slot), ()
            if kind == "NOSCRIPT" and unknown is not None:
                command = unknown
            elif isinstance(reply, Refused) and kind == "MOVED":
                self.topology.moved(*reply.elsewhere(asked))
                node = self.topology.node(slot)
            elif isinstance(reply, Refused) and kind == "ASK":
                node, asking = self.topology.node_at(reply.elsewhere(asked)[1]), ((b"ASKING",),)
            elif kind in AGAIN:
                if self._loop.time() + pause_s > until_s:
                    break
                if kind in AWAY:
                    self.topology.refresh_soon()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
                node = self.topology.node(slot)
            else:
                log.error("Redis at %s:%d refuses a command: %s", *asked, reply)
                break
            left_s = until_s - self._loop.time()
            if left_s < 0:
                break
            future = (node.writes if write else node.reads).submit(*asking, command)
            await asyncio.wait((future,), timeout=left_s)
            reply = future.result() if future.done() else NodeLost("no answer in time")
            if not isinstance(reply, Failure):
                self.read_ms = node.reads.now_ms
                return reply
        reason = str(reply) if isinstance(reply, NotReplicated) else reply.kind
        raise Unavailable("Redis at {}:{}: {}".format(*node.address, reason)) from reply

    async def _look(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(LOOK_S)
                seen = await asyncio.gather(*(node.look() for node in self.topology.primaries))
                if not all(seen):
                    self.topology.refresh_soon()
