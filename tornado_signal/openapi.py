"""The interface as OpenAPI 3.1 (contract C8): served at /openapi.json, and held to the truth by the tests."""

from collections.abc import Mapping

from . import wire
from .schemas import (
    CODE,
    CURSOR,
    FILLED,
    ICE_SERVER,
    SECRET,
    SESSION,
    SIDE,
    SINCE,
    TEXT,
    TEXTS,
    TIME,
    TOPIC,
    UUID,
    WAIT,
    Schema,
    file,
    list_of,
    object_of,
    operation,
    query,
    stream,
    whole,
)


def make_document(max_ttl_ms: int, files: Mapping[str, str]) -> Schema:
    """The document.

    Args:
        max_ttl_ms: the longest lifetime that an offer may ask for: the configured timeout.
        files: the media type of each file that the server hands out, by its path.
    """
    ttl = {"type": ["integer", "null"], "minimum": wire.MIN_TTL_MS, "maximum": max_ttl_ms, "description": "In ms."}
    owner = {"code": CODE, "side": SIDE, "secret": SECRET}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tornado-signal",
            "version": "1",
            "description": "Signaling and topic discovery for peer-to-peer applications. Every request is isolated "
            "by its Origin header.",
        },
        "paths": {
            "/": {"get": operation("version", "The commit that the server was built from.", {"version": TEXT})},
            "/topics": {
                "get": operation(
                    "topics",
                    "Topics that have unanswered sessions, alphabetically.",
                    {
                        "topics": list_of(object_of({"topic": TEXT, "count": whole()})),
                        "pagination": object_of(
                            {
                                "page": whole(),
                                "limit": whole(wire.MAX_LIMIT),
                                "total": {"type": "integer", "minimum": 0},
                                "hasMore": {"type": "boolean"},
                            }
                        ),
                    },
                    parameters=[
                        query("page", {**whole(), "default": 1}),
                        query(
                            "limit",
                            {**whole(), "default": wire.DEFAULT_LIMIT},
                            f"More than {wire.MAX_LIMIT} counts as {wire.MAX_LIMIT}.",
                        ),
                    ],
                )
            },
            "/{topic}/sessions": {
                "get": operation(
                    "sessions",
                    "The unanswered sessions of a topic, newest first; with `wait` or `since`, as soon as they are not "
                    "those of `since`.",
                    {"sessions": list_of(SESSION)},
                    optional={"cursor": CURSOR},
                    parameters=[
                        TOPIC,
                        query("wait", {**WAIT, "type": "number"}),
                        query("since", {**SINCE, "type": "string"}),
                        query("limit", whole(), f"More than {wire.MAX_LIMIT} counts as {wire.MAX_LIMIT}."),
                    ],
                )
            },
            "/{topic}/events": {
                "get": stream(
                    "topicEvents",
                    "Server-Sent Events `session` and `gone` (`code`, `reason`), first the current listing.",
                    [TOPIC],
                )
            },
            "/{topic}/offer": {
                "post": operation(
                    "offer",
                    "Publish an offer under a topic.",
                    {"code": UUID},
                    parameters=[TOPIC],
                    body=object_of(
                        {
                            "info": {**FILLED, "maxLength": wire.MAX_INFO},
                            "offer": FILLED,
                            "ttl": ttl,
                            "secret": SECRET,
                        },
                        required=["info", "offer"],
                        closed=False,
                    ),
                    failures=(404,),
                )
            },
            "/answer": {
                "post": operation(
                    "answer",
                    "Send the answer, or candidates of either side.",
                    {"success": {"const": True}},
                    body={
                        "oneOf": [
                            object_of(
                                {**owner, "side": {"const": "answerer"}, "answer": FILLED},
                                ["code", "side", "answer"],
                                closed=False,
                            ),
                            object_of({**owner, "candidate": FILLED}, ["code", "side", "candidate"], closed=False),
                            object_of(
                                {
                                    **owner,
                                    "candidates": list_of(FILLED, minItems=1, maxItems=wire.MAX_CANDIDATES),
                                },
                                ["code", "side", "candidates"],
                                closed=False,
                            ),
                        ]
                    },
                    failures=(404, 409),
                )
            },
            "/poll": {
                "post": operation(
                    "poll",
                    "What the other side has sent; with `wait` or `since`, what is new after `since`, as soon as there "
                    "is anything.",
                    {},
                    schema={
                        "oneOf": [
                            object_of(
                                {"answer": {"type": ["string", "null"]}, "answerCandidates": TEXTS, "cursor": CURSOR},
                                ["answer", "answerCandidates"],
                            ),
                            object_of(
                                {"offer": TEXT, "offerCandidates": TEXTS, "cursor": CURSOR},
                                ["offer", "offerCandidates"],
                            ),
                        ]
                    },
                    body=object_of({**owner, "wait": WAIT, "since": SINCE}, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/events": {
                "get": stream(
                    "sessionEvents",
                    "Server-Sent Events `offer`, `answer`, `candidate` and `gone` of one session, for one side.",
                    [
                        query("code", CODE, required=True),
                        query("side", SIDE, required=True),
                        query("secret", {**SECRET, "type": "string"}),
                    ],
                    failures=(404,),
                )
            },
            "/withdraw": {
                "post": operation(
                    "withdraw",
                    "End a session at once.",
                    {"success": {"const": True}},
                    body=object_of(owner, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/refresh": {
                "post": operation(
                    "refresh",
                    "Move a session's expiry to now and its lifetime.",
                    {"expiresAt": TIME},
                    body=object_of(owner, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/health": {
                "get": operation("health", "That the server answers.", {"status": {"const": "ok"}, "timestamp": TIME})
            },
            "/ice-servers": {
                "get": operation(
                    "iceServers",
                    "The STUN and TURN servers, as an RTCConfiguration has them, and until when they can be used.",
                    {"iceServers": list_of(ICE_SERVER), "expiresAt": TIME},
                )
            },
            "/openapi.json": {"get": operation("openapi", "This document.", {}, schema={"type": "object"})},
            **{path: {"get": file(path, media_type)} for path, media_type in files.items()},
        },
    }
