"""Peers that connect, with aiortc: publish under a topic and get connections, or join a topic.

They understand the browser module: descriptions and candidates are the JSON of what WebRTC calls so.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

from .api import SignalClient
from .errors import APIError
from .link import Closed, Connection
from .offers import new_secret, publish_held
from .room import Room
from .servers import back_off_s
from .types import Closable, IceServer, Session

__all__ = ["Closed", "Connection", "Peers", "Publication", "new_secret"]

OPEN_S = 20.0  # from the answer to the open channel
RENEW_S = 600.0  # how old an offer, or a TURN password, is at most when it is used


class Peers(Closable):
    """Where connections come from. Use it as an async context manager: its end withdraws what it has published.

    Args:
        servers: the address of a server, or several of which the first one that works is used.
        origin: the Origin of every request; by default that of a page which the first server has.
        info: describes this peer, at most 1024 characters; random if not given. `join` skips sessions with the same.
        ice_servers: in place of those that the server names.
        websocket: as `SignalClient`.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:3000",
        origin: str | None = None,
        *,
        info: str | None = None,
        ice_servers: list[IceServer] | None = None,
        websocket: bool = True,
    ) -> None:
        self.client = SignalClient(servers, origin, websocket=websocket)
        self.info = info or str(uuid.uuid4())
        self._ice_servers = ice_servers
        self._ice_until_s = float("inf") if ice_servers is not None else 0.0
        self._open: set[Publication | Room] = set()

    async def close(self) -> None:
        """Withdraw every offer, and leave every room. Other connections stay."""
        await asyncio.gather(*(each.close() for each in self._open))
        await self.client.close()

    def publish(self, topic: str) -> "Publication":
        """Be found under a topic, by one peer after the other, until the publication is closed."""
        publication = Publication(self, topic)
        self._open.add(publication)
        return publication

    def forget(self, closed: "Publication | Room") -> None:
        """A publication or a room has been closed."""
        self._open.discard(closed)

    def room(self, topic: str, *, me: str | None = None, secret: str | None = None) -> Room:
        """Be connected to everybody in a room, browsers included, until it is left. Iterate over it for what happens.

        Args:
            topic: which room.
            me: a name, shown to the others, at most 256 characters.
            secret: protects the name: whatever else uses it in the room is ignored. The same secret gives the same id.

        Raises:
            ValueError: a name without a secret, or one that is too long.
        """
        room = Room(self.client, self.ice_servers, topic, self.info, me, secret, self.forget)
        self._open.add(room)
        return room

    async def join(self, topic: str, *, wait_s: float | None = None) -> Connection:
        """Connect to a peer of a topic, as soon as there is one.

        It tries them in random order, so that peers spread, and the next one when one is taken or cannot be reached.

        Args:
            topic: where to look.
            wait_s: for how long; None for ever.

        Raises:
            TimeoutError: no peer could be reached in time.
            APIError: the server refuses.
        """
        tried: set[str] = set()
        async with asyncio.timeout(wait_s), aclosing(self.client.listings(topic)) as listings:
            async for listing in listings:
                others = [each for each in listing.sessions if each["info"] != self.info]
                for session in random.sample(others, len(others)):
                    if session["code"] not in tried:
                        tried.add(session["code"])
                        if connection := await self._connect(session):
                            return connection
        raise AssertionError("unreachable")

    async def _connect(self, session: Session) -> Connection | None:
        """Answer a session; None if it is taken, or its peer cannot be reached."""
        connection = Connection(await self.ice_servers(), "answerer", session["info"])
        connection.code = session["code"]
        secret = new_secret()
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(connection.close)
            try:
                answer = await connection.answer(session["offer"], session["offerCandidates"])
            except Exception:  # what a stranger has published, and aiortc has no one error for what it refuses
                return None
            try:
                await self.client.answer(connection.code, answer, secret=secret)
                async with asyncio.timeout(OPEN_S):
                    await connection.open(self.client, secret)
            except APIError as error:
                if not error.lost_race:
                    raise
                return None
            except TimeoutError:
                return None
            failing.pop_all()
        return connection

    async def ice_servers(self) -> list[IceServer]:
        """The ICE servers for a new connection; asked for anew before their credentials end."""
        if time.monotonic() >= self._ice_until_s:
            found = await self.client.ice_servers()
            self._ice_servers = found["iceServers"] if found else []
            left_s = found["expiresAt"] / 1000 - time.time() if found else RENEW_S
            self._ice_until_s = time.monotonic() + min(RENEW_S, max(0.0, left_s / 2))
        return self._ice_servers or []


class Publication(Closable):
    """An offer under a topic, and after its answer the next one. Iterate over it for the connections, as they open."""

    def __init__(self, peers: Peers, topic: str) -> None:
        self.topic = topic
        self._peers = peers
        self._ready: asyncio.Queue[Connection | BaseException | None] = asyncio.Queue()
        self._tasks = {asyncio.create_task(self._publish())}

    async def __aiter__(self) -> AsyncIterator[Connection]:
        """The connections.

        Raises:
            APIError: the server refuses to publish.
        """
        while (found := await self._ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    async def close(self) -> None:
        """Take the offer back. Connections that are open stay."""
        self._peers.forget(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ready.put_nowait(None)

    async def _publish(self) -> None:
        try:
            attempt = 0
            while True:
                try:
                    connection, secret = await self._offer()
                except APIError as error:
                    if not error.is_transient:
                        raise
                    await asyncio.sleep(back_off_s(attempt))
                    attempt += 1
                    continue
                attempt = 0
                if await self._answered(connection, secret):
                    opening = asyncio.create_task(self._open(connection, secret))
                    self._tasks.add(opening)
                    opening.add_done_callback(self._tasks.discard)
        except Exception as error:
            self._ready.put_nowait(error)

    async def _offer(self) -> tuple[Connection, str]:
        """Publish an offer; its connection, and its secret."""
        client, info = self._peers.client, self._peers.info
        connection = Connection(await self._peers.ice_servers(), "offerer")
        secret = new_secret()
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(connection.close)
            offer = await connection.offer()
            connection.code = await publish_held(client, self.topic, info, offer, secret)
            failing.pop_all()
        return connection, secret

    async def _answered(self, connection: Connection, secret: str) -> bool:
        """Wait for the answer; False if the offer has become too old, or is gone. It is withdrawn unless answered."""
        client, code = self._peers.client, connection.code
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(connection.close)
            failing.push_async_callback(self._withdraw, code, secret)
            try:
                async with asyncio.timeout(RENEW_S), aclosing(client.news(code, "offerer", secret=secret)) as all_news:
                    async for news in all_news:
                        if news.description is not None:
                            failing.pop_all()
                            return True
            except TimeoutError:
                pass
            except APIError as error:
                if error.status != 404 and not error.is_transient:
                    raise
        return False

    async def _withdraw(self, code: str, secret: str) -> None:
        with contextlib.suppress(APIError):
            await self._peers.client.withdraw(code, "offerer", secret=secret)

    async def _open(self, connection: Connection, secret: str) -> None:
        try:
            async with asyncio.timeout(OPEN_S):
                await connection.open(self._peers.client, secret)
        except BaseException as error:
            await connection.close()
            # A peer that has answered may send anything, or leave; the next one may come.
            if not isinstance(error, Exception):
                raise
        else:
            self._ready.put_nowait(connection)
