"""Limits per client and for all clients together. No I/O. Time is an argument.

A client is an IPv4 address, or the /64 of an IPv6 address: what one machine or household has. Everything that is open
holds the counts of its client. The counts of clients that have nothing open are dropped when there are many. So the
memory is bounded.
"""

import functools
import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

from ..errors import TooMany, Unavailable
from ..settings.addresses import Network
from ..settings.settings import Settings
from . import forwarded
from .forwarded import parse_address, trusted
from .recent import OTHERS, RecentCounts, network_of

CLIENTS_KEPT = 100_000
DROP_STEP = 4  # clients that are checked for each new one
ADDRESSES_KEPT = 8192  # whose clients are found without parsing
FORWARDED_KEPT = 4096  # the same for what proxies forward
FORWARDED_LENGTH = 128  # the longest of those; a few proxies in a row need less
# Connections beyond the limits that are kept open for a refusal (429, 503), in all and of each client.
SPARE_CONNECTIONS = 100
SPARE_CONNECTIONS_PER_CLIENT = 4
# A client can open twice as many connections as its rate of requests, and this many more. Each gets its 429. Further
# ones are closed without a response.
SPARE_ARRIVALS = 100
# A client that was idle may make the requests of this many seconds at once.
BURST_S = 10
# The minimum quota of an address in bytes. The store itself refuses when it is full.
LEAST_ROOM_BYTES = 1 << 20
# The response to a blocked address says when to retry, but not how long the block lasts.
BLOCKED_RETRY_S = 60
# The operator's programs are few, and connections that they leave open take no descriptors from clients.
ADMIN_CONNECTIONS = 64
SPARE_ADMIN_CONNECTIONS = 4


class ConnectionCounts:
    """Numbers of served connections, and of connections that are being refused."""

    __slots__ = ("connections", "refused")

    def __init__(self) -> None:
        self.connections = self.refused = 0


class CountedConnection:
    """A counted connection, in total and of its client, until `release`."""

    __slots__ = ("_client", "_total", "reject_status")

    def __init__(self, reject_status: int, total: ConnectionCounts, client: ConnectionCounts) -> None:
        self.reject_status = reject_status  # 0 if it is served, else the HTTP status for refusing it
        self._total, self._client = total, client
        self._count(1)

    def release(self) -> None:
        self._count(-1)

    def _count(self, by: int) -> None:
        if self.reject_status:
            self._total.refused += by
            self._client.refused += by
        else:
            self._total.connections += by
            self._client.connections += by


class AdminConnectionLimiter(ConnectionCounts):
    """The connections of the operator's listener, whatever the addresses. `full` counts refusals as `admin`."""

    def __init__(self, full: Counter[str]) -> None:
        super().__init__()
        self._full = full
        # Closes a connection without a complete request and returns whether there was one. Otherwise anybody who
        # reaches the listener could keep probes out with idle connections.
        self.make_room: Callable[[], bool] = lambda: False

    def connected(self, address: str, now_ms: int) -> CountedConnection | None:
        """Count a connection, as `Limits.connected` does. Neither address nor time matters."""
        reject_status = 0 if self.connections < ADMIN_CONNECTIONS or self.make_room() else 503
        if reject_status:
            self._full["admin"] += 1
        if reject_status and self.refused >= SPARE_ADMIN_CONNECTIONS:
            return None
        return CountedConnection(reject_status, self, ConnectionCounts())


class TokenBucket:
    """A token bucket. Tokens return at a constant rate."""

    __slots__ = ("at_ms", "tokens")

    def __init__(self, most: float = math.inf) -> None:
        self.tokens = most  # the number of tokens at `at_ms`, at first more than the bucket holds
        self.at_ms = 0  # the time of the last update in Unix milliseconds

    def take(self, most: float, per_ms: float, now_ms: int, count: int = 1) -> int:
        """Take tokens, all or none. Return 0 if granted, otherwise the seconds to wait."""
        tokens = self.tokens + (now_ms - self.at_ms) * per_ms
        if tokens > most:  # `min` costs ten times as much
            tokens = most
        self.at_ms = now_ms
        if tokens < count:
            self.tokens = tokens
            return math.ceil((count - tokens) / per_ms / 1000)
        self.tokens = tokens - count
        return 0

    def borrow(self, most: float, per_ms: float, now_ms: int, count: int) -> bool:
        """Take `count` tokens if at least one is left, so that `tokens` may become negative. Return whether taken."""
        self.take(most, per_ms, now_ms, 0)
        if self.tokens < 1:
            return False
        self.tokens -= count
        return True

    def used(self, most: float, per_ms: float, now_ms: int) -> float:
        """Return the share of the tokens that are taken, from 0 to 1."""
        tokens = min(most, self.tokens + max(0, now_ms - self.at_ms) * per_ms)
        return min(1.0, max(0.0, 1 - tokens / most))


class ClientCounts(ConnectionCounts):
    """The counts of one client: tokens for sessions and stored bytes, and held offers."""

    __slots__ = ("arrivals", "bytes", "held", "limited", "name", "refusals", "requests", "sessions", "waiting")

    def __init__(self, limited: bool, name: str) -> None:
        self.connections = self.refused = self.waiting = self.held = 0
        self.limited = limited
        self.name = name  # its address or network

    def __getattr__(self, bucket: str) -> TokenBucket:
        """Make a bucket when it is first used. Most clients are never refused, and many publish nothing."""
        setattr(self, bucket, made := TokenBucket())
        return made

    @property
    def idle(self) -> bool:
        """Whether it has nothing open."""
        return not (self.connections or self.refused or self.waiting or self.held)


def contains(network: Network, address: str) -> bool:
    """Return whether an address is in a network. A Unix socket is in none."""
    parsed = parse_address(address)
    return parsed is not None and not isinstance(parsed, str) and parsed in network


class Limits(ConnectionCounts):
    """The limits: counts per client, and in total.

    There are descriptors for `max_connections`. `room_bytes` returns the bytes that one address can store at present.
    `full` counts refusals by what was full, `connections`, `descriptors` or `waits`. `close_idle` closes an idle
    connection, of the chosen addresses if given, and returns whether there was one.
    """

    def __init__(
        self, settings: Settings, max_connections: int = 1_000_000, room_bytes: Callable[[], int] = lambda: 2**53
    ) -> None:
        super().__init__()
        self._room_bytes = room_bytes
        self.close_idle: Callable[[Callable[[str], bool] | None], bool] = lambda chosen: False
        self._descriptors = max_connections
        # By whether per-address limits apply, and by network.
        self._clients: OrderedDict[tuple[bool, str], ClientCounts] = OrderedDict()
        self._key = functools.lru_cache(ADDRESSES_KEPT)(self._find_key)
        self._forwarded = functools.lru_cache(FORWARDED_KEPT)(self._find_address)
        self.blocks: dict[Network, int] = {}  # blocked networks, each with the end of its block in Unix milliseconds
        self._is_in_block = functools.lru_cache(CLIENTS_KEPT)(self._find_block)
        self.waiting = 0  # waiting requests of all clients
        self.full: Counter[str] = Counter()
        self.recent = RecentCounts(network_of, OTHERS)  # requests of the last minutes by client
        self._peers: Counter[tuple[ClientCounts, Hashable]] = Counter()  # peers of a client in each swarm of trackers
        self._set(settings)

    def apply(self, settings: Settings) -> None:
        """Apply other settings. Existing connections and waits stay open and counted.

        If the limits of a client are switched on or off, this applies to what it opens from now on.
        """
        self._set(settings)
        self._key.cache_clear()
        self._forwarded.cache_clear()

    def _set(self, settings: Settings) -> None:
        self._settings = settings
        self._unlimited = (*settings.unlimited_addresses, *settings.trusted_proxies)
        self.burst = BURST_S * settings.rate_per_address  # requests that an idle client may make at once
        self._most_arrivals = 2 * self.burst + SPARE_ARRIVALS
        self._rate_per_ms = settings.rate_per_address / 1000
        self._sessions_per_ms = settings.max_sessions_per_address / settings.session_timeout_ms

    @property
    def max_connections(self) -> int:
        """The number of connections for which there is room."""
        return min(self._settings.max_connections, self._descriptors)

    def charge_request(self, client: ClientCounts, now_ms: int, units: int = 1) -> int:
        """Count a request, or something that costs as much as several. Return 0, or the seconds until a retry."""
        if not client.limited:
            return 0
        return client.requests.take(self.burst, self._rate_per_ms, now_ms, units)

    def exceeds_hard_limit(self, client: ClientCounts, now_ms: int) -> bool:
        """Count a request over the rate. Return whether there are too many of them to keep the connection."""
        if not client.limited:
            return False
        return bool(client.refusals.take(self._settings.rate_per_address, self._rate_per_ms, now_ms))

    def charge_session(self, client: ClientCounts, now_ms: int) -> None:
        """Count a new session. Raise TooMany if the quota of the client is used up."""
        if not client.limited:
            return
        wait_s = client.sessions.take(self._settings.max_sessions_per_address, self._sessions_per_ms, now_ms)
        if wait_s:
            raise TooMany("sessions of an address", wait_s)

    def charge_bytes(self, client: ClientCounts, size: int, now_ms: int) -> None:
        """Count bytes to store. Raise TooMany if the quota of the client is used up."""
        if not client.limited:
            return
        most = self._max_bytes
        wait_s = client.bytes.take(most, most / self._settings.session_timeout_ms, now_ms, size)
        if wait_s:
            raise TooMany("bytes of an address", wait_s)

    def reserve_bytes(self, client: ClientCounts, size: int, now_ms: int) -> int:
        """Count bytes before their number is known. Return `size`, or 0 if the quota of the client is used up."""
        most = self._max_bytes
        free = not client.limited or client.bytes.borrow(most, most / self._settings.session_timeout_ms, now_ms, size)
        return size if free else 0

    def return_bytes(self, client: ClientCounts, size: int) -> None:
        """Stop counting reserved bytes that are not needed."""
        if client.limited:
            client.bytes.tokens += size

    @property
    def _max_bytes(self) -> int:
        """The bytes that a client may store within the lifetime of a session."""
        most, room = self._settings.max_bytes_per_address, self._room_bytes()
        return most if most <= room else min(most, max(room, LEAST_ROOM_BYTES))

    def block(self, network: Network, until_ms: int) -> None:
        """Refuse the requests and connections of a network until `unblock`. `until_ms` is only reported."""
        self.blocks[network] = until_ms
        self._is_in_block.cache_clear()

    def unblock(self, network: Network) -> bool:
        self._is_in_block.cache_clear()
        return self.blocks.pop(network, None) is not None

    def is_blocked(self, address: str) -> bool:
        return bool(self.blocks) and self._is_in_block(address)

    def _find_block(self, address: str) -> bool:
        return any(contains(network, address) for network in self.blocks)

    def acquire_wait(self, client: ClientCounts) -> None:
        """Count a waiting request, until `release_wait`.

        Raise TooMany if too many requests of this client wait, Unavailable if too many wait in total.
        """
        if self.waiting >= self._settings.max_connections:
            self.full["waits"] += 1
            raise Unavailable("too many requests wait", retry_after_s=5)
        if client.limited and client.waiting >= self._settings.max_connections_per_address:
            raise TooMany("waiting requests of an address", 5)
        client.waiting += 1
        self.waiting += 1

    def release_wait(self, client: ClientCounts) -> None:
        self.waiting -= 1
        client.waiting -= 1

    def acquire_hold(self, client: ClientCounts) -> None:
        """Count an offer that is about to be held, or a channel or group of another protocol, in `client.held`.

        Raise TooMany if the client holds as many as its quota of sessions.
        """
        if client.limited and client.held >= self._settings.max_sessions_per_address:
            raise TooMany("held offers of an address", 5)
        client.held += 1

    def acquire_peer(self, client: ClientCounts, swarm: Hashable, most: int) -> None:
        """Count a peer in a swarm, until `release_peer`. A client has at most `most` in one."""
        if client.limited and self._peers[client, swarm] >= most:
            raise TooMany("peers of an address in a swarm")
        self._peers[client, swarm] += 1

    def release_peer(self, client: ClientCounts, swarm: Hashable) -> None:
        self._peers[client, swarm] -= 1
        if not self._peers[client, swarm]:
            del self._peers[client, swarm]

    def connected(self, address: str, now_ms: int) -> CountedConnection | None:
        """Count a connection. Return None to close it without a response.

        The time is by a monotonic clock, which can be another clock than that of requests.
        """
        client = self.client(address)
        settings = self._settings
        reject_status = 0
        if client.limited:
            if client.arrivals.take(self._most_arrivals, 2 * self._rate_per_ms, now_ms):
                self.count_recent(address, 429)
                return None
            if client.connections >= settings.max_connections_per_address and not self.close_idle(
                lambda other: self.client(other) is client
            ):
                reject_status = 429
        if not reject_status and self.connections >= self.max_connections and not self.close_idle(None):
            reject_status = 503
        if self.blocks and self.is_blocked(address):
            reject_status = 429
        if reject_status:
            self.count_recent(address, reject_status)
        if reject_status == 503:
            self.full["connections" if self._settings.max_connections <= self._descriptors else "descriptors"] += 1
        if reject_status and (
            self.refused >= SPARE_CONNECTIONS or (client.limited and client.refused >= SPARE_CONNECTIONS_PER_CLIENT)
        ):
            return None
        return CountedConnection(reject_status, self, client)

    def is_forwarded(self, client: ClientCounts, remote_ip: str) -> bool:
        """Return whether a client's connection is that of a proxy, which has another address."""
        return client.name != remote_ip and client is not self.client(remote_ip)

    def admit_forwarded(self, client: ClientCounts) -> None:
        """Check that a proxy can keep one more connection open for a client.

        The connection is counted in `client.connections`. The total of all clients contains the proxy's connection.
        """
        if client.limited and client.connections >= self._settings.max_connections_per_address:
            raise TooMany("connections of an address", 5)

    def clients(self) -> list[tuple[str, ClientCounts]]:
        return [(client.name, client) for client in self._clients.values()]

    def usage(self, client: ClientCounts, now_ms: int) -> dict[str, float]:
        """Return how much of each limit a client uses, from 0 to 1. Empty without limits."""
        if not client.limited:
            return {}
        settings, life_ms = self._settings, self._settings.session_timeout_ms
        sessions, size = settings.max_sessions_per_address, self._max_bytes
        return {
            "connections": client.connections / settings.max_connections_per_address,
            "waiting": client.waiting / settings.max_connections_per_address,
            "held": client.held / sessions,
            "requests": client.requests.used(self.burst, self._rate_per_ms, now_ms),
            "sessions": client.sessions.used(sessions, sessions / life_ms, now_ms),
            "bytes": client.bytes.used(size, size / life_ms, now_ms),
        }

    def client(self, address: str) -> ClientCounts:
        """Return the counts of a client, which are the same for all of its addresses."""
        key = self._key(address)
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = ClientCounts(*key)
            self._drop_idle()
        return client

    def client_address(self, peer: str, forwarded_for: str) -> str:
        find = self._forwarded if len(forwarded_for) <= FORWARDED_LENGTH else self._find_address
        return find(peer, forwarded_for)

    def _find_address(self, peer: str, forwarded_for: str) -> str:
        return forwarded.client_address(peer, forwarded_for, self._settings.trusted_proxies)

    def count_recent(self, address: str, status: int) -> None:
        """Count a request of a client, or a connection that is refused, with its status."""
        self.recent.count(self._key(address)[1], status)

    def _find_key(self, address: str) -> tuple[bool, str]:
        """Return whether an address is limited, and the name of its client."""
        parsed = parse_address(address)
        # A Unix socket is that of a proxy.
        limited = parsed is not None and not isinstance(parsed, str) and not trusted(address, self._unlimited)
        if limited and isinstance(parsed, ipaddress.IPv6Address):
            return True, str(ipaddress.ip_network((parsed, 64), strict=False))
        # Without a colon it is canonical, or else `parse_address` would refuse it.
        return limited, str(parsed) if limited and ":" in address else address

    def _drop_idle(self) -> None:
        """Drop the oldest client if there are too many, unless it has something open: then it becomes the newest."""
        for _ in range(DROP_STEP):
            if len(self._clients) <= CLIENTS_KEPT:
                return
            key, client = self._clients.popitem(last=False)
            if not client.idle:
                self._clients[key] = client
