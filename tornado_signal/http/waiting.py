"""What requests that wait for news have in common, whatever they wait for."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from tornado.httputil import HTTPHeaders

from ..errors import InvalidParameter, SignalError
from ..session import Position, SessionPosition
from ..stores.watches import Watch
from . import cursors
from .base import Handler

T = TypeVar("T")

NO_HEADERS = HTTPHeaders()


class WaitingHandler(Handler):
    """A handler that may wait, and stops as soon as its client is gone."""

    _watch: Watch | None = None

    def watching(self, watch: Watch) -> Watch:
        """Tie a watch to this request's connection; use it as a context manager.

        What the request came with is no longer needed then, and let go: thousands may wait.

        Raises:
            TooMany, Unavailable: too many wait already.
        """
        self._watch = watch
        try:
            watch.on_close = self.application.limits.wait(self.request.client_address)
        except SignalError:
            watch.close()
            raise
        self.application.ledger.waits(self)
        cast(Any, self.request.connection).set_close_callback(self.on_connection_close)
        self.request.headers = NO_HEADERS
        self.request.body = b""
        return watch

    def on_connection_close(self) -> None:
        """Nobody is left to tell."""
        if self._watch is not None:
            self._watch.close()

    async def look_again(self, watch: Watch, until_s: float, expires_ms: int | None) -> None:
        """Wait for a change, or until it is time to look; from then on the time of this request is a new one."""
        await watch.wait(self.next_look_s(watch, until_s, expires_ms))
        await self.application.queue.turn(self.client)
        self.now_ms = self.application.clock.now_ms()
        self.set_header("Date", self.application.clock.http_date(self.now_ms))

    def next_look_s(self, watch: Watch, until_s: float, expires_ms: int | None) -> float:
        """When to look again, by the loop's clock, if nothing changes: at the next expiry, which is a change too.

        Args:
            watch: what waits.
            until_s: by the loop's clock, when waiting ends.
            expires_ms: when something is going to expire, by the store's clock; None for nothing.
        """
        if expires_ms is None:
            return until_s
        left_s = (expires_ms - self.store.now_ms()) / 1000
        return min(until_s, watch.now_s() + left_s)

    # Cursors

    def about(self, *names: str) -> bytes:
        """What the cursors of this request are about: the origin and the names of what is read."""
        return "\0".join((self.origin, *names)).encode("utf-8", "replace")

    def format_cursor(self, about: bytes, position: Position | SessionPosition) -> str:
        """A position as a client keeps it."""
        return cursors.tag(about, self.store.format_position(position))

    def parse_cursor(self, about: bytes, cursor: str, parameter: str, parse: Callable[[str], T | None]) -> T | None:
        """Inverse of `format_cursor`.

        Args:
            about: as it was given to `format_cursor`.
            cursor: as the client shows it.
            parameter: what it is called, for the error.
            parse: of the store, for this kind of position.

        Returns:
            The position; None for another store's.

        Raises:
            InvalidParameter: it is damaged, or about something else.
        """
        try:
            return parse(cursors.untag(about, cursor))
        except ValueError:
            raise InvalidParameter(parameter) from None
