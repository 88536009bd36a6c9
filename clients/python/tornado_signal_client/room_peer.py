"""A connection between two members of a room with aiortc, from the attempt to its end."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .errors import APIError
from .files import IncomingFile, IncomingFiles
from .link import add_candidate, description_fields, drain, new_connection, set_remote_description
from .messages import Messages
from .parsing import parse_object
from .records import Signal, decode_signal
from .types import Fields, IceServer

MAX_MAILS = 100  # of the other side that wait. An attempt needs a few
OFFER_S = 15.0  # timeout for gathering this side's candidates and sending them


class Peer:
    """Another member of a room and the connection to it.

    The leading side sends the first offer. aiortc supports neither rollback nor ICE restart, so this side never sends a
    second offer. It answers later offers from the other side, which add tracks. Tracks arrive as the `track` event of
    `connection`.

    Args:
        silence_timeout_s: how long the other side may send nothing before the data channel is open.
        late_s: the age at which the attempt is `late`.
        post: sends mail to the other side through the server, and returns once it is sent.
        on_event: called with `Joined` once the channel is open, with each `FileOffered` and `Message`, and with `Left`
            after `Joined`. The data of a message is not decoded yet.

    Attributes:
        late: whether another attempt may replace this one.
        connected_s: the time of the first connection by the loop's clock, or None.
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
        on_event: Callable[["Event"], None],
        on_late: Callable[[], None],
        on_end: Callable[["Peer"], None],
    ) -> None:
        self.id, self.info, self.name = id, info, name
        self.connection = new_connection(ice_servers)
        self.channel = self.connection.createDataChannel("room", negotiated=True, id=0)
        self.messages = Messages(self.connection, self.channel)
        self._negotiation = self.connection.createDataChannel("negotiation", negotiated=True, id=1)
        self.leads, self.late = leads, False
        self.connected_s: float | None = None
        self._silence_timeout_s, self._late_s = silence_timeout_s, late_s
        self._post, self._on_event, self._on_late, self._on_end = post, on_event, on_late, on_end
        self._joined = False
        self._ended, self._closed = asyncio.Event(), asyncio.Event()
        self._offers = 0.0  # the largest offer number of the other side
        self._inbox: asyncio.Queue[Signal] = asyncio.Queue(MAX_MAILS)
        self._timer: asyncio.TimerHandle | None = None
        self.channel.on("open", self._join)
        self.channel.on("message", self._receive)
        self.channel.on("close", self.end)
        self._negotiation.on("message", self._receive_description)
        IncomingFiles(self.connection, self._receive_file)
        self.connection.on("connectionstatechange", self._on_connection_state)
        self._negotiating = asyncio.create_task(self._negotiate())

    def deliver(self, signal: Signal) -> None:
        """Queue a message of the other side. Drop it if too many wait."""
        if self._timer is not None:
            self._restart_timer()
        with contextlib.suppress(asyncio.QueueFull):
            self._inbox.put_nowait(signal)

    def check(self) -> None:
        """End the attempt unless it is connected. Called when the other member is no longer listed."""
        if self.connection.connectionState != "connected":
            self.end()

    def end(self) -> None:
        """End the attempt or connection immediately."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._cancel_timer()
        self._negotiating.cancel()
        self._closing = asyncio.create_task(self._close())
        if self._joined:
            self._on_event(Left(self))
        self._on_end(self)

    async def close(self) -> None:
        """Send pending messages, then end the connection."""
        if self.channel.readyState == "open":
            await drain(self.messages, self.channel, self._ended)
        self.end()
        await self._closed.wait()

    async def _close(self) -> None:
        await asyncio.gather(self._negotiating, return_exceptions=True)
        await self.connection.close()
        self._closed.set()

    def _restart_timer(self) -> None:
        self._cancel_timer()
        if not self._joined:
            self._timer = asyncio.get_running_loop().call_later(self._silence_timeout_s, self.end)

    def _mark_late(self) -> None:
        self.late = True
        self._on_late()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _join(self) -> None:
        if not self._joined and not self._ended.is_set():
            self._cancel_timer()
            self._joined = True
            self._on_event(Joined(self))

    def _receive(self, data: str | bytes) -> None:
        self._join()
        message = self.messages.take(data)
        if message is not None and not self._ended.is_set():
            self._on_event(Message(self, message))

    def _receive_file(self, file: IncomingFile) -> None:
        self._join()
        if not self._ended.is_set():
            self._on_event(FileOffered(self, file))

    def _receive_description(self, text: str | bytes) -> None:
        if signal := decode_signal(parse_object(text)):
            self.deliver(signal)

    def _on_connection_state(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self.end()
        elif self.connection.connectionState == "connected" and self.connected_s is None:
            self.connected_s = asyncio.get_running_loop().time()

    async def _negotiate(self) -> None:
        """Send an offer if this side leads, then apply received mail in order."""
        try:
            if self.leads:
                async with asyncio.timeout(OFFER_S):
                    await self.connection.setLocalDescription(await self.connection.createOffer())
                    await self._send(1)
        except Exception:  # aiortc has no common error class
            return self.end()
        self._restart_timer()
        asyncio.get_running_loop().call_later(self._late_s, self._mark_late)
        while True:
            signal = await self._inbox.get()
            # The contents are untrusted, and aiortc has no common error class for invalid input.
            with contextlib.suppress(Exception):
                await self._apply(signal)

    async def _apply(self, signal: Signal) -> None:
        offer_number, description = signal.offer_number, signal.description
        if description is not None:
            state = self.connection.signalingState
            if description.type == "offer" and offer_number > self._offers and state == "stable":
                self._offers = offer_number
                await set_remote_description(self.connection, description)
                await self.connection.setLocalDescription(await self.connection.createAnswer())
                await self._send(offer_number)
            elif description.type == "answer" and offer_number == 1 and state == "have-local-offer":
                await set_remote_description(self.connection, description)
        if self.connection.remoteDescription is not None:
            for candidate in signal.candidates:
                await add_candidate(self.connection, candidate)

    async def _send(self, offer_number: float) -> None:
        """Send this side's description, which contains all its candidates, for offer `offer_number`."""
        mail = {"description": description_fields(self.connection.localDescription), "of": offer_number}
        if self._negotiation.readyState == "open" and self.connection.connectionState == "connected":
            self._negotiation.send(json.dumps(mail))
        else:
            await self._post(mail)


@dataclass(frozen=True)
class Joined:
    """The event of a new connection to another member."""

    peer: Peer


@dataclass(frozen=True)
class Left:
    """The event of a member that has left or whose connection has ended."""

    peer: Peer


@dataclass(frozen=True)
class Message:
    """The event of a received message."""

    peer: Peer
    data: Any


@dataclass(frozen=True)
class FileOffered:
    """The event of a file that another member sends."""

    peer: Peer
    file: IncomingFile


@dataclass(frozen=True)
class Full:
    """The event of a member that waits for a place in a room with `max`, or that has got one."""

    full: bool


@dataclass(frozen=True)
class ServerUnreachable:
    """The event of servers that have not responded, or refused requests, for 5 s. The room continues when one works."""

    error: APIError


Event = Joined | Left | Message | FileOffered
