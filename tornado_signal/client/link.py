"""One side of one session with aiortc: from its description to the open data channel."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing

from aiortc import RTCConfiguration, RTCDataChannel, RTCIceServer, RTCPeerConnection, RTCSessionDescription
from aiortc.sdp import candidate_from_sdp

from .api import SignalClient
from .types import Closable, Fields, IceServer, Side

CLOSE_S = 2.0  # for what is still to be sent


class Closed(ConnectionError):
    """The connection has ended, from either side."""


class Connection(Closable):
    """A connection to another peer, whose data channel is open: send, receive or iterate over messages, close.

    Attributes:
        peer: aiortc's connection, for whatever else it can do.
        channel: its data channel.
        side: which one this is.
        code: of the session by which the peers met.
        info: the other peer's own words, if it has published.
    """

    def __init__(self, ice_servers: list[IceServer], side: Side, info: str | None = None) -> None:
        self.peer = new_connection(ice_servers)
        self.side: Side = side
        self.info = info
        self.code = ""
        self.channel: RTCDataChannel
        self._inbox: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._open, self._ended = asyncio.Event(), asyncio.Event()
        self._described_other = False
        self._answer: RTCSessionDescription | None = None  # until it is accepted
        self._seen: set[str] = set()
        if side == "offerer":
            self._use(self.peer.createDataChannel("data"))
        else:
            self.peer.on("datachannel", self._use)
        self.peer.on("connectionstatechange", self._on_connection_state)

    def send(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            Closed: the connection has ended.
        """
        if self.channel.readyState != "open":
            raise Closed("the connection is closed")
        self.channel.send(message)

    async def receive(self) -> str | bytes:
        """The next message.

        Raises:
            Closed: the connection has ended.
        """
        message = await self._inbox.get()
        if message is None:
            self._inbox.put_nowait(None)  # for the next call
            raise Closed("the connection is closed")
        return message

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        with contextlib.suppress(Closed):
            while True:
                yield await self.receive()

    async def close(self) -> None:
        """Send what is still to be sent, and hang up."""
        if self._open.is_set() and self.channel.readyState == "open":
            await finish(self.channel, self._ended)
        await self.peer.close()
        self._end()

    async def offer(self) -> str:
        """Describe this side as the offerer; aiortc finds its addresses before, so they are in the description."""
        await self.peer.setLocalDescription(await self.peer.createOffer())
        return json.dumps(fields_of(self.peer.localDescription))

    async def answer(self, offer: str, candidates: list[str]) -> str:
        """Describe this side as the answerer. Nothing is sent to the other side before `open`.

        Raises:
            ValueError: no data channel is offered; what aiortc refuses raises whatever it happens to.
        """
        await self._take(offer)
        if self.peer.sctp is None:
            raise ValueError("the offer has no data channel")
        await self._add(candidates)
        # aiortc would find its addresses, and connect with them at once, as it sets the local description.
        transports = {self.peer.sctp.transport, *(each.receiver.transport for each in self.peer.getTransceivers())}
        await asyncio.gather(*(each.transport.iceGatherer.gather() for each in transports))
        self._answer = await self.peer.createAnswer()
        return json.dumps(fields_of(self._answer))

    async def open(self, client: SignalClient, secret: str | None) -> None:
        """Use what the other side sends, until the data channel is open. An answer must have been accepted before.

        Raises:
            APIError: the session has ended before.
        """
        if self._answer is not None:
            await self.peer.setLocalDescription(self._answer)
        await until_first(self._open.wait(), self._use_news(client, secret))

    async def _use_news(self, client: SignalClient, secret: str | None) -> None:
        async with aclosing(client.news(self.code, self.side, secret=secret)) as all_news:
            async for news in all_news:
                if news.description is not None and not self._described_other:
                    await self._take(news.description)
                await self._add(news.candidates)

    async def _take(self, description: str) -> None:
        await take(self.peer, json.loads(description))
        self._described_other = True

    async def _add(self, candidates: list[str]) -> None:
        """Use candidates as browsers send them, each once."""
        for text in candidates:
            if text in self._seen:
                continue
            self._seen.add(text)
            with contextlib.suppress(ValueError, RecursionError):
                await add_candidate(self.peer, json.loads(text))

    def _use(self, channel: RTCDataChannel) -> None:
        if hasattr(self, "channel"):  # the other side may open more of them; they are its own affair
            return
        self.channel = channel
        channel.on("message", self._inbox.put_nowait)
        channel.on("close", self._end)
        channel.on("open", self._open.set)
        if channel.readyState == "open":
            self._open.set()

    def _on_connection_state(self) -> None:
        if self.peer.connectionState in ("failed", "closed"):
            self._end()

    def _end(self) -> None:
        self._ended.set()
        self._inbox.put_nowait(None)


def new_connection(ice_servers: list[IceServer]) -> RTCPeerConnection:
    """A connection of aiortc which uses these servers."""
    servers = [RTCIceServer(each["urls"], each.get("username"), each.get("credential")) for each in ice_servers]
    return RTCPeerConnection(RTCConfiguration(iceServers=servers))


def fields_of(description: RTCSessionDescription) -> Fields:
    """A description as JSON has it."""
    return {"type": description.type, "sdp": description.sdp}


async def take(connection: RTCPeerConnection, fields: Fields) -> None:
    """Use a description of the other side. What aiortc refuses raises whatever it happens to."""
    await connection.setRemoteDescription(RTCSessionDescription(sdp=fields["sdp"], type=fields["type"]))


async def add_candidate(connection: RTCPeerConnection, fields: Fields) -> None:
    """Use a candidate as browsers send it; one that is wrong does not spoil the others."""
    with contextlib.suppress(Exception):  # from a stranger, and aiortc has no one error for what it refuses
        if line := fields["candidate"].removeprefix("candidate:"):  # the last one is empty: no more will come
            candidate = candidate_from_sdp(line)
            candidate.sdpMid, candidate.sdpMLineIndex = fields.get("sdpMid"), fields.get("sdpMLineIndex")
            await connection.addIceCandidate(candidate)


async def finish(channel: RTCDataChannel, ended: asyncio.Event) -> None:
    """Close a channel after what is still to be sent, and wait until it `ended`, for a while."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            while channel.bufferedAmount:  # noqa: ASYNC110 (aiortc has no event for it)
                await asyncio.sleep(0.01)
            channel.close()
            await ended.wait()


async def until_first(*coroutines: Coroutine[None, None, object]) -> None:
    """Run all of them until one has ended; if that has failed, so does this. The first of several decides."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await next(task for task in tasks if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
