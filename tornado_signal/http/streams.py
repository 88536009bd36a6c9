"""Server-Sent Events: subscriptions over HTTP (docs/http-api.md#event-streams)."""

import random
from typing import Any, Final

from ..errors import InvalidParameter, Unavailable
from ..service.operations import Subscription, check
from ..service.schemas import EVENT_STREAM
from ..service.waiting import Feed
from .fields import decode_segment, query_fields, query_token
from .handlers import Handler

HEARTBEAT_S: Final = 15.0
RETRY_MS: Final = 2000  # a client whose stream broke off reconnects after this time
RETURN_MS: Final = (500, 5000)  # the same when the server stops: not all at one moment
LAST_EVENT_ID: Final = "Last-Event-ID"


class Stream(Handler):
    """A response that lasts until the client disconnects, the server stops, or the subscription ends."""

    def initialize(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.action = subscription.action

    def find_token(self) -> str:
        return super().find_token() or query_token(self.request.query_arguments)

    async def get(self, segment: str = "") -> None:
        """Send events as they occur, and a comment after a long pause."""
        request, headers = self.request, self.request.headers
        if "Upgrade" in headers:  # a client that requests a WebSocket would wait for its response forever
            raise InvalidParameter("Upgrade")
        parameters = self.subscription.parameters
        fields = query_fields(request.query_arguments, parameters) | {"topic": decode_segment(segment)}
        values = check(parameters, fields, request)
        cursor = headers.get(LAST_EVENT_ID)
        del headers
        feed = self.subscription.feed(request, **values, cursor=cursor, parameter=LAST_EVENT_ID, encode=encode)
        if feed.watch.over:  # on a kept connection, while the server ends its streams
            feed.watch.close()
            raise Unavailable("draining")
        with request.waiting(feed.watch, feed.topic) as watch:
            await feed.start()
            self.set_header("Content-Type", EVENT_STREAM)
            self.set_header("X-Accel-Buffering", "no")
            self.write(b":\nretry: %d\n\n" % RETRY_MS)
            await self.flush()
            if request.method == "HEAD":
                return
            request.record_stream_start()
            while await self._write_next(feed):
                await self.flush()
            if not (feed.finished or watch.closed):
                self.write(b"retry: %d\n\n" % random.randint(*RETURN_MS))

    head = get

    async def _write_next(self, feed: Feed) -> bool:
        """Write the next events or a heartbeat. Return whether the feed continues."""
        events = await feed.next(feed.watch.now_s() + HEARTBEAT_S)
        if events is None:
            return False
        self.write(events or b":\n\n")
        return True

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Cut an EventSource off while the server drains, because one that is refused does not connect again."""
        _, error, _ = kwargs.get("exc_info", (None, None, None))
        leaves = self.request.service.lifecycle.leaving and isinstance(error, Unavailable)
        if leaves and self.request.headers.get("Accept") == EVENT_STREAM:
            self.cut_off()
        else:
            super().send_error(status_code, **kwargs)


def encode(name: str, data: bytes, cursor: str) -> bytes:
    """Return an event in the stream format. Its JSON contains no line breaks."""
    if not name:
        return b"id: %b\n\n" % cursor.encode()
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), cursor.encode(), data)
