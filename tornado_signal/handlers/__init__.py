"""The HTTP driver: Tornado request handlers, one file for each room, and their table of routes."""

import functools
from collections.abc import Callable

from tornado.httputil import HTTPHeaders

from .. import assets
from ..clock import Clock
from ..ice import open_ice_servers
from ..limits import Limits
from ..settings import Settings
from ..store import Store
from . import discovery, pages, signaling, streams
from .base import Handler, NotFound, Response, refusal
from .ledger import Ledger
from .request import Application

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
