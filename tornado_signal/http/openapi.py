"""The interface as OpenAPI 3.1 (contract C8): served at /openapi.json, and held to the truth by the tests."""

from collections.abc import Mapping
from typing import Final

from ..api import wire
from ..api.schemas import (
    FILLED,
    HEADERS,
    PARAMETERS,
    RESPONSES,
    SCHEMAS,
    SECRET,
    SINCE,
    WAIT,
    Schema,
    file,
    object_of,
    operation,
    query,
    ref,
    stream,
    whole,
)

DESCRIPTION: Final = f"""\
Signaling and topic discovery for peer-to-peer applications.

Every request is isolated by its `Origin` header, of at most {wire.MAX_ORIGIN} characters: it sees and touches the
sessions of that origin only. Browsers send the header by themselves and let no page set it, so no operation has it
among its parameters. Every other client adds it to each request, as a default header of its HTTP client; a request
without it is answered 400. Only the files and this document need none.
"""
TOPIC: Final = ref("Topic", "parameters")
CLAMPED: Final = f"More than {wire.MAX_LIMIT} counts as {wire.MAX_LIMIT}."


def make_document(max_ttl_ms: int, files: Mapping[str, str]) -> Schema:
    """The document.

    Args:
        max_ttl_ms: the longest lifetime that an offer may ask for: the configured timeout.
        files: the media type of each file that the server hands out, by its path.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tornado-signal",
            "version": "1",
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "The server that this document is from."}],
        "tags": [
            {"name": "discovery", "description": "Who is there."},
            {"name": "signaling", "description": "Connecting two peers."},
            {"name": "service", "description": "The server itself."},
            {"name": "files", "description": "What a browser loads."},
        ],
        "paths": {
            **_service(),
            **_discovery(),
            **_signaling(),
            **{path: {"get": file(path, media_type)} for path, media_type in files.items()},
        },
        "components": {
            "schemas": {**SCHEMAS, "OfferRequest": _offer_request(max_ttl_ms)},
            "parameters": PARAMETERS,
            "headers": HEADERS,
            "responses": RESPONSES,
        },
    }


def _service() -> Schema:
    return {
        "/": {
            "get": operation("version", "service", "The commit that the server was built from.", ref("Version")),
        },
        "/health": {"get": operation("health", "service", "That the server answers.", ref("Health"))},
        "/ice-servers": {
            "get": operation(
                "iceServers",
                "service",
                "The STUN and TURN servers, as an RTCConfiguration has them, and until when they can be used.",
                ref("IceConfiguration"),
            )
        },
        "/openapi.json": {
            "get": operation(
                "openapi",
                "service",
                "This document; it needs no `Origin`.",
                {"type": "object", "additionalProperties": True},
            )
        },
    }


def _discovery() -> Schema:
    return {
        "/topics": {
            "get": operation(
                "topics",
                "discovery",
                "Topics that have unanswered sessions, alphabetically.",
                ref("TopicPage"),
                parameters=[
                    query("page", {**whole(), "default": 1}),
                    query("limit", {**whole(), "default": wire.DEFAULT_LIMIT}, CLAMPED),
                ],
            )
        },
        "/{topic}/sessions": {
            "get": operation(
                "sessions",
                "discovery",
                "The unanswered sessions of a topic, newest first; with `wait` or `since`, as soon as they are not "
                "those of `since`.",
                ref("Listing"),
                parameters=[
                    TOPIC,
                    query("wait", {**WAIT, "type": "number"}),
                    query("since", {**SINCE, "type": "string"}),
                    query("limit", whole(), CLAMPED),
                ],
            )
        },
        "/{topic}/events": {
            "get": stream(
                "topicEvents",
                "discovery",
                "Server-Sent Events `session` and `gone` (`code`, `reason`), first the current listing.",
                [TOPIC],
            )
        },
    }


def _signaling() -> Schema:
    return {
        "/{topic}/offer": {
            "post": operation(
                "offer",
                "signaling",
                "Publish an offer under a topic.",
                ref("Offered"),
                parameters=[TOPIC],
                body=ref("OfferRequest"),
                failures=(404,),
            )
        },
        "/answer": {
            "post": operation(
                "answer",
                "signaling",
                "Send the answer, or candidates of either side.",
                ref("Success"),
                body={"oneOf": [ref("AnswerRequest"), ref("CandidateRequest"), ref("CandidatesRequest")]},
                failures=(404, 409),
            )
        },
        "/poll": {
            "post": operation(
                "poll",
                "signaling",
                "What the other side has sent; with `wait` or `since`, what is new after `since`, as soon as there "
                "is anything.",
                {"oneOf": [ref("OffererNews"), ref("AnswererNews")]},
                body=ref("PollRequest"),
                failures=(404,),
            )
        },
        "/events": {
            "get": stream(
                "sessionEvents",
                "signaling",
                "Server-Sent Events `offer`, `answer`, `candidate` and `gone` of one session, for one side.",
                [
                    query("code", ref("Code"), required=True),
                    query("side", ref("Side"), required=True),
                    query("secret", {**SECRET, "type": "string"}),
                ],
                failures=(404,),
            )
        },
        "/withdraw": {
            "post": operation(
                "withdraw",
                "signaling",
                "End a session at once.",
                ref("Success"),
                body=ref("OwnerRequest"),
                failures=(404,),
            )
        },
        "/refresh": {
            "post": operation(
                "refresh",
                "signaling",
                "Move a session's expiry to now and its lifetime.",
                ref("Refreshed"),
                body=ref("OwnerRequest"),
                failures=(404,),
            )
        },
    }


def _offer_request(max_ttl_ms: int) -> Schema:
    ttl = {"type": ["integer", "null"], "minimum": wire.MIN_TTL_MS, "maximum": max_ttl_ms, "description": "In ms."}
    return object_of(
        {
            "info": {**FILLED, "maxLength": wire.MAX_INFO},
            "offer": FILLED,
            "ttl": ttl,
            "secret": {**SECRET, "type": ["string", "null"]},
        },
        required=["info", "offer"],
        closed=False,
    )
