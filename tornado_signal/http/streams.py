"""Server-Sent Events: the subscriptions over HTTP (contract C3)."""

import random
from typing import Final

from ..api.operations import Subscription, check
from ..api.schemas import EVENT_STREAM
from ..api.topic_steps import Event
from ..errors import InvalidParameter
from .base import Handler
from .fields import query_fields, topic_of

HEARTBEAT_S: Final = 15.0
RETRY_MS: Final = 2000  # after which a client whose stream broke off comes back
RETURN_MS: Final = (500, 5000)  # the same when the server stops: not all at one moment
LAST_EVENT_ID: Final = "Last-Event-ID"


class Stream(Handler):
    """A response that goes on until the client leaves, the server stops, or there is nothing more to tell."""

    def initialize(self, subscription: Subscription) -> None:
        self.subscription = subscription

    async def get(self) -> None:
        """Send events as they happen, with a comment when there was none for long."""
        call = self.call
        if "Upgrade" in call.headers:  # a client that asks for a WebSocket would wait for the answer without end
            raise InvalidParameter("Upgrade")
        parameters = self.subscription.parameters
        fields = query_fields(call.query, parameters) | {"topic": topic_of(call.path.split("/")[1])}
        values = check(parameters, fields, call)
        cursor = call.headers.get(LAST_EVENT_ID)
        feed = self.subscription.feed(call, **values, cursor=cursor, parameter=LAST_EVENT_ID, encode=encode)
        with call.waiting(feed.watch) as watch:
            await feed.start()
            self.set_header("Content-Type", EVENT_STREAM)
            self.set_header("Cache-Control", "no-store")
            self.set_header("X-Accel-Buffering", "no")
            self.write(b":\nretry: %d\n\n" % RETRY_MS)
            await self.flush()
            if self.request.method == "HEAD":
                return
            until_s = watch.now_s() + HEARTBEAT_S
            while (events := await feed.next(until_s)) is not None:
                self.write(events or b":\n\n")
                del events  # many clients may read slowly: nothing is kept here while they do
                await self.flush()
                until_s = watch.now_s() + HEARTBEAT_S
            if not (feed.finished or watch.closed):
                self.write(b"retry: %d\n\n" % random.randint(*RETURN_MS))

    head = get


def encode(event: Event) -> bytes:
    """One event as it is sent; JSON has no line breaks of its own."""
    if not event.type:
        return b"id: %b\n\n" % event.cursor.encode()
    return b"event: %b\nid: %b\ndata: %b\n\n" % (event.type.encode(), event.cursor.encode(), event.data)
