"""The state of one process, as the operator's page shows it (docs/operator-page.md)."""

import asyncio
import contextlib
import functools
import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

from ..errors import SessionNotFound, Unavailable
from ..limits.per_address import ClientCounts
from ..limits.recent import Counts, with_networks
from ..metrics import Histogram, RequestMetrics
from ..service.client_connection import ClientConnection
from ..service.service import HeldOffer, Service
from ..settings.origins import AllowedOrigins
from ..settings.settings import SETTINGS, Settings
from ..settings.value_types import MODE
from ..stores import Store
from ..system import logs
from ..system.loop import present, slices
from ..system.usage import read_usage
from ..transport import ServerState
from ..transport.websocket import WebSocket
from .fullness import Fullness
from .history import History, Totals, summarize
from .verdict import NOT_REFUSED, find_troubles, name_reason

MAX_ITEMS: Final = 20  # addresses, origins and topics
SLICE: Final = 1000  # connections or clients per event-loop iteration
MAX_LOOKED_UP: Final = 100  # topics of held offers per description
MAX_TOPICS_READ: Final = 1000  # of an origin, in alphabetical order
STORED_S: Final = 5.0  # between two readings of the store
PAUSES: Final = 20  # a pause is at least this many times as long as the reading before
FIRST_S: Final = 0.5  # for the first reading

URLS: Final = ("otlp_endpoint", "turn_provider", "webhook_url")
"""The settings whose path and query can contain secrets, which are not shown."""


Usage = dict[str, Any]
"""The use of this process by the clients of an origin or a topic. Waiting requests and streams are `watchers`."""


def no_usage() -> Usage:
    return {"watchers": 0, "held_offers": 0, "websockets": Counter()}


class Status:
    """The state of one process. The number of the worker is 0 if the server is one process."""

    def __init__(
        self, service: Service, transport: ServerState, fullness: Fullness, server: str, worker: int, started_s: int
    ) -> None:
        self._service = service
        self._transport = transport
        self._fullness = fullness
        self._identity = {"server": server, "worker": worker, "version": service.version, "started_s": started_s}

    @functools.cached_property
    def history(self) -> History:
        return History(self._read_totals, self._service.clock.now_ms, find_troubles)

    async def describe(self, *, history: bool = False) -> dict[str, Any]:
        """Return the state as a JSON object, with the points of the last hour if `history` is true."""
        service = self._service
        origins, topics = await self._find_usage()
        service.count_served()
        return {
            "id": service.store.process_id.hex(),
            **self._identity,
            "state": service.lifecycle.state.name.lower(),
            "troubles": self.history.troubles(),
            "full": self._fullness.full,
            "room": self._find_room(),
            "figures": await self._find_figures(),
            "reported": summarize(self.history.points()) if service.settings.connection_reports else None,
            "turn_provider": {
                "name": service.provided.provider,
                "servers": len(service.provided.current(round(service.clock.wall_s() * 1000))),
                "expires": service.provided.expires_ms,
                "problem": service.provided.problem,
            }
            if service.provided.provider
            else None,
            "refusals": self._find_refusals(),
            "clients": as_recent("client", with_networks(service.limits.recent.totals())),
            "recent_origins": as_recent("origin", service.recent_origins.totals()),
            "refused_origins": as_recent("origin", service.refused_origins.totals()),
            "addresses": await self._find_addresses(),
            "blocks": [[str(network), until_ms] for network, until_ms in service.limits.blocks.items()],
            "origins": [{"origin": origin, **usage} for origin, usage in largest(origins)],
            "topics": [{"origin": origin, "topic": topic, **usage} for (origin, topic), usage in largest(topics)]
            if service.settings.admin_topics
            else None,
            "settings": describe_settings(service.settings),
            "log": logs.recent(),
            **({"history": self.history.points()} if history else {}),
        }

    @property
    def _metrics(self) -> RequestMetrics:
        return self._service.log.metrics

    def _find_refusals(self) -> list[list[Any]]:
        """Return status, reason, the numbers since the start, of the last minute and of five minutes, and a text."""
        recent = self._service.log.recent_refusals.totals()
        none = Counts(0, 0, 0)
        return [
            [*refusal, count, minute.requests, five.requests, name_reason(*refusal)]
            for refusal, count in self._metrics.refusals.items()
            for five, minute in (recent.get(refusal, (none, none)),)
        ]

    def _count_requests(self) -> tuple[int, int]:
        """Return the numbers of requests, and of those that failed."""
        counted = [
            (status, sum(seconds.counts))
            for kinds in (self._metrics.requests, self._metrics.waits)
            for (_, _, status), seconds in kinds.items()
        ]
        return sum(number for _, number in counted), sum(number for status, number in counted if status >= 500)

    def _find_room(self) -> dict[str, tuple[float, float]]:
        """Return what is used and what is allowed by name. Each limit belongs to all clients of this process."""
        of_store = {family.name: family.values for family in self._service.store.metric_families()}
        room: dict[str, tuple[float, float]] = {
            "connections": (len(self._transport.connections), self._service.limits.max_connections),
            "unread data": (self._transport.unsent.bytes, self._service.settings.max_unsent_bytes),
        }
        if "store_max_bytes" in of_store:
            size, most = (cast(float, of_store.get(f"store_{name}_bytes", 0)) for name in ("size", "max"))
            room["store"] = size, most
        return room

    def _read_totals(self) -> Totals:
        metrics = self._metrics
        not_refused = sum(
            number for (status, reason), number in metrics.refusals.items() if status >= 500 or reason in NOT_REFUSED
        )
        requests, failed = self._count_requests()
        reports = self._service.reports
        reported = reports.count("connected"), reports.count("failed"), reports.count("connected", "relay")
        pairs = sum(self._service.store.metrics.offers_waited.counts)
        return Totals(
            (requests, pairs, metrics.refusals.total() - not_refused, failed, metrics.defects, *reported),
            (metrics.wake_ups, metrics.loop_lag, reports.seconds),
            max((used / most for used, most in self._find_room().values() if most), default=0.0),
            not self._service.store.available,
            bool(self._fullness.full),
        )

    async def _find_figures(self) -> dict[str, Any]:
        """Return numbers of the server. Those named `…_total` are counts since its start."""
        service, metrics, transport = self._service, self._metrics, self._transport
        sessions = service.store.metrics
        unanswered, topics = await service.store.counts() or (None, None)
        requests, failed = self._count_requests()
        of_store = {family.name: family.values for family in service.store.metric_families()}
        redis_seconds = of_store.get("redis_call_duration_seconds")
        return {
            "requests_total": requests,
            "failed_total": failed,
            "created_total": sessions.created,
            "answered_total": sum(sessions.offers_waited.counts),
            "connections": len(transport.connections),
            "websockets": transport.websockets,
            "waiting_requests": metrics.waiting.total(),
            "held_offers": metrics.held,
            "unanswered_sessions": unanswered,
            "topics": topics,
            "store_available": service.store.available,
            "store_bytes": of_store.get("store_size_bytes"),
            "redis_failovers_total": of_store.get("redis_failovers"),
            "redis_seconds": as_buckets(redis_seconds) if isinstance(redis_seconds, Histogram) else None,
            "memory_bytes": read_usage().resident_bytes,
            "wake_up_seconds": as_buckets(metrics.wake_ups),
            "loop_lag_seconds": as_buckets(metrics.loop_lag),
        }

    async def _find_addresses(self) -> list[dict[str, Any]]:
        """Return the addresses with the most connections, and how much of each limit they use, from 0 to 1."""
        limits, now_ms = self._service.limits, self._service.clock.now_ms()

        def size(entry: tuple[str, ClientCounts]) -> int:
            return entry[1].connections + entry[1].waiting + entry[1].held

        largest_clients: list[tuple[str, ClientCounts]] = []
        async for clients in slices(limits.clients(), SLICE):
            active = (entry for entry in clients if not entry[1].idle)
            largest_clients = heapq.nlargest(MAX_ITEMS, [*largest_clients, *active], key=size)
        return [
            {
                "address": address,
                "connections": client.connections,
                "waiting": client.waiting,
                "held_offers": client.held,
                "used": limits.usage(client, now_ms),
            }
            for address, client in largest_clients
        ]

    async def _find_usage(self) -> tuple[dict[str, Usage], dict[tuple[str, str], Usage]]:
        """Return the use by origin, and by origin and topic if topics are shown."""
        origins: dict[str, Usage] = defaultdict(no_usage)
        topics: dict[tuple[str, str], Usage] = defaultdict(no_usage)
        show_topics = self._service.settings.admin_topics
        unknown: list[HeldOffer] = []  # whose topic is not known yet
        async for waits in present(self._service.waits.items(), SLICE):
            for waiting, topic in waits:
                origins[waiting.origin]["watchers"] += 1
                if topic and show_topics:
                    topics[waiting.origin, topic]["watchers"] += 1
        async for connections in present(self._transport.connections, SLICE):
            for receiver in receivers(connections):
                usage = origins[receiver.origin]
                usage["websockets"][receiver.pattern] += 1
                usage["held_offers"] += len(receiver.held)
                if not show_topics:
                    continue
                for name in receiver.names:
                    topics[receiver.origin, name]["websockets"][receiver.pattern] += 1
                for held in receiver.held:
                    if held.topic is not None:
                        topics[receiver.origin, held.topic]["held_offers"] += 1
                    elif len(unknown) < MAX_LOOKED_UP:
                        unknown.append(held)
        # Connections can end during this, so none of them is used from here on.
        for held in unknown:
            with contextlib.suppress(SessionNotFound, Unavailable):
                held.topic = await self._service.store.find_topic(*held.key)
                topics[held.key[0], held.topic]["held_offers"] += 1
        return origins, topics


class StoredSessions:
    """The origins and topics with the most unanswered sessions, read in the background while they are requested."""

    def __init__(self, store: Store, show_topics: Callable[[], bool]) -> None:
        self._store = store
        self._show_topics = show_topics
        self._latest: dict[str, Any] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._next_s = -math.inf

    async def latest(self) -> dict[str, Any] | None:
        """Return the latest numbers. Wait for the first ones, but not long: None if the store does not respond."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_s and (self._reading is None or self._reading.done()):
            self._reading = loop.create_task(self._read())
        if self._latest is None and self._reading is not None:
            await asyncio.wait((self._reading,), timeout=FIRST_S)
        return self._latest

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            origins = await self._store.largest_origins(MAX_ITEMS)
            topics: list[tuple[int, str, str]] = []
            for origin, _, _ in origins if self._show_topics() else ():
                page, _ = await self._store.topics(origin, 0, MAX_TOPICS_READ)
                topics = heapq.nlargest(MAX_ITEMS, [*topics, *((count, origin, topic) for topic, count in page)])
            self._latest = {
                "origins": [
                    {"origin": origin, "unanswered_sessions": sessions, "topics": its_topics}
                    for origin, sessions, its_topics in origins
                ],
                "topics": [
                    {"origin": origin, "topic": topic, "unanswered_sessions": count} for count, origin, topic in topics
                ]
                if self._show_topics()
                else None,
            }
        except Unavailable:
            self._latest = None
        self._next_s = loop.time() + max(STORED_S, PAUSES * (loop.time() - began_s))

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def receivers(connections: Iterable[object]) -> Iterator[ClientConnection]:
    for connection in connections:
        if isinstance(connection, WebSocket):
            yield cast(ClientConnection, connection.receiver)


def largest(usages: dict[Any, Usage]) -> list[tuple[Any, Usage]]:
    def size(entry: tuple[Any, Usage]) -> int:
        _, usage = entry
        total: int = usage["watchers"] + usage["held_offers"] + usage["websockets"].total()
        return total

    return heapq.nlargest(MAX_ITEMS, usages.items(), key=size)


def as_recent(key: str, totals: dict[str, tuple[Counts, Counts]]) -> list[dict[str, Any]]:
    """Return the names with the most refused and failed requests of five minutes, then with the most, as JSON."""
    found = heapq.nlargest(
        MAX_ITEMS, totals.items(), key=lambda entry: (sum(entry[1][0][1:]), entry[1][0].requests, entry[0])
    )
    return [{key: name, **counts._asdict(), "minute": minute._asdict()} for name, (counts, minute) in found]


def as_buckets(histogram: Histogram) -> dict[str, list[float]]:
    """Return a histogram as JSON: upper bounds, and the number of values in each range."""
    return {"bounds": list(histogram.bounds), "counts": list(histogram.counts)}


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Return the text of each setting, and where its value is from.

    The source is `flag`, `environment`, `file`, `operator` for a change by an action, or None for the default.
    """
    described = {}
    for setting in SETTINGS:
        source = settings.sources.get(setting.name)
        text = as_text(getattr(settings, setting.name), setting.type) if source else str(setting.default)
        if setting.name in URLS:
            text = re.sub(r"(?<=[^:/])[/?#].*", "/…", text)
        described[setting.name] = {"value": text, "source": source}
    return described


def as_text(value: object, value_type: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value_type is MODE:
        return f"{value:03o}"
    if isinstance(value, AllowedOrigins):
        return ",".join(sorted(value.entries))
    if isinstance(value, tuple):
        return ",".join(":".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
    return str(value)
