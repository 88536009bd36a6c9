"""One connection between two members of a room with aiortc, from the attempt to its end."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .link import add_candidate, fields_of, finish, new_connection, take
from .types import Fields, IceServer

OFFER_S = 15.0  # to find this side's addresses, and to send them


class Peer:
    """Another member of a room, and the connection to it.

    The side that leads offers. aiortc can neither roll back nor restart ICE, so this side never offers anew; it answers
    whatever the other one offers later, for tracks. These are told by the connection's own event, `track`.

    Args:
        id: of the other member.
        info: its own words.
        name: its name.
        ice_servers: for the connection.
        leads: whether this side does.
        silence_timeout_s: how long the other side may say nothing until the data channel is open.
        late_s: after how long an attempt is `late`.
        post: a function that takes what is to be sent to the other side through the server, and waits until it is.
        tell: a function that is told what happens, once `Joined` at the most, and then `Left` in any case.
        is_late: a function that is told that this attempt is `late`.
        ended: a function that is told that this attempt or connection is over.

    Attributes:
        id: see above.
        info: likewise.
        name: likewise; None if it has none.
        connection: aiortc's connection.
        channel: its data channel, for messages.
        leads: see above.
        late: whether another attempt may take the place of this one.
    """

    def __init__(
        self,
        id: str,
        info: str,
        name: str | None,
        ice_servers: list[IceServer],
        leads: bool,
        silence_timeout_s: float,
        late_s: float,
        post: Callable[[Fields], Awaitable[None]],
        tell: Callable[["Joined | Left | Message"], None],
        is_late: Callable[[], None],
        ended: Callable[["Peer"], None],
    ) -> None:
        self.id, self.info, self.name = id, info, name
        self.connection = new_connection(ice_servers)
        self.channel = self.connection.createDataChannel("room", negotiated=True, id=0)
        self._negotiation = self.connection.createDataChannel("negotiation", negotiated=True, id=1)
        self.leads, self.late = leads, False
        self._silence_timeout_s, self._late_s = silence_timeout_s, late_s
        self._post, self._tell, self._on_late, self._on_end = post, tell, is_late, ended
        self._joined = False
        self._over, self._closed = asyncio.Event(), asyncio.Event()
        self._offers = 0  # the largest number of an offer of the other side
        self._inbox: asyncio.Queue[Fields] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self.channel.on("open", self._join)
        self.channel.on("message", self._receive)
        self.channel.on("close", self.end)
        self._negotiation.on("message", self._receive_description)
        self.connection.on("connectionstatechange", self._on_connection_state)
        self._negotiating = asyncio.create_task(self._negotiate())

    def take(self, mail: Fields) -> None:
        """Use what the other side has sent."""
        if self._timer is not None:
            self._wait()
        self._inbox.put_nowait(mail)

    def check(self) -> None:
        """The other member is not listed any more: end this if there is no connection either."""
        if self.connection.connectionState != "connected":
            self.end()

    def end(self) -> None:
        """Give it up, at once."""
        if self._over.is_set():
            return
        self._over.set()
        self._stop_waiting()
        self._negotiating.cancel()
        self._closing = asyncio.create_task(self._close())
        if self._joined:
            self._tell(Left(self))
        self._on_end(self)

    async def close(self) -> None:
        """Send what is still to be sent, then end it."""
        if self.channel.readyState == "open":
            await finish(self.channel, self._over)
        self.end()
        await self._closed.wait()

    async def _close(self) -> None:
        await asyncio.gather(self._negotiating, return_exceptions=True)
        await self.connection.close()
        self._closed.set()

    def _wait(self) -> None:
        self._stop_waiting()
        if not self._joined:
            self._timer = asyncio.get_running_loop().call_later(self._silence_timeout_s, self.end)

    def _be_late(self) -> None:
        self.late = True
        self._on_late()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _join(self) -> None:
        if not self._joined and not self._over.is_set():
            self._stop_waiting()
            self._joined = True
            self._tell(Joined(self))

    def _receive(self, data: str | bytes) -> None:
        self._join()
        if not self._over.is_set():
            self._tell(Message(self, data))

    def _receive_description(self, text: str | bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(mail := json.loads(text), dict):
                self.take(mail)

    def _on_connection_state(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self.end()

    async def _negotiate(self) -> None:
        """Offer, or wait for an offer, then use what comes, one after the other."""
        try:
            if self.leads:
                async with asyncio.timeout(OFFER_S):
                    await self.connection.setLocalDescription(await self.connection.createOffer())
                    await self._send(1)
        except Exception:  # as below
            return self.end()
        self._wait()
        asyncio.get_running_loop().call_later(self._late_s, self._be_late)
        while True:
            mail = await self._inbox.get()
            # From a stranger, and aiortc has no one error for what it refuses.
            with contextlib.suppress(Exception):
                await self._use(mail)

    async def _use(self, mail: Fields) -> None:
        of, description, candidates = mail.get("of"), mail.get("description"), mail.get("candidates")
        if isinstance(description, dict) and isinstance(of, int):
            state = self.connection.signalingState
            if description["type"] == "offer" and of > self._offers and state == "stable":
                self._offers = of
                await take(self.connection, description)
                await self.connection.setLocalDescription(await self.connection.createAnswer())
                await self._send(of)
            elif description["type"] == "answer" and of == 1 and state == "have-local-offer":
                await take(self.connection, description)
        if isinstance(candidates, list) and self.connection.remoteDescription is not None:
            for each in candidates:
                await add_candidate(self.connection, each)

    async def _send(self, of: int) -> None:
        """Send this side's description, which has all of its candidates in it."""
        mail = {"description": fields_of(self.connection.localDescription), "of": of}
        if self._negotiation.readyState == "open" and self.connection.connectionState == "connected":
            self._negotiation.send(json.dumps(mail))
        else:
            await self._post(mail)


@dataclass(frozen=True)
class Joined:
    """There is a connection to another member.

    Attributes:
        peer: that.
    """

    peer: Peer


@dataclass(frozen=True)
class Left:
    """A member has left, or the connection to it has ended.

    Attributes:
        peer: that.
    """

    peer: Peer


@dataclass(frozen=True)
class Message:
    """A member has sent a message.

    Attributes:
        peer: that.
        data: what it has sent.
    """

    peer: Peer
    data: str | bytes
