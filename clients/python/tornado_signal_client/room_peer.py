"""A connection between two members of a room with aiortc, from the attempt to its end."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiortc import RTCDataChannel

from .errors import SignalError
from .files import IncomingFile, OutgoingFile, on_channels, receive_files
from .link import (
    add_candidate,
    description_fields,
    drain,
    gather_candidates,
    new_connection,
    set_remote_description,
)
from .messages import Messages, encode
from .names import Identity
from .parsing import checked, parse_object
from .records import Beacon, Mail, Signal
from .types import Fields, IceServer, Token, check_type
from .verification import Verification, verification, without_other_hashes

CHANNEL = "tornado-signal-channel"  # the protocol of the channels of `Room.channel`
MAX_CHANNELS = 100  # channels that the other side may open
MAX_MAILS = 100  # unprocessed messages of the other side. An attempt needs a few
OFFER_S = 15.0  # timeout for gathering this side's candidates and sending them
PAIR_S = 5.0  # after this silence of the other side the first attempt fails. Later ones have a multiple of it
LATE_S = 1.5  # after this time the first attempt may be replaced. Later ones have a multiple of it
MAX_TRIES = 4  # the largest multiple of both
REMOTE_ATTEMPT_S = 30.0  # after this silence of the other side an attempt that it leads fails


class Member:
    """The state of another member."""

    def __init__(self, id: str, info: str, name: str | None) -> None:
        self.id, self.info, self.name = id, info, name
        self.entry_ms = math.inf  # when it entered, by the server's clock. Infinity if only its mail is known
        self.named_ms = math.inf  # when it was first seen with its name, by the server's clock
        self.beacon: Beacon | None = None  # the beacon that is used
        self.beacons: dict[str, Beacon] = {}  # all listed ones by their codes
        self.tries = 0  # attempts since the last connection
        self.attempts: set[str] = set()  # the ids of all attempts
        # The mail, attempt and own code of an offer that waits until the current attempt is late.
        self.later_offer: tuple[Mail, str, Token] | None = None
        self.peer: Peer | None = None  # the current attempt, or the open connection
        self.backing_off = False  # whether the next attempt has to wait
        self.listed = asyncio.Event()  # set while `code` is known
        self._code: Token | None = None

    @property
    def order(self) -> tuple[float, str]:
        """The order in which members get the places of a room."""
        return self.entry_ms, self.id

    @property
    def is_silent(self) -> bool:
        """Whether the member was asked for a sign of life in vain."""
        return self.beacon is not None and self.beacon.life == "silent"

    @property
    def is_waiting(self) -> bool:
        """Whether an attempt with the member may start."""
        return self.code is not None and self.peer is None and not self.backing_off

    @property
    def claim(self) -> tuple[bool, float, str]:
        """The order in which members own a name."""
        return self.is_silent, self.named_ms, self.id

    @property
    def code(self) -> Token | None:
        return self._code

    @code.setter
    def code(self, code: Token | None) -> None:
        self._code = code
        if code is None:
            self.listed.clear()
        else:
            self.listed.set()


class Peer:
    """Another member of a room and the connection to it.

    The leading side sends the first offer. aiortc supports neither rollback nor ICE restart, so this side never sends a
    second offer. It answers later offers from the other side, which add tracks. Tracks arrive as the `track` event of
    `connection`.

    Args:
        identity: of this side.
        send: sends mail to a member through the server, and returns once it is sent or refused.
        on_event: called with `Joined` once the channel is open, with each `FileOffered` and `Message`, and with `Left`
            after `Joined`. The data of a message is not decoded yet.
        on_late: called when the attempt may be replaced.
        on_end: called at the end, and with whether the attempt did not connect two members in time.
    """

    def __init__(
        self,
        member: Member,
        attempt: str,
        ice_servers: list[IceServer],
        identity: Identity,
        send: Callable[[Fields, Member], Awaitable[None]],
        on_event: Callable[["Event"], None],
        on_late: Callable[["Peer"], None],
        on_end: Callable[["Peer", bool], None],
    ) -> None:
        self.id = member.id
        self.connection = new_connection(ice_servers)
        self.channel = self.connection.createDataChannel("room", negotiated=True, id=0)
        self._member, self._attempt, self._identity = member, attempt, identity
        self._leads, self._is_late = identity.id < member.id, False
        self._times = min(MAX_TRIES, member.tries)  # the multiple of PAIR_S and LATE_S. `tries` counts this attempt
        self._send_mail, self._on_event, self._on_late, self._on_end = send, on_event, on_late, on_end
        self._messages = Messages(self.connection, self.channel)
        self._negotiation = self.connection.createDataChannel("negotiation", negotiated=True, id=1)
        self._start_s = time.monotonic()
        self._connected_s: float | None = None
        self._joined = False
        self._ended, self._closed = asyncio.Event(), asyncio.Event()
        self._offers = 0.0  # the largest offer number of the other side
        self._inbox: asyncio.Queue[Signal] = asyncio.Queue(MAX_MAILS)
        self.channel.on("open", self._join)
        self.channel.on("message", partial(self._receive, self._messages, None))
        self.channel.on("close", self._end)
        self._negotiation.on("message", self._receive_description)
        receive_files(self.connection, self._receive_file)
        on_channels(self.connection, CHANNEL, MAX_CHANNELS, self._on_channel)
        self._channels: dict[str, Messages] = {}  # that this side has opened, by name
        self.connection.on("connectionstatechange", self._on_connection_state)
        self._negotiating = asyncio.create_task(self._negotiate())

    @property
    def info(self) -> str:
        return self._member.info

    @property
    def name(self) -> str | None:
        return self._member.name

    @property
    def verification(self) -> Verification:
        """Five emoji and twelve digits, the same on both sides unless somebody is in between (docs/security.md).

        The error of a connection without such a number is `not-verifiable`.
        """
        # aiortc has written both texts. `remoteDescription` is not the text that was received.
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
        with contextlib.suppress(asyncio.QueueFull):
            self._inbox.put_nowait(signal)

    def _end(self, *, failed: bool = False) -> None:
        """End the attempt or connection immediately. `failed` is whether it did not connect two members in time."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._negotiating.cancel()
        self._closing = asyncio.create_task(self._close())
        if self._joined:
            self._on_event(Left(self))
        self._on_end(self, failed and not self._joined)

    @property
    def _is_connecting(self) -> bool:
        """Whether this is an attempt that is neither connected nor ended."""
        return not self._joined and not self._ended.is_set()

    async def _finish(self) -> None:
        """Send pending messages, then end the connection."""
        if self.channel.readyState == "open":
            await drain(self._messages, self.channel, self._ended)
        self._end()
        await self._closed.wait()

    async def _close(self) -> None:
        await asyncio.gather(self._negotiating, return_exceptions=True)
        await self.connection.close()
        for channel, *_ in getattr(self.connection.sctp, "_data_channel_queue", ()):
            channel._setReadyState("closed")  # aiortc does not close a channel that it has not opened yet
        self._closed.set()

    def _mark_late(self) -> None:
        self._is_late = True
        self._on_late(self)

    def _join(self) -> None:
        if not self._joined and not self._ended.is_set():
            self._joined = True
            self._on_event(Joined(self))

    def _own_channel(self, name: str, options: Fields) -> Messages:
        """Return this side's channel with a name, which the first call opens. The other side opens its own."""
        if name not in self._channels:
            channel = self.connection.createDataChannel(name, protocol=CHANNEL, **options)
            self._channels[name] = Messages(self.connection, channel)
        return self._channels[name]

    def _on_channel(self, channel: RTCDataChannel) -> None:
        channel.on("message", partial(self._receive, Messages(self.connection, channel), channel.label))

    def _receive(self, messages: Messages, name: str | None, data: str | bytes) -> None:
        """Receive data over the channel with a name, or over `channel`."""
        self._join()
        message = messages.take(data)
        if message is not None and not self._ended.is_set():
            self._on_event(Message(self, message, name))

    def _receive_file(self, file: IncomingFile) -> None:
        self._join()
        if not self._ended.is_set():
            self._on_event(FileOffered(self, file))

    def _receive_description(self, text: str | bytes) -> None:
        if signal := checked(parse_object(text), Signal):
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
        loop = asyncio.get_running_loop()
        loop.call_later(LATE_S * self._times, self._mark_late)  # also after the end: a later offer may wait for it
        silence_s = PAIR_S * self._times if self._leads else REMOTE_ATTEMPT_S
        while True:
            # The channel may open while an offer is processed. Then the offer has no time limit.
            limit = loop.call_later(silence_s, self._give_up)
            try:
                signal = await self._inbox.get()
                # The contents are untrusted, and aiortc has no common error class for invalid input.
                with contextlib.suppress(Exception):
                    await self._apply(signal)
            finally:
                limit.cancel()

    def _give_up(self) -> None:
        if not self._joined:
            self._end(failed=True)

    async def _apply(self, signal: Signal) -> None:
        offer_number, description = signal.get("of") or 0, signal.get("description")
        if description is not None:
            state = self.connection.signalingState
            if description["type"] == "offer" and offer_number > self._offers and state == "stable":
                self._offers = offer_number
                await set_remote_description(self.connection, description)
                answer = await self.connection.createAnswer()
                await gather_candidates(self.connection.setLocalDescription(answer))
                await self._send(offer_number)
            elif description["type"] == "answer" and offer_number == 1 and state == "have-local-offer":
                await set_remote_description(self.connection, description)
        if self.connection.remoteDescription is not None:
            for candidate in signal.get("candidates") or ():
                await add_candidate(self.connection, candidate)

    async def _send(self, offer_number: float) -> None:
        """Send this side's description, which contains all its candidates, for offer `offer_number`."""
        mail = {"description": description_fields(self.connection.localDescription), "of": offer_number}
        if self._negotiation.readyState == "open" and self.connection.connectionState == "connected":
            self._negotiation.send(json.dumps(mail))
        else:
            await self._send_mail({"connection": self._attempt, **mail}, self._member)


def peer_left(id: str) -> SignalError:
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
    """The event of a received message. Those with a channel are for `Room.channel`."""

    peer: Peer
    data: Any
    channel: str | None = None


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


Event = Joined | Left | Message | FileOffered
