"""WebRTC peers with aiortc: publish under a topic and receive connections, or join a topic.

They are compatible with the browser module: descriptions and candidates have WebRTC's JSON form.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from functools import partial
from types import EllipsisType
from typing import Any

from .api import SignalClient, new_secret
from .authorization import TokenSource
from .errors import SignalError, log_unheard
from .link import Connection, usable_ice_servers
from .room import Room
from .tasks import Tasks, retry
from .types import Closable, IceServer, Session, check_type

log = logging.getLogger(__name__)

MAX_INFO = 1024
RENEW_S = 600.0  # maximum age of an offer or a TURN password when it is used
MAX_ICE_SERVERS = 20  # of a server


class Peers(Closable):
    """A factory of connections, publications and rooms. As an async context manager it withdraws its offers at the end.

    Args:
        servers: the address of a server, or several addresses. The first server that works is used.
        origin: the Origin of every request, by default the origin of the first server.
        info: describes this peer, at most 1024 characters, random by default.
        ice_servers: replaces the ICE servers that the server names.
        websocket, token: as for `SignalClient`.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:3000",
        origin: str | None = None,
        *,
        info: str | None = None,
        ice_servers: list[IceServer] | None = None,
        websocket: bool = True,
        token: TokenSource | None = None,
    ) -> None:
        self.client = SignalClient(servers, origin, websocket=websocket, token=token)
        check_type("info", info, str, None)
        if info is not None and not 0 < len(info) <= MAX_INFO:
            raise ValueError(f"info has one to {MAX_INFO} characters")
        check_type("ice_servers", ice_servers, list, None)
        self.info = info or str(uuid.uuid4())
        self._own_ice_servers, self._ice_servers = ice_servers, list[IceServer]()
        self._ice_refresh_at_s = 0.0
        self._open: set[Publication | Room] = set()
        self._own_offers: set[str] = set()  # the texts of published offers, which `join` does not answer

    async def close(self) -> None:
        """Withdraw all offers and leave all rooms. Other connections stay open."""
        await asyncio.gather(*(opened.close() for opened in self._open))
        await self.client.close()

    def publish(self, topic: str, *, timeout: float | None = None) -> "Publication":
        """Publish offers under a topic, one after the other, until the publication is closed.

        `timeout` is the seconds until the first offer has to be published. After it the iteration raises TimeoutError.
        """
        self._check(topic, timeout)
        publication = Publication(self, topic, timeout)
        self._open.add(publication)
        return publication

    def room(
        self,
        topic: str,
        *,
        me: str | None = None,
        secret: str | None = None,
        password: str | EllipsisType = ...,
        files: bool = False,
        max: int | None = None,
        timeout: float | None = None,
    ) -> Room:
        """Enter a room and connect to all its members, browsers included. Iterate over the room for its events.

        Args:
            me: a name for the other members to see, at most 256 characters.
            secret: protects the name: other members that use it are ignored. The same secret gives the same id.
            password: only members with the same password are in the room. A room with another password is another room.
            files: whether the program takes files, which are `FileOffered` events. Otherwise they are refused.
            max: the most members that are connected, this one included, or None for any number. The first ones to enter
                have a place. A later one gets `Full` and waits for a place. All members pass the same number.
            timeout: the seconds that entering may take, or None for any time. Then the iteration raises TimeoutError.

        Raises:
            ValueError: the name has no secret or is invalid, the password is empty, or `max` is less than 1.
            TypeError: an argument has another type. None is not a password.
        """
        self._check(topic, timeout)
        check_type("me", me, str, None)
        check_type("secret", secret, str, None)
        check_type("files", files, bool)
        check_type("max", max, int, None)
        if password == "":
            raise ValueError("a password is not empty")
        key = None if password is ... else check_type("password", password, str)  # None would be a mistake
        room = Room(
            self.client, self.ice_servers, topic, self.info, me, secret, key, files, max, timeout, self._open.discard
        )
        self._open.add(room)
        return room

    async def nearby(self, **options: Any) -> Room:
        """Enter the room of all programs and pages in the same network. The options are those of `room`."""
        return self.room(await self.client.nearby(), **options)

    def _check(self, topic: str, timeout: float | None) -> None:
        """Check arguments, and that the client can be used."""
        check_type("topic", topic, str)
        check_type("timeout", timeout, float, None)
        self.client._life.check()

    async def join(self, topic: str, *, timeout: float | None = None) -> Connection:
        """Connect to a peer of a topic as soon as one is available.

        Peers are tried in random order, so that connections are spread. A peer that is taken or unreachable is skipped.
        After `timeout` seconds TimeoutError is raised.
        """
        self._check(topic, timeout)
        async with contextlib.AsyncExitStack() as cleanup:
            connection = await self._join(topic, timeout, cleanup)
            cleanup.pop_all()
        return connection

    async def _join(self, topic: str, timeout: float | None, cleanup: contextlib.AsyncExitStack) -> Connection:
        tried: set[str] = set()
        async with self.client._time_limit(timeout), aclosing(self.client.listings(topic)) as listings:
            async for listing in listings:
                candidates = [session for session in listing.sessions if session["offer"] not in self._own_offers]
                for session in random.sample(candidates, len(candidates)):
                    if session["code"] not in tried:
                        tried.add(session["code"])
                        if connection := await self._connect(session):
                            cleanup.push_async_callback(connection.close)  # the end of the listings can be cancelled
                            return connection
        raise AssertionError("unreachable")

    async def _connect(self, session: Session) -> Connection | None:
        """Answer a session and return the connection, or None if the session is taken or its peer is unreachable."""
        connection = Connection(await self.ice_servers(), "answerer", session["info"])
        connection.code = session["code"]
        secret = new_secret()
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.push_async_callback(connection.close)
            try:
                answer = await connection.answer(session["offer"], session["offerCandidates"], self.info)
            except Exception:  # untrusted input, and aiortc has no common error class for it
                return None
            try:
                await self.client.answer(connection.code, answer, secret=secret)
                await connection.open(self.client, secret)
            except SignalError as error:
                if not error.lost_race:
                    raise
                return None
            except TimeoutError:
                return None
            cleanup.pop_all()
        return connection

    async def ice_servers(self) -> list[IceServer]:
        """Return the ICE servers for a new connection. They are requested again before their credentials expire."""
        if time.monotonic() >= self._ice_refresh_at_s and self._own_ice_servers is not None:
            self._ice_servers = usable_ice_servers(self._own_ice_servers)
            if self._ice_servers != self._own_ice_servers:
                raise ValueError(f"aiortc cannot use all of the ICE servers {self._own_ice_servers}")
            self._ice_refresh_at_s = float("inf")
        elif time.monotonic() >= self._ice_refresh_at_s:
            response = await self.client.ice_servers()
            self._ice_servers = usable_ice_servers(response["iceServers"][:MAX_ICE_SERVERS] if response else [])
            remaining_s = response["expiresAt"] / 1000 - time.time() if response else RENEW_S
            self._ice_refresh_at_s = time.monotonic() + min(RENEW_S, max(0.0, remaining_s / 2))
        return self._ice_servers


class Publication(Closable):
    """A published offer, replaced after each answer. Iterate over the publication for the open connections."""

    def __init__(self, peers: Peers, topic: str, timeout_s: float | None) -> None:
        self.topic, self._timeout_s = topic, timeout_s
        self._peers = peers
        self._ready: asyncio.Queue[Connection | BaseException | None] = asyncio.Queue()
        self._has_listener = False
        self._answered: set[Connection] = set()  # those that are not open yet
        self._tasks = Tasks()
        self._tasks.start(self._publish())

    async def __aiter__(self) -> AsyncIterator[Connection]:
        """Yield the connections as they open."""
        self._has_listener = True
        while (item := await self._ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    async def close(self) -> None:
        """Withdraw the offer. Open connections stay open."""
        self._peers._open.discard(self)
        await self._tasks.cancel()
        await asyncio.gather(*(connection.close() for connection in self._answered))
        self._ready.put_nowait(None)

    async def _publish(self) -> None:
        try:
            async with self._peers.client._time_limit(self._timeout_s) as limit:
                while True:
                    if answered := await retry(partial(self._offer, limit)):
                        self._tasks.start(self._open(*answered))
        except Exception as error:
            if not self._has_listener:
                log_unheard(log, f"the publication under {self.topic!r}", error)
            self._ready.put_nowait(error)

    async def _offer(self, limit: asyncio.Timeout) -> tuple[Connection, str] | None:
        """Publish an offer, and return its connection and secret once it is answered.

        An offer that becomes too old is withdrawn, and the result is None, as for one that was removed.
        """
        client, info, own_offers = self._peers.client, self._peers.info, self._peers._own_offers
        connection = Connection(await self._peers.ice_servers(), "offerer")
        secret = new_secret()
        async with contextlib.AsyncExitStack() as cleanup:
            cleanup.push_async_callback(connection.close)
            try:
                offer = await connection.offer()
                own_offers.add(offer)
                cleanup.callback(own_offers.discard, offer)  # after the withdrawal: this program does not answer it
                connection.code = await client._publish(self.topic, info, offer, secret)
                limit.reschedule(None)
                cleanup.push_async_callback(client._try_to_withdraw, connection.code, secret)
                updates = client.news(connection.code, "offerer", secret=secret)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_S), aclosing(updates):
                        async for update in updates:
                            if update.description is not None:
                                self._answered.add(connection)
                                cleanup.pop_all()
                                own_offers.discard(offer)
                                return connection, secret
            except SignalError as error:
                if not connection.code or (error.status != 404 and not error.retryable):
                    raise
        return None

    async def _open(self, connection: Connection, secret: str) -> None:
        try:
            await connection.open(self._peers.client, secret)
        except Exception:  # the answering peer can send anything or disconnect, and the publication continues
            await connection.close()
        else:
            self._ready.put_nowait(connection)
        self._answered.discard(connection)
