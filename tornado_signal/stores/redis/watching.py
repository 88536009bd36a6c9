"""Watches of sessions and topics: subscribed channels, and timers for what expires without a message."""

import asyncio
import functools

from ...redis.channels import ChangeFeed
from ...redis.client import RedisClient
from ...redis.slots import key_slot
from ..watches import Watch, Watches

EXPIRY_DELAY_S = 0.005  # delay after an expiry, because clocks are not read at the same instant


class Watching:
    """The watches by channel."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self.watches = Watches()
        self.change_feed = ChangeFeed(client, self.watches)
        self._expiring: dict[bytes, tuple[int, asyncio.TimerHandle]] = {}  # the next expiry, by channel

    def close(self) -> None:
        for _, timer in self._expiring.values():
            timer.cancel()
        self._expiring.clear()

    def watch(self, channel: bytes, slot: int) -> Watch:
        """Open a watch. Its `opened` waits until the channel is subscribed."""
        self.change_feed.want(channel, slot)
        watch = self.watches.watch(channel)
        if channel in self.change_feed.pending:
            watch.opening = functools.partial(self.change_feed.subscribed, channel)
        return watch

    def expects(self, channel: bytes, expires: bytes) -> None:
        """Wake the watches of a topic when a session in it expires, because an expiry publishes no message."""
        if not expires or not self.watches.watched(channel):
            return
        expires_ms = int(expires)
        scheduled = self._expiring.get(channel)
        if scheduled is not None:
            if scheduled[0] == expires_ms:
                return
            scheduled[1].cancel()
        wait_s = max(0, expires_ms - self._client.now_ms(key_slot(channel))) / 1000 + EXPIRY_DELAY_S
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, channel)
        self._expiring[channel] = expires_ms, timer

    def _expire(self, channel: bytes) -> None:
        del self._expiring[channel]
        self.watches.changed(channel)
