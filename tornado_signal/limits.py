"""How much each client may ask for. No I/O; time is an argument.

A client is an IPv4 address, or the /64 of an IPv6 address: what one machine or household has. What is counted of one is
forgotten when it has nothing open and others need the room, so the memory is bounded whatever addresses there are.
"""

import ipaddress
import itertools
import math
from collections.abc import Callable

from .errors import TooMany, Unavailable
from .forwarded import parse_address, trusted
from .settings import Settings

CLIENTS_KEPT = 100_000
SPARE_CONNECTIONS = 100  # above the most: for telling as many at a time why they are not served


class Bucket:
    """Tokens that come back evenly.

    Attributes:
        tokens: how many there were at `at_ms`.
        at_ms: when that was; Unix milliseconds.
    """

    __slots__ = ("at_ms", "tokens")

    def __init__(self, most: float) -> None:
        self.tokens = most
        self.at_ms = 0

    def take(self, most: float, per_ms: float, now_ms: int) -> int:
        """Take one.

        Returns:
            0, or when there is none, after how many seconds there will be one.
        """
        tokens = min(most, self.tokens + (now_ms - self.at_ms) * per_ms)
        self.at_ms = now_ms
        if tokens < 1:
            self.tokens = tokens
            return math.ceil((1 - tokens) / per_ms / 1000)
        self.tokens = tokens - 1
        return 0


class Client:
    """What is counted of one client.

    Attributes:
        requests: the tokens for its requests.
        sessions: the tokens for the sessions that it publishes.
        connections: how many it has open.
        waiting: how many of its requests wait.
    """

    __slots__ = ("connections", "requests", "sessions", "waiting")

    def __init__(self, settings: Settings) -> None:
        self.requests = Bucket(settings.burst_per_address)
        self.sessions = Bucket(settings.max_sessions_per_address)
        self.connections = 0
        self.waiting = 0


class Limits:
    """All clients, and all that is open.

    Args:
        settings: as configured.
        max_connections: what the process has descriptors for.
    """

    def __init__(self, settings: Settings, max_connections: int = 1_000_000) -> None:
        self._settings = settings
        self._max_connections = min(settings.max_connections, max_connections)
        self._rate_per_ms = settings.rate_per_address / 1000
        self._sessions_per_ms = settings.max_sessions_per_address / settings.session_timeout_ms
        self._clients: dict[str, Client] = {}
        self._by_address: dict[str, Client | None] = {}  # None for those that no limit is for
        self.connections = 0
        self.waiting = 0

    def request(self, address: str, now_ms: int) -> int:
        """Count a request; 0, or after how many seconds there is room for it."""
        client = self._find(address)
        if client is None:
            return 0
        return client.requests.take(self._settings.burst_per_address, self._rate_per_ms, now_ms)

    def publish(self, address: str, now_ms: int) -> None:
        """Count a session.

        Raises:
            TooMany: the client has published as many as it may in the lifetime of a session.
        """
        client = self._find(address)
        if client is None:
            return
        wait_s = client.sessions.take(self._settings.max_sessions_per_address, self._sessions_per_ms, now_ms)
        if wait_s:
            raise TooMany("sessions of an address", wait_s)

    def wait(self, address: str) -> Callable[[], None]:
        """Count a request that waits; call what is returned when it does not any more.

        Raises:
            TooMany: too many of this client wait.
            Unavailable: too many wait.
        """
        client = self._find(address)
        if self.waiting >= self._settings.max_waiting:
            raise Unavailable("too many requests wait", retry_after_s=5)
        if client is not None:
            if client.waiting >= self._settings.max_waiting_per_address:
                raise TooMany("waiting requests of an address", 5)
            client.waiting += 1
        self.waiting += 1

        def done() -> None:
            self.waiting -= 1
            if client is not None:
                client.waiting -= 1

        return done

    def connected(self, address: str) -> int | None:
        """Count a connection, which has to be `disconnected` once.

        Returns:
            0 if it is welcome, the HTTP status to refuse it with, or None if there is no room even for that.
        """
        self.connections += 1
        client = self._find(address)
        if client is not None:
            client.connections += 1
        if self.connections > self._max_connections + SPARE_CONNECTIONS:
            return None
        if self.connections > self._max_connections:
            return 503
        if client is not None and client.connections > self._settings.max_connections_per_address:
            return 429
        return 0

    def disconnected(self, address: str) -> None:
        """A connection is over."""
        self.connections -= 1
        client = self._find(address)
        if client is not None:
            client.connections -= 1

    def _find(self, address: str) -> Client | None:
        try:
            return self._by_address[address]
        except KeyError:
            client = self._by_address[address] = self._meet(address)
            if len(self._by_address) > CLIENTS_KEPT:
                self._forget()
            return client

    def _meet(self, address: str) -> Client | None:
        parsed = parse_address(address)
        if parsed is None or isinstance(parsed, str):
            return None  # a Unix socket's, which a proxy is behind
        if trusted(address, (*self._settings.unlimited_addresses, *self._settings.trusted_proxies)):
            return None
        name = str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else str(parsed)
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = Client(self._settings)
        return client

    def _forget(self) -> None:
        """Make room: of the older half all that have nothing open."""
        for address in list(itertools.islice(self._by_address, CLIENTS_KEPT // 2)):
            client = self._by_address[address]
            if client is None or not (client.connections or client.waiting):
                del self._by_address[address]
        kept = set(map(id, self._by_address.values()))
        self._clients = {name: client for name, client in self._clients.items() if id(client) in kept}
