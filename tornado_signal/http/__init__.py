"""The HTTP driver: Tornado request handlers, one file for each room, and their table of routes."""

import functools
from collections.abc import Callable

from tornado.httputil import HTTPHeaders

from ..api.ice import open_ice_servers
from ..limits.per_address import Limits
from ..settings.settings import Settings
from ..stores import Store
from ..system.clock import Clock
from . import assets, discovery, pages, signaling, streams
from .application import Application
from .base import Handler, NotFound, Response, refusal
from .request_log import Ledger

FIXED: dict[str, type[Handler]] = {
    "/": discovery.Version,
    "/topics": discovery.Topics,
    "/answer": signaling.Answer,
    "/poll": signaling.Poll,
    "/withdraw": signaling.Withdraw,
    "/refresh": signaling.Refresh,
    "/events": streams.SessionEvents,
    "/health": discovery.Health,
    "/ice-servers": discovery.IceServers,
    "/openapi.json": discovery.OpenApi,
}
FILES: dict[str, type[Handler]] = dict.fromkeys(assets.CLIENT, pages.File)
DEMO: dict[str, type[Handler]] = dict.fromkeys(assets.DEMO, pages.File)
BY_TOPIC: dict[str, type[Handler]] = {
    "sessions": discovery.Sessions,
    "offer": signaling.Offer,
    "events": streams.TopicEvents,
}


def make_refusal(settings: Settings, ledger: Ledger) -> Callable[[int, HTTPHeaders], Response]:
    """What the transport of these settings answers to what no handler sees."""
    return functools.partial(refusal, settings.allowed_origins, ledger)


def make_application(
    store: Store, clock: Clock, settings: Settings, version: str, limits: Limits | None = None
) -> Application:
    """The application with every route; the limits are those that the transport counts connections with.

    Raises:
        OperatorError: a file that the settings name cannot be used.
    """
    return Application(
        {**FIXED, **FILES, **(DEMO if settings.demo else {})},
        dict(BY_TOPIC),
        NotFound,
        store=store,
        clock=clock,
        settings=settings,
        version=version,
        limits=limits or Limits(settings),
        assets=assets.load(assets.CLIENT | (assets.DEMO if settings.demo else {})),
        ice=open_ice_servers(settings),
    )
