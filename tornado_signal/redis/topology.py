"""The primaries and their slots, discovered from a single node, from Sentinels or from a cluster."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ..errors import OperatorError
from ..metrics import WORK_S, Family, Histogram
from .connections import Address, Credentials
from .nodes import REPLACED, Acknowledgement, Node, Pipeline, parse_info, text_of
from .slots import SLOTS

T = TypeVar("T")

log = logging.getLogger(__name__)

REFRESH_S: Final = 0.05  # minimum interval between the starts of two refreshes
GRACE_S: Final = 0.05  # further wait for other nodes after the first response
SUSPECT: Final = frozenset({"s_down", "o_down", "failover_in_progress"})  # flags of a primary that can be replaced soon


class RedisMetrics:
    """Metrics of the engine on Redis. `families` says what each of them counts."""

    def __init__(self) -> None:
        self.seconds = Histogram(WORK_S)
        self.retries: Counter[str] = Counter()
        self.failed = self.failovers = self.subscribed = 0

    def families(self) -> Iterator[Family]:
        meaning = "How long calls of Redis took, all repetitions included."
        yield Family("histogram", "redis_call_duration_seconds", meaning, self.seconds)
        retries: dict[tuple[str, ...], float] = {(reason,): number for reason, number in self.retries.items()}
        yield Family("counter", "redis_retries", "Calls of Redis that were repeated, and why.", retries, ("reason",))
        yield Family("counter", "redis_failed_calls", "Calls of Redis that did not work in time.", self.failed)
        meaning = "How often slots were found to have other primaries."
        yield Family("counter", "redis_failovers", meaning, self.failovers)
        yield Family("gauge", "redis_subscriptions", "Channels that are subscribed.", self.subscribed)


class Claim(NamedTuple):
    """The slots of a primary, as some node knows them."""

    epoch: int  # the primary's configuration epoch: of two claims for a slot the higher one is valid
    own: bool  # whether the primary itself claims them: of two claims with the same epoch its own one is valid
    ranges: tuple[tuple[int, int], ...]  # first and last slots


class Report(NamedTuple):
    """The primary, as a Sentinel knows it."""

    epoch: int  # its configuration epoch: of two reports the higher one is valid
    address: Address  # its host and port
    well: bool  # whether the Sentinel neither suspects nor replaces it
    sentinels: int  # the number of Sentinels that watch it
    down_after_s: float  # the time after which the Sentinel suspects a silent primary


async def query_all(calls: Iterable[Coroutine[Any, Any, T]], useful: Callable[[T], bool]) -> list[T]:
    """Run calls in parallel. After the first useful result, wait at most `GRACE_S` for the others."""
    loop = asyncio.get_running_loop()
    pending = {loop.create_task(call) for call in calls}
    results: list[T] = []
    until_s: float | None = None
    try:
        while pending and (until_s is None or loop.time() < until_s):
            left_s = None if until_s is None else until_s - loop.time()
            done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            results += [task.result() for task in done]
            if until_s is None and any(map(useful, results)):
                until_s = loop.time() + GRACE_S
    finally:
        for task in pending:
            task.cancel()
    return results


class Topology:
    """The primaries, on the running event loop.

    `addresses` are those of any nodes, or of Sentinels if `sentinel` is the name of the primary there.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        sentinel: str,
        access: Credentials,
        sentinel_access: Credentials,
        acknowledgement: Acknowledgement,
    ) -> None:
        self.cluster = False  # whether it is a cluster
        self.metrics = RedisMetrics()
        self._addresses = list(addresses)
        self._sentinel = sentinel
        self._access = access
        self._sentinel_access = sentinel_access
        self.acknowledgement = acknowledgement
        self._nodes: dict[Address, Node] = {}
        self._by_slot: list[Node] = []
        self.primaries: list[Node] = []  # all primaries
        self._claims: dict[Address, Claim] = {}
        self._reports: list[Report] = []
        self._announced: list[Node] = []  # the primaries that are in the log
        self._moved = False  # whether a slot has moved since the last refresh
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = 0.0
        self._epoch = 0  # epoch of the last accepted report

    @property
    def available(self) -> bool:
        return not any(node.problem for node in self.primaries)

    async def open(self) -> None:
        problem: object = "no address is configured"
        if self._sentinel:
            problem = await self._query_sentinels()
            known = max((report.sentinels for report in self._reports), default=0)
            if known > len(self._addresses):
                log.warning(
                    "%d of %d Sentinels are in --redis-nodes; while a replica is unavailable most of them must confirm "
                    "the primary: name all",
                    len(self._addresses),
                    known,
                )
        else:
            for address in self._addresses:
                reply = await self.node_at(address).reads.submit((b"INFO",))
                if isinstance(reply, Exception):
                    problem = f"{address[0]}:{address[1]}: {reply}"
                    continue
                self.cluster = parse_info(reply).get("cluster_enabled") == "1"
                problem = await self._query_cluster() if self.cluster else None
                if not self.cluster:
                    self._assign([self.node_at(address)] * SLOTS)
                break
        if problem is not None:
            raise OperatorError(f"Redis cannot be used: {problem}; see --redis-nodes and the credentials")
        self._announced = self.primaries[:]
        if self._sentinel:
            self.acknowledgement.set_replica_timeout(max(report.down_after_s for report in self._reports))
        else:
            await self._read_node_timeout()

    async def _read_node_timeout(self) -> None:
        """Read how long a primary without a majority accepts writes. Keep the default if a node hides that."""
        replies = [await node.reads.submit((b"CONFIG", b"GET", b"cluster-node-timeout")) for node in self.primaries]
        timeouts = [int(reply[1]) for reply in replies if isinstance(reply, list) and len(reply) == 2]
        if len(timeouts) == len(replies):
            self.acknowledgement.set_replica_timeout(max(timeouts) / 1000)

    def node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            confirm = self._confirm if self._sentinel else None
            node = self._nodes[address] = Node(address, self._access, self.acknowledgement, confirm)
        return node

    def node(self, slot: int) -> Node:
        return self._by_slot[slot]

    def moved(self, slot: int, address: Address) -> None:
        """Record that a node named another one as the owner of a slot."""
        # Thousands of channels can call this at once, so it must not loop over all slots.
        node = self.node_at(address)
        if self._by_slot[slot] is not node:
            self._by_slot[slot] = node
            self._moved = True
            if node not in self.primaries:
                self.primaries.append(node)
        self.refresh_soon()

    def refresh_soon(self) -> "asyncio.Task[None]":
        """Find the primaries again. Concurrent calls share one search."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        return self._refreshing

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        before = self._announced
        try:
            await asyncio.sleep(self._refreshed_s + REFRESH_S - loop.time())
            self._refreshed_s = loop.time()
            by_slot, moved, self._moved = self._by_slot, self._moved, False
            if self._sentinel:
                await self._query_sentinels()
            elif self.cluster:
                await self._query_cluster()
        finally:
            self._refreshing = None
        changed = any(ours is not theirs for ours, theirs in zip(by_slot, self._by_slot, strict=True))
        self.metrics.failovers += moved or changed
        replaced = [node for node in before if node not in self.primaries]
        for node in self.primaries:
            if node not in before:
                others = ", ".join("{}:{}".format(*node.address) for node in replaced)
                log.warning("Redis at %s:%d is a new primary; replaced: %s", *node.address, others or "none")
        self._announced = self.primaries[:]
        for node in replaced:
            node.lose(REPLACED)
        used = set(self._by_slot)
        unused = [address for address, node in self._nodes.items() if node not in used]
        # Removed before the first `await`, because another refresh can start meanwhile.
        for node in [self._nodes.pop(address) for address in unused if address not in self._addresses]:
            await node.close()

    def _assign(self, by_slot: list[Node]) -> None:
        self._by_slot = by_slot
        self.primaries = list(dict.fromkeys(by_slot))

    async def _query_cluster(self) -> str | None:
        """Query the slots. Return the problem if no node responds."""
        addresses = dict.fromkeys([*(node.address for node in self.primaries), *self._nodes, *self._addresses])
        replies = await query_all(map(self._claims_of, addresses), lambda reply: isinstance(reply, dict))
        answers = [reply for reply in replies if isinstance(reply, dict)]
        if not answers:
            return next((reply for reply in replies if isinstance(reply, str)), "no node responds")
        claims: dict[Address, Claim] = {}
        # Claims of a minority can be outdated.
        for reply in [*answers, *([self._claims] if 2 * len(answers) <= len(addresses) else [])]:
            for address, claim in reply.items():
                if address not in claims or claims[address][:2] < claim[:2]:
                    claims[address] = claim
        self._claims = {address: claim._replace(own=False) for address, claim in claims.items()}
        by_slot: list[Node | None] = [None] * SLOTS
        for address, claim in sorted(claims.items(), key=lambda item: item[1][:2]):
            node = self.node_at(address)
            for first, last in claim.ranges:
                by_slot[first : last + 1] = [node] * (last + 1 - first)
        problem = f"the cluster has no node for slot {by_slot.index(None)}" if None in by_slot else None
        known = self._by_slot or [self.node_at(next(iter(claims), self._addresses[0]))] * SLOTS
        self._assign([new or old for new, old in zip(by_slot, known, strict=True)])
        return problem

    async def _claims_of(self, address: Address) -> dict[Address, Claim] | str:
        """Return the claims of all primaries as one node knows them, or the problem."""
        pipeline = self.node_at(address).reads
        # Both are sent in one batch. Only the first has the epochs, only the second the addresses for clients.
        nodes, slots = await asyncio.gather(
            pipeline.submit((b"CLUSTER", b"NODES")), pipeline.submit((b"CLUSTER", b"SLOTS"))
        )
        if isinstance(slots, Exception):
            return f"{address[0]}:{address[1]}: {slots}"
        lines = [] if isinstance(nodes, Exception) else nodes.splitlines()
        known = {words[0]: words for words in map(bytes.split, lines) if len(words) > 7}
        claims: dict[Address, Claim] = {}
        for first, last, primary, *_ in slots:
            host = text_of(primary[0])
            where = (host if host not in ("", "?") else address[0], primary[1])
            ranges = claims[where].ranges if where in claims else ()
            words = known.get(primary[2])
            epoch, own = (0, where == address) if words is None else (int(words[6]), b"myself" in words[2])
            claims[where] = Claim(epoch, own, (*ranges, (first, last)))
        return claims

    async def _query_sentinels(self) -> str | None:
        """Query the primary. Return the problem if no Sentinel responds."""
        replies = await query_all(map(self._report_of, self._addresses), lambda reply: isinstance(reply, Report))
        self._reports = [reply for reply in replies if isinstance(reply, Report)]
        if not self._reports:
            return next((reply for reply in replies if isinstance(reply, str)), "no Sentinel responds")
        latest = max(self._reports, key=lambda report: report.epoch)
        # A minority of reports can be outdated.
        if latest.epoch >= self._epoch or 2 * len(self._reports) > len(self._addresses):
            self._epoch = latest.epoch
            self._assign([self.node_at(latest.address)] * SLOTS)
        return None

    async def _report_of(self, address: Address) -> Report | str:
        """Return the report of a Sentinel, or the problem."""
        pipeline = Pipeline(address, self._sentinel_access)
        try:
            # The first command names a promoted replica earlier than the second.
            primary, details = await asyncio.gather(
                pipeline.submit((b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._sentinel)),
                pipeline.submit((b"SENTINEL", b"MASTER", self._sentinel)),
            )
        finally:
            pipeline.disconnect()
        if isinstance(primary, list) and isinstance(details, list):
            fields = dict(zip(map(text_of, details[::2]), map(text_of, details[1::2]), strict=True))
            return Report(
                int(fields["config-epoch"]),
                (text_of(primary[0]), int(primary[1])),
                SUSPECT.isdisjoint(fields["flags"].split(",")),
                int(fields["num-other-sentinels"]) + 1,
                int(fields["down-after-milliseconds"]) / 1000,
            )
        reason = primary if isinstance(primary, Exception) else f"does not know {self._sentinel}"
        return f"{address[0]}:{address[1]}: {reason}"

    async def _confirm(self, address: Address) -> bool:
        """Return whether most Sentinels still consider a node the primary, and do not suspect it."""
        replies = await asyncio.gather(*map(self._report_of, self._addresses))
        reports = [reply for reply in replies if isinstance(reply, Report)]
        known = max([len(self._addresses), *(report.sentinels for report in reports)])
        return 2 * sum(report.address == address and report.well for report in reports) > known

    async def close(self) -> None:
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,))
        for node in self._nodes.values():
            await node.close()
