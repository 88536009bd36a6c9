"""Which node has which slot, and how that is found out: of a single node, by Sentinels, or in a cluster."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from ...errors import OperatorError
from ...metrics import RedisMetrics
from .connections import Access, Address
from .nodes import Acknowledgement, Lane, Node, parse_info, text_of
from .partitions import SLOTS


class Topology:
    """The primaries. Belongs to the event loop that runs.

    Args:
        addresses: of any nodes, or of Sentinels.
        sentinel: the name that the Sentinels know the primary by; empty without them.
        access: how to get in.
        acknowledgement: when a write is acknowledged.
        metrics: where changes of primaries are counted.

    Attributes:
        cluster: whether it is a cluster.
        primaries: all of them.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        sentinel: str,
        access: Access,
        acknowledgement: Acknowledgement,
        metrics: RedisMetrics,
    ) -> None:
        self.cluster = False
        self._metrics = metrics
        self._addresses = list(addresses)
        self._sentinel = sentinel
        self._access = access
        self._acknowledgement = acknowledgement
        self._nodes: dict[Address, Node] = {}
        self._by_slot: list[Node] = []
        self.primaries: list[Node] = []
        self._moved = False  # whether a slot has since the last look
        self._refreshing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Find the primaries.

        Raises:
            OperatorError: none can be reached, or something else answers.
        """
        problem: object = "no address is configured"
        if self._sentinel:
            problem = await self._ask_sentinels()
        else:
            for address in self._addresses:
                reply = await self.node_at(address).reads.submit((b"INFO",))
                if isinstance(reply, Exception):
                    problem = f"{address[0]}:{address[1]}: {reply}"
                    continue
                self.cluster = parse_info(reply).get("cluster_enabled") == "1"
                problem = await self._ask_cluster() if self.cluster else None
                if not self.cluster:
                    self._assign([self.node_at(address)] * SLOTS)
                break
        if problem is not None:
            raise OperatorError(f"Redis cannot be used: {problem}; see --redis-nodes and how to get in")

    def node_at(self, address: Address) -> Node:
        """The node of an address."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(address, self._access, self._acknowledgement)
        return node

    def node(self, slot: int) -> Node:
        """The primary of a slot."""
        return self._by_slot[slot]

    def _assign(self, by_slot: list[Node]) -> None:
        self._by_slot = by_slot
        self.primaries = list(dict.fromkeys(by_slot))

    def moved(self, slot: int, address: Address) -> None:
        """A node says that another one has a slot."""
        # Thousands of channels may learn it at one moment: nothing here goes through all slots.
        node = self.node_at(address)
        if self._by_slot[slot] is not node:
            self._by_slot[slot] = node
            self._moved = True
            if node not in self.primaries:
                self.primaries.append(node)
        self.refresh_soon()

    def refresh_soon(self) -> "asyncio.Task[None]":
        """Find out anew; once for all that ask meanwhile."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        before, moved, self._moved = self._by_slot, self._moved, False
        try:
            if self._sentinel:
                await self._ask_sentinels()
            elif self.cluster:
                await self._ask_cluster()
        finally:
            self._refreshing = None
        changed = any(ours is not theirs for ours, theirs in zip(before, self._by_slot, strict=True))
        self._metrics.failovers += moved or changed
        used = set(self._by_slot)
        for address in [address for address, node in self._nodes.items() if node not in used]:
            if address not in self._addresses:
                await self._nodes.pop(address).close()

    async def _ask_cluster(self) -> str | None:
        """Ask for the slots; what is wrong, if no node can tell."""
        problem = "no node answers"
        for address in dict.fromkeys([*(node.address for node in self.primaries), *self._nodes, *self._addresses]):
            reply = await self.node_at(address).reads.submit((b"CLUSTER", b"SLOTS"))
            if isinstance(reply, Exception):
                problem = f"{address[0]}:{address[1]}: {reply}"
                continue
            by_slot: list[Node | None] = [None] * SLOTS
            for first, last, primary, *_ in reply:
                host = text_of(primary[0])
                node = self.node_at((host if host not in ("", "?") else address[0], primary[1]))
                by_slot[first : last + 1] = [node] * (last + 1 - first)
            if None in by_slot:
                problem = f"the cluster has no node for slot {by_slot.index(None)}"
                known = self._by_slot or [self.node_at(address)] * SLOTS
                self._assign([new or old for new, old in zip(by_slot, known, strict=True)])
                continue
            self._assign([node for node in by_slot if node])
            return None
        return problem

    async def _ask_sentinels(self) -> str | None:
        """Ask for the primary; what is wrong, if no node can tell."""
        problem = "no Sentinel answers"
        access = dataclasses.replace(self._access, user=None, password=None)
        for address in self._addresses:
            host, port = address
            lane = Lane(address, access)
            reply: Any = await lane.submit((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._sentinel))
            await lane.close()
            if isinstance(reply, list) and len(reply) == 2:
                self._assign([self.node_at((text_of(reply[0]), int(reply[1])))] * SLOTS)
                return None
            problem = f"{host}:{port}: {reply or f'does not know {self._sentinel}'}"
        return problem

    async def close(self) -> None:
        """Close all connections."""
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,))
        for node in self._nodes.values():
            await node.close()
