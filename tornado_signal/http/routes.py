"""The routes, made from what is declared: operations and subscriptions of `api`, and files."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tornado import web

from ..api import wire
from ..api.call import Service
from ..api.operations import SUBSCRIPTIONS, Operation, check, declare
from ..api.parameters import TOPIC
from ..limits.per_address import Limits
from ..metrics import RequestMetrics
from ..settings.settings import Settings
from . import assets
from .application import Application
from .base import run_by_tornado
from .fields import query_fields, topic_of
from .files import File
from .openapi import make_document
from .request import Endpoint, Request
from .request_log import RequestLog
from .site import Site
from .streams import Stream

READING = ("GET", "HEAD", "OPTIONS")


async def not_found(request: Request) -> None:
    """Every path that no endpoint has (contract B13)."""


UNKNOWN = Endpoint("unknown", ("OPTIONS",), not_found, unknown=True)


def operation_endpoint(operation: Operation) -> Endpoint:
    """An operation over HTTP."""
    in_path = tuple(each for each in operation.parameters if each is TOPIC)
    others = tuple(each for each in operation.parameters if each is not TOPIC)

    async def answer(request: Request) -> None:
        values = check(in_path, {"topic": topic_of(request.path.split("/")[1])}, request) if in_path else {}
        fields = request.json_body() if operation.method == "POST" else query_fields(request.query, others)
        values |= check(others, fields, request)
        del fields  # thousands may wait
        result = await operation.perform(request, **values)
        if not isinstance(result, bytes):
            await request.respond_in_pieces(result)
            return
        headers = request.response_headers()
        if operation.secret:
            headers["Cache-Control"] = "no-store"
        request.respond(result, headers)

    methods = ("POST", "OPTIONS") if operation.method == "POST" else READING
    return Endpoint(pattern_of(operation.path), methods, answer)


def document_endpoint(path: str, document: dict[str, Any]) -> Endpoint:
    """A document that describes the interface (contract C8, C9)."""

    async def answer(request: Request) -> None:
        request.respond(wire.encode(document))

    return Endpoint(path, READING, answer, page=True)


def pattern_of(path: str) -> str:
    """A path as logs and metrics name it."""
    return path.replace("{topic}", ":topic")


def make_endpoints(settings: Settings, others: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    """Every endpoint by its path, and others."""
    served = assets.load(assets.CLIENT | (assets.DEMO if settings.demo else {}))
    operations = declare(settings)
    rules: list[Any] = [(re.escape(path), File, {"assets": served}) for path in served]
    for each in SUBSCRIPTIONS:
        rules.append((each.path.replace("{topic}", "[^/]*"), Stream, {"subscription": each}))
    by_tornado = run_by_tornado(web.Application(rules, log_function=lambda handler: None))

    endpoints = {operation.path: operation_endpoint(operation) for operation in operations}
    if settings.demo:
        endpoints["/"] = replace(endpoints["/"], door=assets.DEMO_PAGE)
    for each in SUBSCRIPTIONS:
        endpoints[each.path] = Endpoint(pattern_of(each.path), READING, by_tornado, stream=True)
    document = make_document(operations, {path: asset.media_type for path, asset in served.items()})
    endpoints["/openapi.json"] = document_endpoint("/openapi.json", document)
    endpoints |= dict.fromkeys(served, Endpoint("files", READING, by_tornado, page=True))
    return {**endpoints, **others}


def make_application(
    service: Service, limits: Limits, metrics: RequestMetrics, others: Mapping[str, Endpoint] | None = None
) -> Application:
    """The application with every route, and other endpoints by their paths.

    The limits are those that the transport counts connections with.
    """
    endpoints = make_endpoints(service.settings, others or {})
    return Application(Site(service, limits, RequestLog(service.settings, metrics)), endpoints, UNKNOWN)
