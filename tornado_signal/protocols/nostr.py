"""The part of Nostr that signaling uses: ephemeral events for the subscribers of their tags (NIP-01, NIP-11).

Nothing is stored, and events of other kinds are refused.
"""

import hashlib
import json
import re
from collections.abc import Awaitable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from .. import errors
from ..http.request import Request
from ..relay import Channel
from ..relay.opening import Relay
from ..service.request_context import RequestContext, units_of
from ..transport.websocket import WebSocket
from .connection import MAX_CHANNELS, MAX_NAME, ProtocolConnection, confirm, encode, is_name, parse
from .endpoint import ProtocolUpgrade

try:
    from btclib_secp256k1 import ssa
except ImportError:
    CHECKS_SIGNATURES = False
else:
    CHECKS_SIGNATURES = True

PATH: Final = "/nostr"
DOCUMENT_TYPE: Final = "application/nostr+json"
KINDS: Final = range(20_000, 30_000)  # of ephemeral events
KIND_LENGTH: Final = 5  # digits
MAX_SUBSCRIPTION_ID: Final = 64  # code points
MAX_FILTERS: Final = 100  # of a subscription
MAX_KINDS: Final = 50  # of a filter
MAX_TAGS: Final = 100  # of an event
MAX_TOPICS: Final = 20  # of an event
MAX_ECHOED: Final = 64  # characters of an unknown condition in the response
MAX_TIME: Final = 2**53
CLOCK_ERROR_S: Final = 600  # of clients, for `since` and `until`
_SIGNATURES: Final = f"Signatures are {'' if CHECKS_SIGNATURES else 'not '}checked."
OTHER_KIND: Final = f"only the ephemeral kinds {KINDS.start} to {KINDS.stop - 1} are relayed"

_HEX_32: Final = re.compile("[0-9a-f]{64}")
_HEX_64: Final = re.compile("[0-9a-f]{128}")
_LETTER: Final = re.compile("[a-zA-Z]")
Topic = tuple[str, str]
"""The letter of a tag, and its first value."""


class Refused(Exception):
    """A message is refused. The text begins with a prefix of NIP-01, such as `invalid: `."""


class Filter(NamedTuple):
    """The events that a filter matches: those with a topic of each condition."""

    topics: frozenset[Topic]  # of the condition with the fewest. They are subscribed to
    others: Collection[frozenset[Topic]]  # the other conditions
    kinds: Collection[int]  # empty for all
    since: float  # seconds since 1970, as `created_at` of events, with the error of clocks
    until: float

    def matches(self, kind: int, created_at: int, topics: Collection[Topic]) -> bool:
        if (self.kinds and kind not in self.kinds) or self.topics.isdisjoint(topics):
            return False
        if self.others and any(each.isdisjoint(topics) for each in self.others):
            return False
        return self.since <= created_at <= self.until


class Subscription:
    """A subscription of a connection, which receives the events of its topics."""

    __slots__ = ("_filters", "_id", "_socket", "cost", "topics")

    def __init__(self, socket: WebSocket, id_: bytes, filters: Sequence[Filter]) -> None:
        self._socket = socket
        self._id = id_  # as JSON
        self._filters = filters
        self.topics = dict.fromkeys(topic for each in filters for topic in each.topics)
        # The number of channels that it counts as.
        self.cost = len(self.topics) + sum(len(other) for each in filters for other in each.others)

    def relayed(self, message: bytes) -> None:
        content = message[KIND_LENGTH:].lstrip()
        kind, created_at, topics = _read(content)
        # Every topic of the event brings it, each after as many spaces as there are topics before it. Only the first
        # one that is subscribed to delivers it.
        before = len(message) - KIND_LENGTH - len(content)
        if before and not self.topics.keys().isdisjoint(topics[:before]):
            return
        for each in self._filters:
            if each.matches(kind, created_at, topics):
                self._socket.post(b'["EVENT",%b,%b]' % (self._id, content))
                return


class NostrConnection(ProtocolConnection):
    """A client of Nostr.

    Each value in a filter counts as a channel. Each further topic of an event counts as a request. An event is
    opaque, so it needs a token for offers and for answers.
    """

    pattern, protocol = PATH, "nostr"

    __slots__ = ("_subscriptions",)

    def __init__(self, relay: Relay, handshake: Request, socket: WebSocket) -> None:
        super().__init__(relay, handshake, socket)
        self._subscriptions: dict[bytes, Subscription] = {}  # by the id as JSON

    @property
    def names(self) -> list[str]:
        return list({name: None for each in self._subscriptions.values() for _, name in each.topics})

    def channel_of(self, topic: Topic) -> Channel:
        """Return the channel of a topic. Those of `x` have no letter in their scope, as in earlier versions."""
        letter, name = topic
        return Channel(self.scope if letter == "x" else self.find_scope(letter), name)

    def received(self, message: Any, context: RequestContext) -> Awaitable[None] | None:
        kind, *values = message if type(message) is list and message else [None]
        refused: list[Any] = ["NOTICE"]  # begins the response to a message that is refused
        try:
            if kind in ("EVENT", "AUTH"):
                refused = ["OK", _parse_event_id(values), False]
                if kind == "AUTH":
                    raise Refused("unsupported: no event needs authentication")
                self._receive_event(values[0], context)
            elif kind in ("REQ", "CLOSE", "COUNT"):
                refused = ["CLOSED", _parse_id(values)]
                if kind == "COUNT":
                    raise Refused("unsupported: nothing is stored, so nothing is counted")
                if kind == "REQ":
                    return self._receive_request(refused[1], values[1:], context)
                self._subscribe(encode(refused[1]), [], context)
            elif not self.refuse_other_protocol(message):
                raise Refused(f"invalid: not {'JSON' if message is None else 'an EVENT, REQ or CLOSE'}")
        except Refused as refusal:
            self.send([*refused, str(refusal)])
        return None

    def disconnected(self) -> None:
        for subscription in self._subscriptions.values():
            self._unsubscribe(subscription)
        self.release(self._acquired)
        super().disconnected()

    # Subscriptions

    def _receive_request(self, name: str, values: list[Any], context: RequestContext) -> Awaitable[None] | None:
        filters: list[Filter] = []
        try:
            if not 0 < len(values) <= MAX_FILTERS:
                raise Refused(f"invalid: a subscription has 1 to {MAX_FILTERS} filters")
            parsed = [_parse_filter(value) for value in values]
            _authorize(context, ("list",), (topic for each in parsed for topic in each.topics.union(*each.others)))
            filters = parsed
        finally:
            pending = self._subscribe(encode(name), filters, context)
        if pending:
            return self._confirm(pending, name)
        self.send(["EOSE", name])
        return None

    async def _confirm(self, pending: list[Awaitable[None]], subscription_id: str) -> None:
        if not await confirm(pending):
            self.send(["NOTICE", "error: the server is temporarily unavailable; the subscription begins later"])
        self.send(["EOSE", subscription_id])

    def _subscribe(self, name: bytes, filters: list[Filter], context: RequestContext) -> list[Awaitable[None]]:
        """Replace a subscription by one with these filters, or end it without any. Topics of both miss no event.

        The awaitables complete when the subscription is effective. TooMany closes the connection: nothing is restored.
        """
        earlier = self._subscriptions.get(name, Subscription(self.socket, name, ()))
        subscription = Subscription(self.socket, name, filters)
        context.charge(subscription.cost + earlier.cost - 1)  # the message itself has been counted
        self.release(earlier.cost)
        self.acquire(subscription.cost)
        subscribed = [self.relay.subscribe(self.channel_of(topic), subscription) for topic in subscription.topics]
        self._unsubscribe(earlier)
        self._subscriptions[name] = subscription
        if not filters:
            del self._subscriptions[name]
        return [opening for opening in subscribed if opening is not None]

    def _unsubscribe(self, subscription: Subscription) -> None:
        for topic in subscription.topics:
            self.relay.unsubscribe(self.channel_of(topic), subscription)

    # Events

    def _receive_event(self, event: Any, context: RequestContext) -> None:
        topics = _check_event(event)
        _authorize(context, ("offer", "answer"), topics)
        names = ("id", "pubkey", "created_at", "kind", "tags", "content", "sig")
        content = encode({name: event[name] for name in names})
        context.charge((len(topics) - 1) * units_of(len(content)))
        for number, topic in enumerate(topics):
            self.publish(self.channel_of(topic), b"%d%b%b" % (event["kind"], b" " * number, content), context)
        # In one write with the event if the publisher also subscribes to it.
        self.socket.post(encode(["OK", event["id"], True, ""]))


class NostrUpgrade(ProtocolUpgrade):
    """GET /nostr: the handshake, or the document of NIP-11 for clients that accept it."""

    @property
    def is_page(self) -> bool:  # type: ignore[override]
        headers = self.request.headers
        return "Upgrade" not in headers and DOCUMENT_TYPE in headers.get("Accept", "").lower()

    @property
    def needs_token(self) -> bool:  # type: ignore[override]
        return not self.is_page

    def write_page(self) -> None:
        self.set_header("Content-Type", DOCUMENT_TYPE)
        self.write(
            encode(
                {
                    "name": "tornado-signal",
                    "description": f"{OTHER_KIND.capitalize()}. {_SIGNATURES} Nothing is stored.",
                    "supported_nips": [1, 11],
                    "limitation": {
                        "max_message_length": self.request.service.settings.max_body_bytes,
                        "max_subscriptions": MAX_CHANNELS,
                        "max_subid_length": MAX_SUBSCRIPTION_ID,
                        "max_event_tags": MAX_TAGS,
                        "auth_required": False,
                        "payment_required": False,
                        "restricted_writes": True,  # see the description; keys of tokens restrict more
                    },
                    "retention": [{"kinds": [[KINDS.start, KINDS.stop - 1]], "time": 0}],
                }
            )
        )


def _authorize(context: RequestContext, actions: Iterable[str], topics: Iterable[Topic]) -> None:
    """Check that the token allows these actions and topics. Raise Refused if it does not."""
    try:
        for action in actions:
            context.authorize(action)
        for _, name in topics:
            context.require_topic(name)
    except (errors.Unauthorized, errors.NotAllowed) as error:
        raise Refused(f"restricted: {error}") from error


def _is_hex(value: object, digits: re.Pattern[str]) -> bool:
    return type(value) is str and digits.fullmatch(value) is not None


def _parse_id(values: list[Any]) -> str:
    value = values[0] if values else None
    if type(value) is not str or not 0 < len(value) <= MAX_SUBSCRIPTION_ID:
        raise Refused(f"invalid: the id of a subscription has 1 to {MAX_SUBSCRIPTION_ID} characters")
    return value


def _parse_event_id(values: list[Any]) -> str:
    event = values[0] if len(values) == 1 else None
    if type(event) is not dict or not _is_hex(value := event.get("id"), _HEX_32):
        raise Refused("invalid: an event has an id of 64 hexadecimal digits")
    return str(value)


def _parse_filter(value: object) -> Filter:
    """Return a filter of a subscription. Raise Refused for conditions that are not supported."""
    if type(value) is not dict:
        raise Refused("invalid: a filter is an object")
    conditions = {name: values for name, values in value.items() if name[:1] == "#" and _LETTER.fullmatch(name[1:])}
    if other := value.keys() - conditions.keys() - {"kinds", "since", "until", "limit"}:
        raise Refused(f"unsupported: the condition {min(other)[:MAX_ECHOED]}; use kinds and single-letter tags")
    if not conditions:
        raise Refused("unsupported: a filter without a single-letter tag")
    for name, values in conditions.items():
        if type(values) is not list or not values or not all(map(is_name, values)):
            raise Refused(f"invalid: {name} has values of 1 to {MAX_NAME} characters")
    kinds, since, until = value.get("kinds"), value.get("since", 0), value.get("until", MAX_TIME)
    if kinds is not None:
        if type(kinds) is not list or not 0 < len(kinds) <= MAX_KINDS:
            raise Refused(f"invalid: a filter has 1 to {MAX_KINDS} kinds")
        if not all(type(kind) is int and kind in KINDS for kind in kinds):
            raise Refused(f"unsupported: {OTHER_KIND}")
    if type(since) not in (int, float) or type(until) not in (int, float):
        raise Refused("invalid: since and until are numbers")
    topics, *others = sorted((frozenset((name[1:], each) for each in conditions[name]) for name in conditions), key=len)
    return Filter(topics, others, kinds or (), since - CLOCK_ERROR_S, until + CLOCK_ERROR_S)


def _check_event(event: dict[str, Any]) -> Sequence[Topic]:
    """Return the topics of an event. Raise Refused if it is invalid, or not relayed."""
    kind, created_at, tags, content = (event.get(name) for name in ("kind", "created_at", "tags", "content"))
    if type(kind) is int and kind not in KINDS:
        raise Refused(f"blocked: {OTHER_KIND}")
    if type(kind) is not int or type(created_at) is not int or not 0 <= created_at <= MAX_TIME:
        raise Refused("invalid: kind and created_at are whole numbers")
    if type(content) is not str:
        raise Refused("invalid: content is a string")
    if type(tags) is not list or len(tags) > MAX_TAGS or not all(map(_is_tag, tags)):
        raise Refused(f"invalid: an event has at most {MAX_TAGS} tags, which are arrays of strings")
    topics = _find_topics(tags)
    if not 0 < len(topics) <= MAX_TOPICS:
        raise Refused(f"blocked: an event has 1 to {MAX_TOPICS} single-letter tags, of 1 to {MAX_NAME} characters")
    if not _is_hex(event.get("pubkey"), _HEX_32) or not _is_hex(event.get("sig"), _HEX_64):
        raise Refused("invalid: pubkey has 64 and sig 128 hexadecimal digits")
    digest = hashlib.sha256(_serialize([0, event["pubkey"], created_at, kind, tags, content])).digest()
    if digest.hex() != event["id"]:
        raise Refused("invalid: the id is not the hash of the event")
    if CHECKS_SIGNATURES and not _is_signed(digest, event):
        raise Refused("invalid: the signature is wrong")
    return topics


def _find_topics(tags: list[list[str]]) -> Sequence[Topic]:
    """Return the topics in the tags of an event, each once, without those that no filter can have."""
    pairs = (tag[:2] for tag in tags if len(tag) > 1 and _LETTER.fullmatch(tag[0]) and is_name(tag[1]))
    return tuple(dict.fromkeys((letter, name) for letter, name in pairs))


@lru_cache(1)
def _read(content: bytes) -> tuple[int, int, Sequence[Topic]]:
    """Return the kind, the time and the topics of a relayed event. Each of its receivers asks for them."""
    event = parse(content)
    return event["kind"], event["created_at"], _find_topics(event["tags"])


def _is_tag(tag: object) -> bool:
    return type(tag) is list and bool(tag) and all(type(value) is str for value in tag)


def _serialize(fields: list[Any]) -> bytes:
    """Return the JSON that is hashed, as JavaScript writes it: it escapes lone surrogates only."""
    try:
        return orjson.dumps(fields)
    except TypeError:
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _is_signed(digest: bytes, event: dict[str, Any]) -> bool:
    try:
        return ssa.verify(digest, bytes.fromhex(event["pubkey"]), bytes.fromhex(event["sig"]))
    except ValueError:  # the key is not a point of the curve
        return False
