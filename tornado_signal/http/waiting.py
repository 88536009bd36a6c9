"""What requests that wait for news have in common, whatever they wait for."""

from typing import Any, cast

from tornado.httputil import HTTPHeaders

from ..errors import SignalError
from ..stores import cursors
from ..stores.watches import Watch
from .base import Handler

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
        await watch.wait(self.next_look_s(until_s, expires_ms))
        await self.application.queue.turn(self.client)
        self.now_ms = self.application.clock.now_ms()
        self.set_header("Date", self.application.clock.http_date(self.now_ms))

    def next_look_s(self, until_s: float, expires_ms: int | None) -> float:
        """When to look again, by the loop's clock, if nothing changes: at the next expiry, which is a change too.

        Args:
            until_s: by the loop's clock, when waiting ends.
            expires_ms: when something is going to expire, by the server's clock; None for nothing.
        """
        if expires_ms is None:
            return until_s
        left_s = (expires_ms - self.application.clock.now_ms()) / 1000
        return min(until_s, self.store.watches.loop.time() + left_s)

    # Cursors: the numbers of this store, about the origin and what is read.

    def about(self, *names: str) -> bytes:
        """What the cursors of this request are about: the origin and the names of what is read."""
        return "\0".join((self.origin, *names)).encode("utf-8", "replace")

    def format_cursor(self, about: bytes, *numbers: int) -> str:
        """A cursor of this store; see `cursors`."""
        return cursors.format_cursor(self.store.identity, about, *numbers)

    def parse_cursor(self, about: bytes, cursor: str, parameter: str) -> tuple[int, int] | None:
        """The two numbers of a cursor of this store; None for another store's.

        Raises:
            InvalidParameter: it is none, or about something else.
        """
        numbers = cursors.parse_cursor(self.store.identity, about, cursor, parameter, 2)
        return None if numbers is None else (numbers[0], numbers[1])
