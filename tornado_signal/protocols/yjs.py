"""The signaling of y-webrtc, and that of trystero's ws-relay, which differs in its field names.

Everything is published to all subscribers of a room, including the publisher.
"""

from collections.abc import Awaitable
from typing import Any, Final

from ..relay import Channel
from ..service.request_context import RequestContext
from .connection import MAX_NAME, ProtocolConnection, confirm, encode
from .endpoint import ProtocolUpgrade

PATH: Final = "/y-webrtc"


class YConnection(ProtocolConnection):
    """A client of y-webrtc or ws-relay.

    y-webrtc subscribes with `topics` and publishes `data`. ws-relay subscribes with `topic` and publishes `payload`.
    Their rooms are separate, because neither understands the messages of the other. A published message is opaque, so
    it needs a token for offers and for answers.
    """

    pattern, protocol = PATH, "y-webrtc"

    __slots__ = ()

    @property
    def names(self) -> list[str]:
        return [channel.name for channel in self._channels]

    def received(self, message: Any, context: RequestContext) -> Awaitable[object] | None:
        kind = message.get("type") if type(message) is dict else None
        if kind == "publish":
            self.authorize_signal(context)
            self._publish(message, context)
        elif kind == "ping":
            self.send({"type": "pong"})
        elif kind == "subscribe":
            return self._subscribe(self._rooms(message), context)
        elif kind == "unsubscribe":
            rooms = self._rooms(message)
            context.charge(len(rooms) - 1)
            for room in rooms:
                self.unsubscribe(room)
        else:
            self.refuse_other_protocol(message)
        return None

    def relayed(self, message: bytes) -> None:
        self.socket.post(message)

    def _rooms(self, message: dict[str, Any]) -> list[Channel]:
        """Return the rooms in a message. Everything that cannot be a room is ignored."""
        topics = message.get("topics")
        if type(topics) is list:
            names = dict.fromkeys(topic for topic in topics if type(topic) is str)
            return [self._room(name) for name in names if 0 < len(name) <= MAX_NAME]
        topic = message.get("topic")
        return [self._relay_room(topic)] if type(topic) is str and 0 < len(topic) <= MAX_NAME else []

    def _room(self, topic: str) -> Channel:
        return Channel(self.scope, _name(topic))

    def _relay_room(self, topic: str) -> Channel:
        return Channel(f"ws-relay {self.scope}", _name(topic))

    def _subscribe(self, rooms: list[Channel], context: RequestContext) -> Awaitable[object] | None:
        context.authorize("list")
        for room in rooms:
            context.require_topic(room.name)
        context.charge(len(rooms) - 1)
        pending = [opening for room in rooms if (opening := self.subscribe(room)) is not None]
        return confirm(pending) if pending else None

    def _publish(self, message: dict[str, Any], context: RequestContext) -> None:
        topic = message.get("topic")
        if type(topic) is not str or not topic:
            return
        context.require_topic(_name(topic))
        if "data" not in message and "payload" in message:
            relayed = encode({"topic": topic, "payload": message["payload"]})
            self.publish(self._relay_room(topic), relayed, context)
            return
        room = self._room(topic)
        # The receivers at this process alone would show a client which of its connections are at the same one.
        message["clients"] = 1 if self.relay.shared else self.relay.receivers(room)
        self.publish(room, encode(message), context)


def _name(topic: str) -> str:
    """Return the name of a room. Lone surrogates are escaped, because Redis and logs know only UTF-8."""
    return topic.encode(errors="backslashreplace").decode()


class YUpgrade(ProtocolUpgrade):
    """GET /y-webrtc. Everything that is not a handshake gets `okay`, as from the original server."""

    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

    @property
    def is_page(self) -> bool:  # type: ignore[override]
        return self.request.method != "GET" or "Upgrade" not in self.request.headers

    def write_page(self) -> None:
        self.set_header("Content-Type", "text/plain")
        self.write(b"okay")

    post = put = patch = delete = ProtocolUpgrade.get
