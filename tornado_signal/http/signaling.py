"""Connecting two peers: offer, answer, candidates, poll; staying and leaving."""

from typing import Any

from ..api import wire
from ..errors import InvalidParameter, OtherSession, SessionNotFound
from ..session import News, SessionPosition, Side
from .base import Handler
from .waiting import WaitingHandler

ENTRY_BYTES = 64  # what an entry of the store takes beside its text and the names that it stands under
OFFER_ENTRIES = 4


class Publisher(Handler):
    """A handler that stores what it is sent."""

    def count_bytes(self, entries: int, name_length: int = 0) -> None:
        """Count what the body takes in the store, in so many entries, each under the origin and another name.

        Raises:
            TooMany: the address has stored as much as it may.
        """
        size = len(self.request.body) + entries * (ENTRY_BYTES + len(self.origin) + name_length)
        self.application.limits.store(self.request.client_address, size, self.now_ms)


class Offer(Publisher):
    """POST /:topic/offer (specification 4, contract C5 and C6)."""

    async def post(self, segment: str) -> None:
        """Publish an offer under a topic."""
        topic = wire.parse_topic(segment)
        fields = self.body()
        settings = self.application.configured
        info = wire.parse_string(fields, "info", wire.MAX_INFO)
        offer = wire.parse_string(fields, "offer", settings.max_offer)
        ttl_ms = wire.parse_ttl(fields, settings.session_timeout_ms)
        secret_hash = wire.parse_secret(fields)
        self.application.limits.publish(self.request.client_address, self.now_ms)
        self.count_bytes(OFFER_ENTRIES, len(topic))
        code = await self.store.create(self.origin, topic, info, offer, ttl_ms=ttl_ms, secret_hash=secret_hash)
        self.reply({"code": wire.format_code(code)})


class Answer(Publisher):
    """POST /answer (specification 4, contract B4, B5, B9, C4 and C5)."""

    async def post(self) -> None:
        """Take an answer, or candidates of either side."""
        fields = self.body()
        code = wire.parse_string(fields, "code")
        given = wire.parse_given(fields)
        settings = self.application.configured
        if given == "answer":
            texts = [wire.parse_string(fields, "answer", settings.max_answer)]
        else:
            texts = wire.parse_candidates(fields, given, settings.max_candidate)
        side = wire.parse_side(fields)
        if given == "answer" and side is Side.OFFERER:
            raise InvalidParameter("side")
        secret_hash = wire.parse_secret(fields)
        session = found(code)
        self.count_bytes(len(texts))
        if given == "answer":
            await self.store.answer(self.origin, session, texts[0], secret_hash=secret_hash)
        else:
            await self.store.add_candidates(self.origin, session, side, texts, secret_hash=secret_hash)
        self.reply({"success": True})


class Poll(WaitingHandler):
    """POST /poll (specification 4, contract C1 and C5)."""

    async def post(self) -> None:
        """What the other side has sent; with `wait` or `since`, what is new of it."""
        fields = self.body()
        code = wire.parse_string(fields, "code")
        side = wire.parse_side(fields)
        wait_s = wire.parse_wait(fields.get("wait"))
        cursor = wire.parse_optional(fields, "since")
        if wait_s is None and cursor is None:
            secret_hash = wire.parse_secret(fields)
            news = await self.store.read(self.origin, found(code), side, secret_hash=secret_hash)
            self.reply(wire.news(side, news))
            return
        about = self.about(code.lower(), side.value)
        # A cursor of another store says nothing of what this one holds: then everything is news.
        since = self.parse_cursor(about, cursor, "since", self.store.parse_session_position) if cursor else None
        secret_hash = wire.parse_secret(fields)
        session = found(code)
        news = await self.wait_for_news(session, side, since, secret_hash, wait_s or 0)
        position = SessionPosition(news.serial, max(news.last, since.number if since else 0))
        self.reply(wire.news(side, news) | {"cursor": self.format_cursor(about, position)})

    async def wait_for_news(
        self, session: bytes, side: Side, since: SessionPosition | None, secret_hash: bytes, wait_s: float
    ) -> News:
        """Wait until there is anything newer than a position, or the session ends."""
        looked = False
        with self.watching(self.store.watch_session(self.origin, session)) as watch:
            until_s = watch.now_s() + wait_s
            while True:
                try:
                    news = await self.store.read(self.origin, session, side, since=since, secret_hash=secret_hash)
                except OtherSession:
                    raise (SessionNotFound() if looked else InvalidParameter("since")) from None
                since, looked = since or SessionPosition(news.serial, 0), True
                if news.last > since.number or watch.now_s() >= until_s or watch.over:
                    return news
                await self.look_again(watch, until_s, news.expires_ms)


class Withdraw(Handler):
    """POST /withdraw (contract C6)."""

    async def post(self) -> None:
        """End a session at once."""
        session, side, secret_hash = parse_owner(self.body())
        await self.store.withdraw(self.origin, session, side, secret_hash=secret_hash)
        self.reply({"success": True})


class Refresh(Handler):
    """POST /refresh (contract C6)."""

    async def post(self) -> None:
        """Let a session live on."""
        session, side, secret_hash = parse_owner(self.body())
        expires_ms = await self.store.refresh(self.origin, session, side, secret_hash=secret_hash)
        self.reply({"expiresAt": expires_ms})


def parse_owner(fields: dict[str, Any]) -> tuple[bytes, Side, bytes]:
    """Which session, as which side, and with which secret's hash."""
    code = wire.parse_string(fields, "code")
    side = wire.parse_side(fields)
    secret_hash = wire.parse_secret(fields)
    return found(code), side, secret_hash


def found(code: str) -> bytes:
    """The code as the store knows it; what is no UUID is no session's (contract B7)."""
    parsed = wire.parse_code(code)
    if parsed is None:
        raise SessionNotFound
    return parsed
