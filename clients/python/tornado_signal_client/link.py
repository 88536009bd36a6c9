"""One side of a session with aiortc, from the description to the open data channel."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, cast

try:
    from aiortc import RTCConfiguration, RTCDataChannel, RTCIceServer, RTCPeerConnection, RTCSessionDescription
    from aiortc.rtcicetransport import parse_stun_turn_uri
    from aiortc.rtcsctptransport import SCTP_RTO_INITIAL
    from aiortc.sdp import candidate_from_sdp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "peers need aiortc; in the checkout: pip install 'clients/python[peer]'", name=error.name
    ) from error

from .api import SignalClient
from .errors import SignalError
from .files import PROTOCOL, IncomingFile, receive_files
from .messages import MAX_MESSAGE, Inbox, Messages, announce_joins, decode, encode
from .parsing import checked, parse_object
from .records import Candidate, Description
from .types import Closable, Fields, IceServer, Side, urls_of
from .verification import without_other_hashes

OPEN_S = 20.0  # timeout from the answer to the open channel
REPORT_MS = 100  # the time of a report is in steps of this
# How long a closing side waits for the other to receive something. aiortc repeats a lost packet earlier.
CLOSE_S = SCTP_RTO_INITIAL + 1
MAX_CLOSE_S = 60.0  # it waits at most this long for the other to receive all
OPEN_STEPS = 100  # of the event loop, in which aioice opens the sockets of all addresses


class Connection(Closable):
    """A connection to another peer with an open data channel. Iterate over it to receive the messages."""

    def __init__(self, ice_servers: list[IceServer], side: Side, info: str | None = None) -> None:
        self.peer = new_connection(ice_servers)
        self.side: Side = side
        self.info = info
        self.code = ""
        self.channel: RTCDataChannel
        self._inbox: Inbox[str | bytes | None] = Inbox()
        receive_files(self.peer, IncomingFile.cancel)  # files need a room
        self._open, self._closed = asyncio.Event(), asyncio.Event()
        self._answer: RTCSessionDescription | None = None  # this side's answer
        self._added: set[str] = set()
        if side == "offerer":
            self._use_channel(self.peer.createDataChannel("data"))
        else:
            self.peer.on("datachannel", self._use_channel)
        self.peer.on("connectionstatechange", self._on_connection_state)

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped, because the program had too many others to read."""
        return self._inbox.dropped

    async def send(self, message: Any) -> None:
        """Send text, bytes or a JSON value. Return when it is in the buffer of the channel, or lost at its end.

        Raises:
            SignalError: the message is invalid or larger than 64 MiB, the connection takes less, 64 MiB wait already,
                or the connection is closed (`invalid-message`, `message-too-large`, `peer-slow`, `connection-lost`).
        """
        encoded, size = encode(message)
        if self.channel.readyState != "open":
            raise _closed()
        self._messages.check(size)
        await self._messages.send(encoded, size)

    async def receive(self) -> Any:
        """Return the next message: text, bytes or a JSON value. Raise `connection-lost` once it is closed."""
        message = await self._inbox.get()
        if message is None:
            raise _closed()
        return decode(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        with contextlib.suppress(SignalError):
            while True:
                yield await self.receive()

    async def close(self) -> None:
        if self._open.is_set() and self.channel.readyState == "open":
            await drain(self._messages, self.channel, self._closed)
        await self.peer.close()
        self._on_closed()

    async def offer(self) -> str:
        """Return this side's offer as JSON. aiortc gathers the candidates first, so the offer contains them."""
        await gather_candidates(self.peer.setLocalDescription(await self.peer.createOffer()))
        return json.dumps(description_fields(self.peer.localDescription))

    async def answer(self, offer: str, candidates: list[str], info: str) -> str:
        """Return this side's answer with its `info` as JSON. Nothing is sent to the other side before `open`.

        An offer without a data channel is a ValueError. aiortc has no common error class for others that it refuses.
        """
        await self._set_remote_description(offer)
        if self.peer.sctp is None:
            raise ValueError("the offer has no data channel")
        await self._add_candidates(candidates)
        # Setting the local description would gather candidates and connect immediately, so gather them here.
        media = (transceiver.receiver.transport for transceiver in self.peer.getTransceivers())
        transports = {self.peer.sctp.transport, *media}
        gatherers = [transport.transport.iceGatherer for transport in transports]
        await gather_candidates(asyncio.gather(*(gatherer.gather() for gatherer in gatherers)))
        self._answer = await self.peer.createAnswer()
        return json.dumps({**description_fields(self._answer), "info": info})

    async def open(self, client: SignalClient, secret: str | None) -> None:
        """Apply what the other side sends until the data channel is open. After `OPEN_S` raise TimeoutError.

        As the answerer, call it after `/answer`.
        """
        start_s = time.monotonic()
        try:
            async with asyncio.timeout(OPEN_S):
                if self._answer is not None:
                    await self.peer.setLocalDescription(self._answer)
                await wait_for_first(self._open.wait(), self._apply_updates(client, secret))
        except TimeoutError:
            client._report(report(self.peer, start_s, connected=False))
            raise
        client._report(report(self.peer, start_s, connected=True))

    async def _apply_updates(self, client: SignalClient, secret: str | None) -> None:
        async with aclosing(client.news(self.code, self.side, secret=secret)) as updates:
            async for update in updates:
                if update.description is not None and self.peer.signalingState == "have-local-offer":
                    await self._set_remote_description(update.description)
                await self._add_candidates(update.candidates)

    async def _set_remote_description(self, description: str) -> None:
        decoded = checked(parse_object(description), Description)
        if decoded is None:
            raise ValueError("the other side sent another text than a description")
        await set_remote_description(self.peer, decoded)
        self.info = decoded.get("info") or self.info

    async def _add_candidates(self, candidates: list[str]) -> None:
        """Add candidates in the form that browsers send, each once."""
        for text in candidates:
            if text in self._added:
                continue
            self._added.add(text)
            if candidate := checked(parse_object(text), Candidate):
                await add_candidate(self.peer, candidate)

    def _use_channel(self, channel: RTCDataChannel) -> None:
        if hasattr(self, "channel") or channel.protocol == PROTOCOL:  # ignore further channels of the other side
            return
        self.channel = channel
        self._messages = Messages(self.peer, channel)
        channel.on("message", self._take)
        channel.on("close", self._on_closed)
        channel.on("open", self._open.set)
        if channel.readyState == "open":
            self._open.set()

    def _take(self, data: str | bytes) -> None:
        if (message := self._messages.take(data)) is not None:
            self._inbox.put(message, message)

    def _on_connection_state(self) -> None:
        if self.peer.connectionState in ("failed", "closed"):
            self._on_closed()

    def _on_closed(self) -> None:
        self._closed.set()
        self._inbox.put_always(None)


def _closed() -> SignalError:
    return SignalError("connection-lost", "the connection is closed", retryable=True)


def new_connection(ice_servers: list[IceServer]) -> RTCPeerConnection:
    servers = [RTCIceServer(server["urls"], server.get("username"), server.get("credential")) for server in ice_servers]
    return RTCPeerConnection(RTCConfiguration(iceServers=servers))


def report(connection: RTCPeerConnection, start_s: float, *, connected: bool) -> Fields:
    """Return the report of an attempt to connect since `start_s` (docs/turn.md#reports-of-connections)."""
    ms = math.ceil((time.monotonic() - start_s) * 1000 / REPORT_MS) * REPORT_MS
    fields: Fields = {"outcome": "connected" if connected else "failed", "ms": ms}
    with contextlib.suppress(AttributeError, LookupError):  # aiortc has no public interface for the pair
        ice = cast(Any, connection.sctp).transport.transport._connection
        pair = ice._nominated[1]
        local = pair.local_candidate.type
        relay = "tls" if ice.turn_ssl else ice.turn_transport
        transport = relay if local == "relay" else "udp"
        fields |= {"local": local, "remote": pair.remote_candidate.type, "transport": transport}
    return fields


def usable_ice_servers(servers: list[IceServer]) -> list[IceServer]:
    """Return ICE servers without the addresses that aiortc cannot parse, such as those with IPv6 addresses."""
    usable: list[IceServer] = []
    for server in servers:
        addresses = urls_of(server)
        known = [address for address in addresses if _can_parse(address)]
        if known == addresses:
            usable.append(server)
        elif known:
            usable.append({**server, "urls": known})
    return usable


def _can_parse(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(parse_stun_turn_uri(address))
    return False


def description_fields(description: RTCSessionDescription) -> Fields:
    """Return the JSON fields of a description, which announce the largest message that this side joins from parts."""
    return {"type": description.type, "sdp": without_other_hashes(description.sdp), "joins": MAX_MESSAGE}


async def set_remote_description(connection: RTCPeerConnection, description: Description) -> None:
    announce_joins(connection, int(description.get("joins") or 0))
    await connection.setRemoteDescription(RTCSessionDescription(sdp=description["sdp"], type=description["type"]))


async def add_candidate(connection: RTCPeerConnection, received: Candidate) -> None:
    """Add a candidate in the form that browsers send. Ignore it if it is invalid."""
    with contextlib.suppress(Exception):  # untrusted input, and aiortc has no common error class for it
        if line := received["candidate"].removeprefix("candidate:"):  # an empty candidate marks the last one
            candidate = candidate_from_sdp(line)
            candidate.sdpMid, candidate.sdpMLineIndex = received.get("sdpMid"), received.get("sdpMLineIndex")
            await connection.addIceCandidate(candidate)


async def drain(messages: Messages, channel: RTCDataChannel, closed: asyncio.Event) -> None:
    """Close a channel after its pending messages. Give up after `CLOSE_S` without progress, and after `MAX_CLOSE_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAX_CLOSE_S), asyncio.timeout(CLOSE_S) as patience:
            buffered = None
            while messages.sending:
                if channel.bufferedAmount != buffered:
                    buffered = channel.bufferedAmount
                    patience.reschedule(asyncio.get_running_loop().time() + CLOSE_S)
                await asyncio.sleep(0.01)  # aiortc has no event for it
            channel.close()
            await closed.wait()


async def gather_candidates(work: Awaitable[object]) -> None:
    """Do work that gathers candidates. aioice forgets sockets if cancelled while opening them, so all are opened."""
    gathering = asyncio.ensure_future(work)
    try:
        await asyncio.shield(gathering)
    except asyncio.CancelledError:
        for _ in range(OPEN_STEPS):
            if gathering.done():
                break
            await asyncio.sleep(0)
        gathering.cancel()
        await asyncio.gather(gathering, return_exceptions=True)
        raise


async def wait_for_first(*coroutines: Awaitable[object]) -> None:
    """Run coroutines until one is done, cancel the others and raise its error, if any.

    If several are done at once, the first in order decides.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
