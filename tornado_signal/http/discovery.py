"""Finding peers: version, health, topics and the sessions of a topic."""

import contextlib

from ..api import wire
from ..session import ListingState, Position
from . import openapi
from .base import Handler
from .pages import Page
from .waiting import WaitingHandler

PIECE_BYTES = 64 * 1024  # of a listing that is not sent in one piece


class Version(Handler):
    """GET / (specification 4)."""

    def get(self) -> None:
        """The commit that this server was built from."""
        self.reply({"version": self.application.version})


class Health(Handler):
    """GET /health (specification 4)."""

    def get(self) -> None:
        """That the server answers, and its time."""
        self.reply({"status": "ok", "timestamp": self.now_ms})


class Topics(Handler):
    """GET /topics (specification 4, contract B8 and B12)."""

    async def get(self) -> None:
        """A page of the topics that have unanswered sessions."""
        page = self.whole("page", 1)
        limit = min(self.whole("limit", wire.DEFAULT_LIMIT), wire.MAX_LIMIT)
        topics, total = await self.store.topics(self.origin, (page - 1) * limit, limit)
        self.reply(wire.topics_page(page, limit, topics, total))


class Sessions(WaitingHandler):
    """GET /:topic/sessions (specification 4, contract B11 and C2)."""

    async def get(self, segment: str) -> None:
        """The unanswered sessions, newest first; a long listing is sent in steps, as fast as the client reads it."""
        topic = wire.parse_topic(segment)
        wait_s = wire.parse_wait_text(self.once("wait"))
        since = self.once("since")
        limit = self.whole("limit", 0)
        end = b"]}"
        if wait_s is not None or since is not None:
            about = self.about(topic)
            before = None if since is None else self.parse_cursor(about, since, "since", self.store.parse_position)
            foreign = since is not None and before is None  # another store's: every listing differs from it
            state = await self.wait_for_change(topic, before, 0 if foreign else wait_s or 0)
            cursor = self.format_cursor(about, state.position)
            end = b'],"cursor":%b}' % wire.encode(cursor)
        written = b'{"sessions":['
        between = b""
        most = min(limit, wire.MAX_LIMIT) or None
        async with contextlib.aclosing(self.store.sessions(self.origin, topic, most)) as steps:
            async for step in steps:
                written += between + b",".join(wire.encode(wire.listed_session(listed)) for listed in step)
                between = b","
                del step  # as many clients as like may read slowly: nothing is kept here while they do
                if len(written) >= PIECE_BYTES:
                    if self.request.method == "HEAD":
                        break  # that it has no length is all that a client learns
                    self.write(written)
                    written = b""
                    await self.flush()
                    await self.application.queue.turn(self.client)
        if self.request.method == "HEAD" and len(written) >= PIECE_BYTES:
            await self.flush()
            self.finish()
        else:
            self.finish(written + end)

    async def wait_for_change(self, topic: str, before: Position | None, wait_s: float) -> ListingState:
        """Wait until a topic's listing is not what it was."""
        with self.watching(self.store.watch_topic(self.origin, topic)) as watch:
            until_s = watch.now_s() + wait_s
            while True:
                state = await self.store.listing_state(self.origin, topic, before)
                if state.changed or watch.now_s() >= until_s or watch.over:
                    return state
                await self.look_again(watch, until_s, state.changes_ms)


class IceServers(Handler):
    """GET /ice-servers (contract C7)."""

    def get(self) -> None:
        """The STUN and TURN servers, with a fresh password."""
        ice = self.application.ice
        self.set_header("Cache-Control", "no-store")
        self.reply(wire.ice_servers(ice.stun, ice.turn(self.now_ms), ice.expires_ms(self.now_ms)))


class OpenApi(Page):
    """GET /openapi.json (contract C8)."""

    def get(self) -> None:
        """The interface as OpenAPI."""
        files = {path: asset.media_type for path, asset in self.application.assets.items()}
        self.reply(openapi.make_document(self.application.configured.session_timeout_ms, files))
