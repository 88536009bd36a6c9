"""The operations of the service: name, parameters in the order of their checks, result and implementation.

Routes, methods and documents are derived from these declarations.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from ..auth import ANY
from ..errors import InvalidParameter, PathNotFound, Unavailable
from ..session import OFFERER, SIDE_BODIES, SessionPosition, Side, utf8_length
from ..settings.settings import Settings
from . import wire
from .covered_topics import covered_topics
from .cursors import cursor_scope, format_cursor, parse_cursor, parse_session_cursor
from .nearby import nearby_topic
from .parameters import (
    CODE,
    HOLD,
    PREFIX,
    SECRET,
    TOPIC,
    WAIT,
    Fields,
    Parameter,
    candidates,
    check_optional_string,
    check_side,
    choice,
    integer,
    one_of,
    string,
)
from .reports import KINDS, MAX_MS, OUTCOMES, TRANSPORTS
from .request_context import RequestContext
from .schemas import (
    DEFAULT_LIMIT,
    FILLED,
    MAX_INFO,
    MAX_LIMIT,
    MAX_TOPIC,
    MIN_TTL_MS,
    NOTHING,
    SINCE,
    Schema,
    positive,
    ref,
)
from .waiting import Feed, SessionFeed, TopicFeed, wait_for_change, wait_for_update

ENTRY_BYTES: Final = 64  # that an entry of the store takes in addition to its text, origin and topic
OFFER_ENTRIES: Final = 4
REFRESH_ENTRIES: Final = 2
LISTING_PIECE_BYTES: Final = 64 * 1024  # of a listing that is not sent in one piece


Pieces = AsyncGenerator[tuple[bytes, bool], None]
"""A result that is too long to be made at once: pieces of JSON, and whether it is complete with each."""


@dataclass(frozen=True)
class Declaration:
    """The common parts of operations and subscriptions."""

    name: str
    path: str  # the path over HTTP. `{topic}` stands for a segment
    tag: str  # the section in the documents
    summary: str  # a sentence that describes it

    @cached_property
    def pattern(self) -> str:
        """Its path, as logs and metrics name it."""
        return self.path.replace("{topic}", ":topic")


@dataclass(frozen=True)
class Operation(Declaration):
    """One operation."""

    method: str
    result: Schema  # the schema of the result
    # Called with the context and the parameter values by name. It returns JSON, or an awaitable of it. With the
    # parameter `code` it is called with the 16 bytes of the code as `session`, which the token covers.
    work: Callable[..., bytes | Awaitable[bytes | Pieces]]
    parameters: tuple[Parameter, ...] = ()  # the parameters in the order of their checks
    refusals: tuple[int, ...] = ()  # HTTP statuses of its errors, in addition to those of every operation
    body: str = ""  # the name of the body's schema in the documents
    writes: bool = False  # whether it changes the session of its parameter `code`
    ends_hold: bool = False  # whether it ends the hold of the session
    action: str = ""  # the action that a token must allow, or empty for what everybody may do

    def perform(self, context: RequestContext, values: dict[str, Any]) -> bytes | Awaitable[bytes | Pieces]:
        """Perform the operation with parameter values by name. Return JSON, or an awaitable of it."""
        if "code" in values:
            values["session"] = wire.parse_code(values.pop("code"))
            if (checking := context.require_session(values["session"])) is not None:
                return self._perform_after(checking, context, values)
        return self.work(context, **values)

    async def _perform_after(
        self, checking: Awaitable[None], context: RequestContext, values: dict[str, Any]
    ) -> bytes | Pieces:
        await checking
        result = self.work(context, **values)
        return result if isinstance(result, bytes) else await result

    @cached_property
    def in_path(self) -> tuple[Parameter, ...]:
        """The parameters that HTTP has in the path."""
        return tuple(parameter for parameter in self.parameters if parameter.place == "path")

    @cached_property
    def fields(self) -> tuple[Parameter, ...]:
        """The parameters that HTTP has in the query or in the body."""
        return tuple(parameter for parameter in self.parameters if parameter.place == "fields")

    @cached_property
    def holdable(self) -> bool:
        """Whether what it publishes can be held over a WebSocket."""
        return HOLD in self.parameters


@dataclass(frozen=True)
class Subscription(Declaration):
    """A subscription to events. Fields with the names of those of `Operation` have the same meaning."""

    # Called with the context, the parameter values by name, the `cursor` of the last event that the client has received
    # (or None), the name of that `parameter` for errors, and the function that encodes an event.
    feed: Callable[..., Feed]
    parameters: tuple[Parameter, ...]
    action: str
    refusals: tuple[int, ...] = ()


def check(declared: tuple[Parameter, ...], fields: Fields, context: RequestContext) -> dict[str, Any]:
    """Check parameters and return their values by name. Raise InvalidParameter for the first wrong one."""
    return {parameter.name: parameter.check(fields, context) for parameter in declared}


# The service


def version(context: RequestContext) -> bytes:
    return wire.encode({"version": context.service.version})


def health(context: RequestContext) -> bytes:
    """GET /health. Raise Unavailable if the server is about to stop."""
    if context.service.lifecycle.leaving:
        raise Unavailable("draining")
    return wire.encode({"status": "ok", "timestamp": context.now_ms})


def ice_servers(context: RequestContext) -> bytes:
    service = context.service
    ice, provided = service.ice, service.provided
    wall_ms = int(service.clock.wall_s() * 1000)  # the time of the TURN servers
    expires_ms = ice.expires_ms(wall_ms)
    if others := provided.current(wall_ms):
        expires_ms = min(expires_ms, provided.expires_ms)
    reports = service.settings.connection_reports
    return wire.encode(wire.ice_servers([*ice.servers(wall_ms), *others], expires_ms, reports))


def report(
    context: RequestContext, outcome: str, local: str | None, remote: str | None, transport: str | None, ms: int
) -> bytes:
    """POST /report. Raise PathNotFound if reports are not wanted."""
    service = context.service
    if not service.settings.connection_reports:
        raise PathNotFound
    address = context.client.name if context.client.limited else None
    service.reports.add(address, outcome, local or "", remote or "", transport or "", ms, context.now_ms)
    return NO_RESULT


# Discovery


async def nearby(context: RequestContext) -> bytes:
    return wire.encode({"topic": await nearby_topic(context)})


async def topics(context: RequestContext, page: int, limit: int, prefix: str) -> bytes:
    limit = min(limit, MAX_LIMIT)
    found, total = await covered_topics(context, (page - 1) * limit, limit, prefix)
    return wire.encode(wire.topics_page(page, limit, found, total))


async def sessions(context: RequestContext, topic: str, wait: float | None, since: str | None, limit: int) -> Pieces:
    context.require_topic(topic)
    store = context.service.store
    end = b"]}"
    if wait is not None or since is not None:
        scope = cursor_scope(context.origin, topic)
        position = None if since is None else parse_cursor(store, scope, since, "since")
        # A cursor of another store says nothing of what this one holds: every listing differs from it.
        foreign = since is not None and position is None
        state = await wait_for_change(context, topic, position, at_once=foreign, wait_s=wait or 0)
        end = b'],"cursor":%b}' % wire.encode(format_cursor(store, scope, state.position))
    return _listing(context, topic, min(limit, MAX_LIMIT) or None, end)


async def _listing(context: RequestContext, topic: str, most: int | None, end: bytes) -> Pieces:
    """Yield the unanswered sessions, newest first, and keep nothing of a step while the client reads."""
    written = b'{"sessions":['
    between = b""
    async with aclosing(context.service.store.sessions(context.origin, topic, most)) as steps:
        async for step in steps:
            written += between + b",".join(wire.encode(wire.listed_session(listed)) for listed in step)
            between = b","
            del step
            if len(written) >= LISTING_PIECE_BYTES:
                pieces = [(written, False)]
                written = b""
                yield pieces.pop()
    yield written + end, True


# Signaling


async def offer(context: RequestContext, topic: str, info: str, offer: str, ttl: int | None, secret: bytes) -> bytes:
    return encode_published((await publish(context, topic, info, offer, ttl, secret))[0])


def encode_published(code: bytes) -> bytes:
    """Return the result of `offer`."""
    return wire.encode({"code": wire.format_code(code)})


async def publish(
    context: RequestContext, topic: str, info: str, offer: str, ttl: int | None, secret: bytes, lease: bytes = b""
) -> tuple[bytes, int]:
    """Publish an offer, held with `lease` if given. Return its code and expiry."""
    if context.grant is not None:
        context.grant.require_topic(topic)
        context.grant.require_info(info)
    limits, names = context.service.limits, len(context.origin) + utf8_length(topic)
    limits.charge_session(context.client, context.now_ms)
    size = utf8_length(offer) + utf8_length(info) + OFFER_ENTRIES * (ENTRY_BYTES + names)
    limits.charge_bytes(context.client, size, context.now_ms)
    create = context.service.store.create
    created = await create(context.origin, topic, info, offer, ttl_ms=ttl, secret_hash=secret, lease=lease)
    if context.service.authority is not None:
        context.service.authority.remember_topic(context.origin, created[0], topic)
    return created


async def answer(context: RequestContext, session: bytes, sent: tuple[str, Any], side: Side, secret: bytes) -> bytes:
    name, value = sent
    store = context.service.store
    texts = value if name == "candidates" else [value]
    size = sum(map(utf8_length, texts)) + len(texts) * (ENTRY_BYTES + len(context.origin))
    context.service.limits.charge_bytes(context.client, size, context.now_ms)
    if name == "answer":
        await store.answer(context.origin, session, value, secret_hash=secret)
    else:
        await store.add_candidates(context.origin, session, side, texts, secret_hash=secret)
    return SUCCESS


async def poll(
    context: RequestContext, session: bytes, side: Side, wait: float | None, since: "Since | None", secret: bytes
) -> bytes:
    store = context.service.store
    if wait is None and since is None:
        return wire.encode(wire.poll_result(side, await store.read(context.origin, session, side, secret_hash=secret)))
    position = since.position if since else None
    update = await wait_for_update(context, session, side, position, secret, wait or 0)
    latest = SessionPosition(update.serial, max(update.last, position.number if position else 0))
    cursor = format_cursor(store, poll_scope(context, wire.format_code(session), side.value), latest)
    return wire.encode(wire.poll_result(side, update) | {"cursor": cursor})


@dataclass(frozen=True)
class Since:
    """The cursor of an earlier poll."""

    position: SessionPosition | None  # None if it belongs to another store


def poll_scope(context: RequestContext, code: str, side: str) -> bytes:
    return cursor_scope(context.origin, code.lower(), side)


def check_poll_cursor(fields: Fields, context: RequestContext) -> Since | None:
    """Parse the cursor of an earlier poll, after code and side have been checked."""
    cursor = check_optional_string(fields.get("since"), "since")
    if cursor is None:
        return None
    scope = poll_scope(context, fields["code"], fields["side"])
    return Since(parse_session_cursor(context.service.store, scope, cursor, "since"))


async def withdraw(context: RequestContext, session: bytes, side: Side, secret: bytes) -> bytes:
    await context.service.store.withdraw(context.origin, session, side, secret_hash=secret)
    return SUCCESS


async def refresh(context: RequestContext, session: bytes, side: Side, secret: bytes) -> bytes:
    """POST /refresh.

    The readers of the topic get the session again, so its bytes count as stored again. A client without bytes left
    refreshes without an event.
    """
    limits, store, announced = context.service.limits, context.service.store, 0
    entries = REFRESH_ENTRIES * (ENTRY_BYTES + len(context.origin) + 4 * MAX_TOPIC)
    most = SIDE_BODIES * context.service.settings.max_body_bytes + entries
    reserved = limits.reserve_bytes(context.client, most, context.now_ms)
    try:
        expires_ms, announced = await store.refresh(
            context.origin, session, side, secret_hash=secret, announce=reserved > 0
        )
    finally:
        limits.return_bytes(context.client, reserved - (announced and announced + entries))
    return wire.encode({"expiresAt": expires_ms})


def check_answering_side(fields: Fields, context: RequestContext) -> Side:
    """Return the side of an answer or of candidates. An offerer cannot answer."""
    side = check_side(fields, context)
    if side is OFFERER and fields.get("answer") is not None:
        raise InvalidParameter("side")
    return side


def check_listing_cursor(fields: Fields, context: RequestContext) -> str | None:
    """Return the unparsed cursor of an earlier listing. It is parsed after all other checks."""
    return check_optional_string(fields.get("since"), "since", 0)


# The declarations

CLAMPED: Final = f"More than {MAX_LIMIT} counts as {MAX_LIMIT}."
POSITIVE: Final = positive()
SIDE: Final = Parameter("side", check_side, ref("Side"), required=True)
ANSWERER: Final = {"type": "string", "const": "answerer"}
SUCCESS: Final = wire.encode({"success": True})
NO_RESULT: Final = b"null"

SUBSCRIPTIONS: Final = (
    Subscription(
        "topicEvents",
        "/{topic}/events",
        "discovery",
        "Server-Sent Events `session` and `gone` (`code`, `reason`), first the current listing. "
        "After `reset` the listing replaces what an earlier stream has sent.",
        TopicFeed,
        (TOPIC,),
        "list",
    ),
    Subscription(
        "sessionEvents",
        "/events",
        "signaling",
        "Server-Sent Events `offer`, `answer`, `candidate` and `gone` of one session, for one side.",
        SessionFeed,
        (CODE, SIDE, SECRET),
        "answer",
        refusals=(404,),
    ),
)


def declare(settings: Settings) -> tuple[Operation, ...]:
    """Return all operations with the configured limits of lengths."""
    ttl_schema = {"type": "integer", "minimum": MIN_TTL_MS, "maximum": settings.session_timeout_ms}
    return (
        Operation(
            "version", "/", "service", "The commit that the server was built from.", "GET", ref("Version"), version
        ),
        Operation("health", "/health", "service", "That the server answers.", "GET", ref("Health"), health),
        Operation(
            "iceServers",
            "/ice-servers",
            "service",
            "The STUN and TURN servers, as an RTCConfiguration has them, and until when they can be used.",
            "GET",
            ref("IceConfiguration"),
            ice_servers,
            action=ANY,
        ),
        Operation(
            "report",
            "/report",
            "service",
            "Report how an attempt to connect two peers has ended, for the counters of the operator.",
            "POST",
            NOTHING,
            report,
            (
                choice("outcome", OUTCOMES, required=True),
                choice("local", KINDS, description="The kind of the candidate of this peer, if it is known."),
                choice("remote", KINDS, description="That of the other peer."),
                choice("transport", TRANSPORTS, description="That to the relay, or of the pair, if it is known."),
                integer("ms", {"type": "integer", "minimum": 0, "maximum": MAX_MS}, required=True),
            ),
            refusals=(404,),
            body="ReportRequest",
            action=ANY,
        ),
        Operation(
            "nearby",
            "/nearby",
            "discovery",
            "A topic that only clients of the same network and origin get. It changes daily.",
            "GET",
            ref("Nearby"),
            nearby,
            refusals=(404,),
            action=ANY,
        ),
        Operation(
            "topics",
            "/topics",
            "discovery",
            "Topics that have unanswered sessions, alphabetically.",
            "GET",
            ref("TopicPage"),
            topics,
            (
                integer("page", {**POSITIVE, "default": 1}, 1),
                integer("limit", {**POSITIVE, "default": DEFAULT_LIMIT}, DEFAULT_LIMIT, CLAMPED),
                PREFIX,
            ),
            action="list",
        ),
        Operation(
            "sessions",
            "/{topic}/sessions",
            "discovery",
            "The unanswered sessions of a topic, newest first; with `wait` or `since`, as soon as they are not "
            "those of `since`.",
            "GET",
            ref("Listing"),
            sessions,
            (TOPIC, WAIT, Parameter("since", check_listing_cursor, SINCE), integer("limit", POSITIVE, 0, CLAMPED)),
            action="list",
        ),
        Operation(
            "offer",
            "/{topic}/offer",
            "signaling",
            "Publish an offer under a topic.",
            "POST",
            ref("Offered"),
            offer,
            (
                TOPIC,
                string("info", MAX_INFO, {**FILLED, "maxLength": MAX_INFO}),
                string("offer", settings.max_offer),
                integer("ttl", {**ttl_schema, "description": "In ms."}),
                SECRET,
                HOLD,
            ),
            refusals=(404,),
            body="OfferRequest",
            action="offer",
        ),
        Operation(
            "answer",
            "/answer",
            "signaling",
            "Send the answer, or candidates of either side.",
            "POST",
            ref("Success"),
            answer,
            (
                CODE,
                one_of(
                    "sent",
                    replace(string("answer", settings.max_offer), narrows={"side": ANSWERER}),
                    string("candidate", settings.max_offer),
                    candidates(settings.max_offer),
                ),
                replace(SIDE, check=check_answering_side),
                SECRET,
            ),
            refusals=(404, 409),
            writes=True,
            action="answer",
        ),
        Operation(
            "poll",
            "/poll",
            "signaling",
            "What the other side has sent; with `wait` or `since`, what is new after `since`, as soon as there "
            "is anything.",
            "POST",
            {"oneOf": [ref("OffererNews"), ref("AnswererNews")]},
            poll,
            (CODE, SIDE, WAIT, Parameter("since", check_poll_cursor, SINCE), SECRET),
            refusals=(404,),
            body="PollRequest",
            action="answer",
        ),
        Operation(
            "withdraw",
            "/withdraw",
            "signaling",
            "End a session at once.",
            "POST",
            ref("Success"),
            withdraw,
            (CODE, SIDE, SECRET),
            refusals=(404,),
            body="OwnerRequest",
            writes=True,
            ends_hold=True,
            action="answer",
        ),
        Operation(
            "refresh",
            "/refresh",
            "signaling",
            "Move a session's expiry to now and its lifetime.",
            "POST",
            ref("Refreshed"),
            refresh,
            (CODE, SIDE, SECRET),
            refusals=(404,),
            body="OwnerRequest",
            writes=True,
            action="answer",
        ),
    )
