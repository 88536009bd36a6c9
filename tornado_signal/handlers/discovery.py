"""Finding peers: version, health, topics and the sessions of a topic."""

from .. import wire
from .base import Handler


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
        topics, total = await self.store.topics(self.origin, (page - 1) * limit, limit, self.now_ms)
        self.reply(wire.topics_page(page, limit, topics, total))


class Sessions(Handler):
    """GET /:topic/sessions (specification 4, contract B11)."""

    async def get(self, segment: str) -> None:
        """The unanswered sessions, newest first; a long listing is sent in steps, as fast as the client reads it."""
        topic = wire.parse_topic(segment)
        written = b'{"sessions":['
        first = True
        async for step in self.store.sessions(self.origin, topic, self.now_ms):
            if not first:
                self.write(written + b",")
                await self.flush()
                written = b""
            written += b",".join(wire.encode(wire.listed_session(listed)) for listed in step)
            first = False
        self.finish(written + b"]}")
