"""Server-Sent Events: the listing of a topic, and what the other peer sends, as they change (contract C3)."""

import itertools
import random
from typing import Any, cast

from .. import cursors, wire
from ..errors import InvalidParameter, SessionNotFound
from ..session import ListedSession, Reason, Side
from ..watches import Watch
from .signaling import parse_owner
from .waiting import WaitingHandler

HEARTBEAT_S = 15.0
EVENTS_STEP = 50  # events sent in one piece
RETRY_MS = 2000  # after which a client whose stream broke off comes back
RETURN_MS = (500, 5000)  # the same when the server stops: not all at one moment


class Stream(WaitingHandler):
    """A response that goes on until the client leaves, the server stops, or there is nothing more to tell."""

    def last_event(self, about: bytes, count: int) -> tuple[int, ...] | None:
        """The numbers that Last-Event-ID says, so many of them; None if the client begins.

        Raises:
            InvalidParameter: `Last-Event-ID` is no id of this stream.
        """
        cursor = self.request.headers.get("Last-Event-ID")
        return cursors.parse_cursor(about, cursor, "Last-Event-ID", count) if cursor else None

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

    async def pause(self, watch: Watch, expires_ms: int | None = None) -> bool:
        """Wait for a change, with a comment when it has been quiet for long, and a time to come back at the end.

        Returns:
            Whether to go on.
        """
        until_s = watch.now_s() + HEARTBEAT_S
        going_on = await watch.wait(self.next_look_s(until_s, expires_ms))
        if going_on and watch.now_s() >= until_s:
            await self.send(b":\n\n")
        if not going_on and not watch.closed:
            self.write(b"retry: %d\n\n" % random.randint(*RETURN_MS))
        return going_on


class TopicEvents(Stream):
    """GET /:topic/events: `session` and `gone`, first the current listing."""

    async def get(self, segment: str) -> None:
        """Tell who comes and who goes."""
        topic = wire.parse_topic(segment)
        about = self.about("topic", topic)
        last = self.last_event(about, 1)
        with self.watching(self.store.watch_topic(self.origin, topic)) as watch:
            await self.begin()
            if self.request.method == "HEAD":
                return
            if last is not None:
                since = last[0]
            else:
                since = self.store.last_serial()
                async for step in self.store.sessions_before(self.origin, topic, since, self.now_ms):
                    await self.send(b"".join(self.came(about, listed) for listed in step))
                # Whoever comes back from here has seen all of it, also what the listing no longer held.
                await self.send(b"id: %b\n\n" % cursors.format_cursor(about, since).encode())
            going_on = True
            while going_on:
                since = await self.catch_up(topic, about, since)
                going_on = await self.pause(watch)

    async def catch_up(self, topic: str, about: bytes, since: int) -> int:
        """Send what has happened since a serial; returns that of the last event."""
        events = iter(await self.store.topic_events(self.origin, topic, since, self.application.clock.now_ms()))
        while some := list(itertools.islice(events, EVENTS_STEP)):
            pieces = []
            for event in some:
                since = event.serial
                if event.reason is not None:
                    cursor = cursors.format_cursor(about, event.serial)
                    pieces.append(wire.event("gone", wire.gone(event.code, event.reason), cursor))
                elif listed := self.store.listed(self.origin, event.code):
                    pieces.append(self.came(about, listed))
            await self.send(b"".join(pieces))
        return since

    def came(self, about: bytes, listed: ListedSession) -> bytes:
        """The event of a session that is listed."""
        cursor = cursors.format_cursor(about, listed.session.serial)
        return wire.event("session", wire.listed_session(listed), cursor)


class SessionEvents(Stream):
    """GET /events: `offer`, `answer`, `candidate` and `gone` of one session, for one side."""

    async def get(self) -> None:
        """Tell what the other side sends, until the session ends."""
        fields: dict[str, Any] = {name: self.once(name) for name in ("code", "side", "secret")}
        session, side, secret_hash = parse_owner(fields)
        about = self.about(wire.format_code(session), side.value)
        serial, since = self.last_event(about, 2) or (None, 0)
        description = "answer" if side is Side.OFFERER else "offer"
        with self.watching(self.store.watch_session(self.origin, session)) as watch:
            begun = False
            expires_ms = 0
            going_on = True
            while going_on:
                now_ms = self.application.clock.now_ms()
                try:
                    news = await self.store.read(
                        self.origin, session, side, now_ms, since=since, secret_hash=secret_hash
                    )
                    if serial not in (None, news.serial):  # the same content, published anew
                        raise SessionNotFound if begun else InvalidParameter("Last-Event-ID")
                except SessionNotFound:
                    if not begun:
                        raise
                    reason = Reason.EXPIRED if now_ms >= expires_ms else Reason.WITHDRAWN
                    cursor = cursors.format_cursor(about, serial or 0, since)
                    await self.send(wire.event("gone", wire.gone(session, reason), cursor))
                    return
                serial = news.serial
                if not begun:
                    await self.begin()
                    begun = True
                    if self.request.method == "HEAD":
                        return
                expires_ms = news.expires_ms
                items = [(number, "candidate", text) for number, text in news.candidates]
                if news.description is not None and news.description_number > since:
                    items.append((news.description_number, description, news.description))
                for number, name, text in sorted(items):
                    self.write(wire.event(name, {name: text}, cursors.format_cursor(about, serial, number)))
                if items:
                    since = news.last
                    await self.flush()
                going_on = await self.pause(watch, expires_ms)
