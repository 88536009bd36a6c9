"""Server-Sent Events: the listing of a topic, and what the other peer sends, as they change (contract C3)."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..api import wire
from ..errors import InvalidParameter, OtherSession, SessionNotFound
from ..session import News, Position, Reason, SessionPosition, Side, TopicStep
from ..stores.watches import Watch
from .signaling import parse_owner
from .topic_steps import NEVER_MS, SentStep
from .waiting import WaitingHandler

T = TypeVar("T")

HEARTBEAT_S = 15.0
RETRY_MS = 2000  # after which a client whose stream broke off comes back
RETURN_MS = (500, 5000)  # the same when the server stops: not all at one moment


class Stream(WaitingHandler):
    """A response that goes on until the client leaves, the server stops, or there is nothing more to tell."""

    _sent_s = 0.0  # when something was sent last, by the loop's clock

    def prepare(self) -> None:
        """Refuse an upgrade: who asks for a WebSocket would wait for an answer to that without end."""
        super().prepare()
        if "Upgrade" in self.request.headers:
            raise InvalidParameter("Upgrade")

    def last_event(self, about: bytes, parse: Callable[[str], T | None]) -> T | None:
        """The position that Last-Event-ID says; None if the client begins.

        Raises:
            InvalidParameter: `Last-Event-ID` is no id of this stream.
        """
        cursor = self.request.headers.get("Last-Event-ID")
        return self.parse_cursor(about, cursor, "Last-Event-ID", parse) if cursor else None

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """An EventSource that is refused never comes back, one that is cut off does: at a stop the latter is right."""
        if self.application.draining and self.request.headers.get("Accept") == "text/event-stream":
            self._finished = True
            cast(Any, self.request.connection).close()
        else:
            super().write_error(status_code, **kwargs)

    async def begin(self) -> None:
        """Send the headers, so that the client knows that it is connected."""
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Accel-Buffering", "no")
        await self.send(b":\nretry: %d\n\n" % RETRY_MS)

    async def send(self, events: bytes) -> None:
        """Send events, and wait until the client has room for more."""
        self.write(events)
        await self.flush()
        self._sent_s = self.application.loop.time()

    async def pause(self, watch: Watch, expires_ms: int | None = None) -> bool:
        """Wait for a change, with a comment when nothing was sent for long, and a time to come back at the end.

        Returns:
            Whether to go on.
        """
        until_s = self._sent_s + HEARTBEAT_S
        going_on = await watch.wait(self.next_look_s(watch, until_s, expires_ms))
        if going_on and watch.now_s() >= until_s:
            await self.send(b":\n\n")
        if going_on:
            await self.application.queue.turn(self.client)
        elif not watch.closed:
            self.write(b"retry: %d\n\n" % random.randint(*RETURN_MS))
        return going_on


class TopicEvents(Stream):
    """GET /:topic/events: `session` and `gone`, first the current listing."""

    async def get(self, segment: str) -> None:
        """Tell what comes and what goes."""
        topic = wire.parse_topic(segment)
        about = self.about("topic", topic)
        since = self.last_event(about, self.store.parse_position)
        with self.watching(self.store.watch_topic(self.origin, topic)) as watch:
            await self.begin()
            if self.request.method == "HEAD":
                return
            position, known = await self.store.begin_topic(since)
            if not known:
                more = True
                while more:
                    position, more = await self.advance(topic, about, position)
                # A client that comes back from here has seen all of it, also what the listing no longer held.
                await self.send(b"id: %b\n\n" % self.format_cursor(about, position).encode())
            going_on = True
            while going_on:
                more = True
                while more:
                    position, more = await self.advance(topic, about, position)
                going_on = await self.pause(watch)

    async def advance(self, topic: str, about: bytes, position: Position) -> tuple[Position, bool]:
        """Send what has happened since a position, a step of it.

        Returns:
            The position after it, and whether there is more.
        """
        (events, position, _), more = await self.next_step(topic, about, position)
        if events:
            self.write(events)
            del events  # many clients may read slowly: nothing is kept here while they do
            await self.send(b"")
            if more:
                await self.application.queue.turn(self.client)
        return position, more

    async def next_step(self, topic: str, about: bytes, position: Position) -> tuple[SentStep, bool]:
        """What has happened since a position, as it is sent, and whether there is more."""
        steps = self.application.topic_steps
        key = (self.origin, topic, position)
        while making := steps.making.get(key):  # else all that wait would make the same step
            await making.wait()
        sent = steps.get(key)
        if sent is not None and self.store.now_ms() < sent.until_ms:
            return sent, True  # more may have happened since it was made for another stream
        made = steps.making[key] = asyncio.Event()
        try:
            step = await self.store.topic_step(self.origin, topic, position)
            until_ms = min((arrival.listed.session.expires_ms for arrival in step.arrivals), default=NEVER_MS)
            sent = SentStep(self.encode(about, step), step.position, until_ms)
            if sent.events:  # else the next look may find some
                steps.keep(key, sent)
        finally:
            del steps.making[key]
            made.set()
        return sent, step.more

    def encode(self, about: bytes, step: TopicStep) -> bytes:
        """The events of a step, each with the position after it as its id."""
        pieces = []
        for position, code, reason in step.departures:
            pieces.append(wire.event("gone", wire.gone(code, reason), self.format_cursor(about, position)))
        for position, listed in step.arrivals:
            pieces.append(wire.event("session", wire.listed_session(listed), self.format_cursor(about, position)))
        return b"".join(pieces)


class SessionEvents(Stream):
    """GET /events: `offer`, `answer`, `candidate` and `gone` of one session, for one side."""

    async def get(self) -> None:
        """Tell what the other side sends, until the session ends."""
        fields: dict[str, Any] = {name: self.once(name) for name in ("code", "side", "secret")}
        session, side, secret_hash = parse_owner(fields)
        about = self.about(wire.format_code(session), side.value)
        since = self.last_event(about, self.store.parse_session_position)
        with self.watching(self.store.watch_session(self.origin, session)) as watch:
            begun = False
            expires_ms = 0
            going_on = True
            while going_on:
                now_ms = self.store.now_ms()
                try:
                    news = await self.store.read(self.origin, session, side, since=since, secret_hash=secret_hash)
                except (OtherSession, SessionNotFound) as error:
                    if since is None or not begun:
                        raise (InvalidParameter("Last-Event-ID") if type(error) is OtherSession else error) from None
                    reason = Reason.EXPIRED if now_ms >= expires_ms else Reason.WITHDRAWN
                    cursor = self.format_cursor(about, since)
                    await self.send(wire.event("gone", wire.gone(session, reason), cursor))
                    return
                since = since or SessionPosition(news.serial, 0)
                if not begun:
                    await self.begin()
                    begun = True
                    if self.request.method == "HEAD":
                        return
                expires_ms = news.expires_ms
                if self.write_news(about, side, news, since.number):
                    since = SessionPosition(news.serial, news.last)
                    del news
                    await self.send(b"")
                going_on = await self.pause(watch, expires_ms)

    def write_news(self, about: bytes, side: Side, news: News, since: int) -> bool:
        """Write what is newer than a number, in the order in which it was sent; returns whether there is anything."""
        items = [(number, "candidate", text) for number, text in news.candidates]
        if news.description is not None and news.description_number > since:
            name = "answer" if side is Side.OFFERER else "offer"
            items.append((news.description_number, name, news.description))
        for number, name, text in sorted(items):
            self.write(wire.event(name, {name: text}, self.format_cursor(about, SessionPosition(news.serial, number))))
        return bool(items)
