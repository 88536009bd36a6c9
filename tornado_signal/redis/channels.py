"""Notifications about changed sessions and topics, on sharded channels. Subscribe before the first read.

A message only says that something has changed. After a lost connection or a moved slot each channel is subscribed again
and its watches are woken, so that no change is missed.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from ..errors import Unavailable
from ..system.loop import Repeating, present
from .client import RedisClient
from .connections import Address, ErrorReply, RedisConnection
from .nodes import Node

log = logging.getLogger(__name__)

KEPT_S: Final = 5.0  # an unwatched channel stays subscribed this long, because polling clients return
PING_S: Final = 1.0
SILENT_S: Final = 3.0  # a connection counts as lost after this silence
RESUBSCRIBE_S: Final = 0.1  # delay before a refused channel is subscribed again
PIECE: Final = 1000  # channels looked at in one iteration of the event loop
IN_FLIGHT: Final = 500  # commands without a reply; more would delay the node and this process


class PubSubConnection:
    """The subscribed channels of one node, on a separate connection."""

    def __init__(self, node: Node, change_feed: "ChangeFeed") -> None:
        self.address: Address = node.address
        self._change_feed = change_feed
        self._access = change_feed.client.access
        self._connection: RedisConnection | None = None
        self._unsent: deque[tuple[bytes, bytes]] = deque()
        self._sending = False
        self._in_flight: deque[tuple[bytes, bytes]] = deque()  # commands without a reply, in order
        self._lost = asyncio.Event()
        self._heard_s = 0.0
        self.channels: set[bytes] = set()
        self._loop = change_feed.loop
        self._task = self._loop.create_task(self._work())

    def subscribe(self, channel: bytes) -> None:
        """Subscribe to a channel. `ChangeFeed.confirmed` is called when that is done."""
        self.channels.add(channel)
        self._queue(b"SSUBSCRIBE", channel)

    def unsubscribe(self, channel: bytes) -> None:
        self.channels.discard(channel)
        self._queue(b"SUNSUBSCRIBE", channel)

    def _queue(self, command: bytes, channel: bytes) -> None:
        if self._connection is not None:
            self._unsent.append((command, channel))
            self._send_soon()

    def _send_soon(self) -> None:
        if self._unsent and not self._sending and len(self._in_flight) <= IN_FLIGHT // 2:
            self._sending = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._sending = False
        commands = [self._unsent.popleft() for _ in range(min(len(self._unsent), IN_FLIGHT - len(self._in_flight)))]
        if self._connection is not None:
            self._in_flight += commands
            self._connection.send((command, channel) if channel else (command,) for command, channel in commands)

    async def _work(self) -> None:
        """Keep the channels subscribed, with a new connection after each lost one, until no channel is left."""
        while True:
            try:
                self._lost.clear()
                connection = await self._access.connect(self.address, self._on_reply, self._lost.set)
                self._connection = connection
                self._unsent.extend([(b"SSUBSCRIBE", channel) for channel in self.channels])
                self._send_soon()
                await self._stay()
            except (OSError, ErrorReply):
                pass
            except Exception:
                log.exception("cannot subscribe at %s:%d: trying again", *self.address)
            finally:
                self._disconnect()
            if not await self._change_feed.lost(self):
                return
            await asyncio.sleep(RESUBSCRIBE_S)

    async def _stay(self) -> None:
        """Wait until the connection is lost, has been silent for `SILENT_S`, or leads to a former primary.

        A primary that becomes a replica keeps the subscriptions, but misses messages while it is cut off.
        """
        self._heard_s, topology = self._loop.time(), self._change_feed.topology
        while self._loop.time() - self._heard_s < SILENT_S and any(
            node.address == self.address for node in topology.primaries
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_S):
                    await self._lost.wait()
                    return
            self._queue(b"PING", b"")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._in_flight.clear()
        self._unsent.clear()
        if connection is not None:
            connection.close()

    def _on_reply(self, reply: list[bytes] | ErrorReply) -> None:
        self._heard_s = self._loop.time()
        self._on_message(reply)
        self._send_soon()

    def _on_message(self, reply: list[bytes] | ErrorReply) -> None:
        if isinstance(reply, ErrorReply):
            self._on_error(reply)
            return
        kind = reply[0]
        if kind == b"smessage":
            self._change_feed.on_message(reply[1], reply[2])
            return
        if kind == b"pong" or not isinstance(reply, list):
            self._in_flight.popleft()
            return
        if kind == b"ssubscribe":
            self._in_flight.popleft()
            self._change_feed.confirmed(reply[1])
        elif self._in_flight and self._in_flight[0] == (b"SUNSUBSCRIBE", reply[1]):
            self._in_flight.popleft()
        else:  # its slot has moved
            self.channels.discard(reply[1])
            self._change_feed.moved(reply[1])

    def _on_error(self, error: ErrorReply) -> None:
        _, channel = self._in_flight.popleft()
        if error.kind == "MOVED":
            self._change_feed.topology.moved(*error.elsewhere(self.address))
        if channel:
            self.channels.discard(channel)
            self._change_feed.moved(channel)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))


class ChangeFeed:
    """The subscriptions of all used channels.

    `is_used` says whether a channel is used. `on_missed` is called if messages of a channel can have been missed.
    `on_message` gets channel and content. Without it, each message calls `on_missed`.
    """

    def __init__(
        self,
        client: RedisClient,
        is_used: Callable[[bytes], bool],
        on_missed: Callable[[bytes], object],
        on_message: Callable[[bytes, bytes], object] | None = None,
    ) -> None:
        self.client = client
        self.topology = client.topology
        # Channels that are not subscribed yet. Readers that must not miss a change wait for the future.
        self.pending: dict[bytes, asyncio.Future[None]] = {}
        self._is_used, self._on_missed = is_used, on_missed
        self.on_message = on_message or (lambda channel, message: on_missed(channel))
        self._slots: dict[bytes, int] = {}  # the hash slot of each wanted channel
        self._missed: set[bytes] = set()  # channels in `pending` that were subscribed before
        self._unwatched: dict[bytes, float] = {}  # by channel, since when
        self._subscribers: dict[Address, PubSubConnection] = {}
        self.loop = asyncio.get_running_loop()
        self._tidying: Repeating | None = None
        self._closed = False

    def keep_subscribed(self, channel: bytes, slot: int) -> None:
        """Subscribe to a channel, and keep it until it is unused for KEPT_S or dropped.

        It must be in use before the next `await`. While it is in `pending`, messages can be missed.
        """
        self._unwatched.pop(channel, None)
        if channel not in self._slots:
            self._slots[channel] = slot
            self.client.metrics.subscribed += 1
            self._subscribe(channel)
            if self._tidying is None:
                self._tidying = Repeating(self._tidy, KEPT_S / 2)

    def _subscribe(self, channel: bytes) -> None:
        if channel not in self.pending:
            self.pending[channel] = self.loop.create_future()
        node = self.topology.node(self._slots[channel])
        subscriber = self._subscribers.get(node.address)
        if subscriber is None:
            subscriber = self._subscribers[node.address] = PubSubConnection(node, self)
        subscriber.subscribe(channel)

    async def _tidy(self) -> None:
        now_s = self.loop.time()
        async for piece in present(self._slots.keys(), PIECE):
            for channel in piece:
                if self._is_used(channel):
                    self._unwatched.pop(channel, None)
                elif now_s - self._unwatched.setdefault(channel, now_s) >= KEPT_S:
                    self.drop(channel)

    def drop(self, channel: bytes) -> None:
        del self._slots[channel]
        self._unwatched.pop(channel, None)
        self.client.metrics.subscribed -= 1
        self._missed.discard(channel)
        self._release(channel)
        for subscriber in self._subscribers.values():  # a former primary can also have it
            if channel in subscriber.channels:
                subscriber.unsubscribe(channel)

    async def subscribed(self, channel: bytes) -> None:
        """Wait until a channel is subscribed. Raise Unavailable after the time limit of a connection."""
        pending = self.pending.get(channel)
        if pending is not None:
            try:
                async with asyncio.timeout(self.client.access.timeout_s):
                    await asyncio.shield(pending)
            except TimeoutError as error:
                raise Unavailable("Redis: no subscription") from error

    def _release(self, channel: bytes) -> None:
        future = self.pending.pop(channel, None)
        if future is not None and not future.done():
            future.set_result(None)

    # For the subscribers

    def confirmed(self, channel: bytes) -> None:
        """Wake the watches of a newly subscribed channel, because earlier messages can have been missed."""
        self._release(channel)
        if channel in self._missed:
            self._missed.discard(channel)
            self._on_missed(channel)

    def moved(self, channel: bytes) -> None:
        """Subscribe again to a channel that has moved to another node."""
        if channel in self._slots and not self._closed:
            self._miss(channel)
            self.topology.refresh_soon()
            self.loop.call_later(RESUBSCRIBE_S, self._resubscribe, channel)

    async def lost(self, subscriber: PubSubConnection) -> bool:
        """Handle a lost connection: other nodes can have its slots now. Return whether it is still needed."""
        self.topology.refresh_soon()
        async for piece in present(subscriber.channels, PIECE):
            for channel in piece:
                self._miss(channel)
                if self.topology.node(self._slots[channel]).address != subscriber.address:
                    subscriber.channels.discard(channel)
                    self._subscribe(channel)
        if not subscriber.channels:
            self._subscribers.pop(subscriber.address, None)
        return bool(subscriber.channels)

    def _miss(self, channel: bytes) -> None:
        self.pending.setdefault(channel, self.loop.create_future())
        self._missed.add(channel)

    def _resubscribe(self, channel: bytes) -> None:
        if channel in self._slots and not self._closed:
            self._subscribe(channel)

    async def close(self) -> None:
        self._closed = True
        if self._tidying is not None:
            await self._tidying.stop()
        for channel in list(self.pending):
            self._release(channel)
        for subscriber in self._subscribers.values():
            await subscriber.close()
