"""A connection between two members of a room with aiortc, from the attempt to its end."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiortc import RTCDataChannel

from .errors import SignalError
from .files import IncomingFile, IncomingFiles, OutgoingFile
from .link import (
    add_candidate,
    description_fields,
    drain,
    gather_candidates,
    new_connection,
    report,
    set_remote_description,
)
from .messages import Messages, encode
from .names import Identity
from .parsing import parse_object
from .records import Signal, decode_signal
from .types import Fields, IceServer, check_type
from .verification import Verification, verification, without_other_hashes

CHANNEL = "tornado-signal-channel"  # the protocol of the channels of `Room.channel`
MAX_CHANNELS = 100  # that the other side opens
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
        send_report: Callable[[Fields], None],
        identity: Identity,
    ) -> None:
        self.id, self.info, self.name = id, info, name
        self.connection = new_connection(ice_servers)
        self.channel = self.connection.createDataChannel("room", negotiated=True, id=0)
        self._messages = Messages(self.connection, self.channel)
        self._negotiation = self.connection.createDataChannel("negotiation", negotiated=True, id=1)
        self._leads, self._is_late = leads, False
        self._start_s, self._send_report = time.monotonic(), send_report
        self._connected_s: float | None = None
        self._silence_timeout_s, self._late_s = silence_timeout_s, late_s
        self._post, self._on_event, self._on_late, self._on_end = post, on_event, on_late, on_end
        self._identity = identity  # of this side
        self._joined = False
        self._ended, self._closed = asyncio.Event(), asyncio.Event()
        self._offers = 0.0  # the largest offer number of the other side
        self._inbox: asyncio.Queue[Signal] = asyncio.Queue(MAX_MAILS)
        self._timer: asyncio.TimerHandle | None = None
        self.channel.on("open", self._join)
        self.channel.on("message", partial(self._receive, self._messages, None))
        self.channel.on("close", self._end)
        self._negotiation.on("message", self._receive_description)
        IncomingFiles(self.connection, self._receive_file)
        self._channels: dict[str, Messages] = {}  # that this side has opened, by name
        self._incoming_channels = 0
        self.connection.on("datachannel", self._on_channel)
        self.connection.on("connectionstatechange", self._on_connection_state)
        self._negotiating = asyncio.create_task(self._negotiate())

    @property
    def verification(self) -> Verification:
        """Five emoji and twelve digits, the same on both sides unless somebody is in between (docs/security.md).

        Raises:
            SignalError: the connection has no such number (`not-verifiable`).
        """
        local, remote = self.connection.localDescription, self.connection.remoteDescription
        sides = [(self._identity.id, without_other_hashes(local.sdp) if local else "")]
        return verification(self._identity.scope, [*sides, (self.id, remote.sdp if remote else "")])

    async def send(self, data: Any) -> None:
        """Send text, bytes or a JSON value, as `Room.send` does. If the member has left, the message is lost."""
        message, size = encode(data)
        if self.channel.readyState == "open":
            self._messages.check(size)
            await self._messages.send(message, size)

    async def send_file(
        self, source: Path | bytes, *, name: str | None = None, on_progress: Callable[[int], None] = lambda sent: None
    ) -> None:
        """Send a file, given as path or as its contents. Return when the other member has all of it.

        Args:
            name: the name for the other member, by default that of the path.
            on_progress: called with the number of bytes sent.

        Raises:
            SignalError: the file is refused, cancelled or interrupted.
            OSError: the file cannot be read.
        """
        check_type("source", source, Path, bytes)
        name = check_type("name", name, str, None)
        if name is None:
            name = "" if isinstance(source, bytes) else source.name
        if self.channel.readyState != "open":
            raise peer_left(self.id)
        await OutgoingFile(self.connection).send(source, name, on_progress)

    def _deliver(self, signal: Signal) -> None:
        """Queue a message of the other side. Drop it if too many wait."""
        if self._timer is not None:
            self._restart_timer()
        with contextlib.suppress(asyncio.QueueFull):
            self._inbox.put_nowait(signal)

    def _check(self) -> None:
        """End the attempt unless it is connected. Called when the other member is no longer listed."""
        if self.connection.connectionState != "connected":
            self._end()

    def _end(self, *, failed: bool = False) -> None:
        """End the attempt or connection immediately. `failed` is whether it did not connect two members in time."""
        if self._ended.is_set():
            return
        self._ended.set()
        if failed and not self._joined and self.connection.remoteDescription is not None:
            self._send_report(report(self.connection, self._start_s, connected=False))
        self._cancel_timer()
        self._negotiating.cancel()
        self._closing = asyncio.create_task(self._close())
        if self._joined:
            self._on_event(Left(self))
        self._on_end(self)

    async def _finish(self) -> None:
        """Send pending messages, then end the connection."""
        if self.channel.readyState == "open":
            await drain(self._messages, self.channel, self._ended)
        self._end()
        await self._closed.wait()

    async def _close(self) -> None:
        await asyncio.gather(self._negotiating, return_exceptions=True)
        await self.connection.close()
        self._closed.set()

    def _restart_timer(self) -> None:
        self._cancel_timer()
        if not self._joined:
            self._timer = asyncio.get_running_loop().call_later(self._silence_timeout_s, self._fail)

    def _fail(self) -> None:
        self._end(failed=True)

    def _mark_late(self) -> None:
        self._is_late = True
        self._on_late()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _join(self) -> None:
        if not self._joined and not self._ended.is_set():
            self._cancel_timer()
            self._joined = True
            self._send_report(report(self.connection, self._start_s, connected=True))
            self._on_event(Joined(self))

    def _named(self, name: str, options: Fields) -> Messages:
        """Return what sends over this side's channel with a name."""
        if name not in self._channels:
            channel = self.connection.createDataChannel(name, protocol=CHANNEL, **options)
            self._channels[name] = Messages(self.connection, channel)
        return self._channels[name]

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.protocol != CHANNEL:
            return
        if self._incoming_channels == MAX_CHANNELS:
            channel.close()
            return
        self._incoming_channels += 1
        channel.on("close", self._on_channel_close)
        channel.on("message", partial(self._receive, Messages(self.connection, channel), channel.label))

    def _on_channel_close(self) -> None:
        self._incoming_channels -= 1

    def _receive(self, messages: Messages, name: str | None, data: str | bytes) -> None:
        """Receive data over the channel with a name, or over `channel`."""
        self._join()
        message = messages.take(data)
        if message is not None and not self._ended.is_set():
            self._on_event(Message(self, message) if name is None else NamedMessage(self, name, message))

    def _receive_file(self, file: IncomingFile) -> None:
        self._join()
        if not self._ended.is_set():
            self._on_event(FileOffered(self, file))

    def _receive_description(self, text: str | bytes) -> None:
        if signal := decode_signal(parse_object(text)):
            self._deliver(signal)

    def _on_connection_state(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self._end(failed=self.connection.connectionState == "failed")
        elif self.connection.connectionState == "connected" and self._connected_s is None:
            self._connected_s = asyncio.get_running_loop().time()

    async def _negotiate(self) -> None:
        """Send an offer if this side leads, then apply received mail in order."""
        try:
            if self._leads:
                async with asyncio.timeout(OFFER_S):
                    offer = await self.connection.createOffer()
                    await gather_candidates(self.connection.setLocalDescription(offer))
                    await self._send(1)
        except Exception:  # aiortc has no common error class
            return self._end()
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
                answer = await self.connection.createAnswer()
                await gather_candidates(self.connection.setLocalDescription(answer))
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


def peer_left(id: str) -> SignalError:
    """Return the error for a recipient that is not connected."""
    return SignalError("peer-left", f"{id} is not a connected member of the room", retryable=True)


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

    error: SignalError


@dataclass(frozen=True)
class NamedMessage:
    """A message over a channel of `Room.channel`, which gets it."""

    peer: Peer
    name: str
    data: str | bytes


Event = Joined | Left | Message | FileOffered | NamedMessage
