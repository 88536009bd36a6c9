"""The operator's own listener, on loopback: is it alive, can it serve."""

import http
from typing import Any

from tornado import web

from .. import wire
from ..errors import Unavailable
from .request import Application


class Handler(web.RequestHandler):
    """A Tornado handler that answers in JSON, errors included."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Say the status in words."""
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
        answer(self, status_code, {"error": http.HTTPStatus(status_code).phrase.capitalize()})


class Alive(Handler):
    """GET /healthz: the event loop turns."""

    def get(self) -> None:
        """Always 200."""
        answer(self, 200, {"status": "ok"})

    head = get


class Ready(Handler):
    """GET /readyz: the store can be written and read, and the server is not stopping."""

    def initialize(self, public: Application) -> None:
        """Take the application whose readiness is asked for."""
        self.public = public

    async def get(self) -> None:
        """Answer 200 or 503."""
        try:
            if self.public.stopping or self.public.draining:
                raise Unavailable("draining")
            await self.public.store.probe()
        except Unavailable as error:
            answer(self, 503, {"status": "unavailable", "reason": error.reason})
        else:
            answer(self, 200, {"status": "ok"})

    head = get


class Unknown(Handler):
    """Every other path."""

    def prepare(self) -> None:
        """Always 404."""
        answer(self, 404, {"error": "Not found"})


def answer(handler: web.RequestHandler, status: int, fields: dict[str, Any]) -> None:
    """Answer in JSON."""
    handler.set_status(status)
    handler.set_header("Content-Type", wire.JSON)
    handler.finish(wire.encode(fields))


def make_admin_application(public: Application) -> web.Application:
    """The application of the admin listener.

    Args:
        public: the one that it watches.
    """
    routes: list[Any] = [("/healthz", Alive), ("/readyz", Ready, {"public": public})]
    return web.Application(routes, default_handler_class=Unknown, log_function=lambda handler: None)
