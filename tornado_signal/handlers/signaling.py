"""Connecting two peers: offer, answer, candidates, poll."""

from .. import wire
from ..errors import InvalidParameter, SessionNotFound
from ..session import Side
from .base import Handler


class Offer(Handler):
    """POST /:topic/offer (specification 4)."""

    async def post(self, segment: str) -> None:
        """Publish an offer under a topic."""
        topic = wire.parse_topic(segment)
        fields = self.body()
        info = wire.parse_string(fields, "info", wire.MAX_INFO)
        offer = wire.parse_string(fields, "offer")
        code = await self.store.create(self.origin, topic, info, offer, self.now_ms)
        self.reply({"code": wire.format_code(code)})


class Answer(Handler):
    """POST /answer (specification 4, contract B4, B5, B9)."""

    async def post(self) -> None:
        """Take an answer, or a candidate of either side."""
        fields = self.body()
        code = wire.parse_string(fields, "code")
        has_answer = fields.get("answer") is not None
        if has_answer == (fields.get("candidate") is not None):
            raise InvalidParameter("answer or candidate")
        text = wire.parse_string(fields, "answer" if has_answer else "candidate")
        side = wire.parse_side(fields)
        if has_answer and side is Side.OFFERER:
            raise InvalidParameter("side")
        session = found(code)
        if has_answer:
            await self.store.answer(self.origin, session, text, self.now_ms)
        else:
            await self.store.add_candidates(self.origin, session, side, [text], self.now_ms)
        self.reply({"success": True})


class Poll(Handler):
    """POST /poll (specification 4)."""

    async def post(self) -> None:
        """What the other side has sent."""
        fields = self.body()
        code = wire.parse_string(fields, "code")
        side = wire.parse_side(fields)
        news = await self.store.read(self.origin, found(code), side.other, self.now_ms)
        self.reply(wire.news(side, news))


def found(code: str) -> bytes:
    """The code as the store knows it; what is no UUID is no session's (contract B7)."""
    parsed = wire.parse_code(code)
    if parsed is None:
        raise SessionNotFound
    return parsed
