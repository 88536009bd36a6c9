"""Signals, and the stop of a process: draining, then the parts in the reverse order of their opening."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from ..service.service import Service
from ..settings.settings import MAX_DRAIN_DELAY_MS
from ..system.lifecycle import CLOSED, Lifecycle
from ..transport import Server
from ..transport.listener import ACCEPTED_S, HANDSHAKE_S

log = logging.getLogger(__name__)

LAST_REQUEST_S = 1.0  # time for open connections to send one more request
CLOSE_WEBSOCKETS_S = 2.0  # over which WebSockets are closed, so that clients do not all reconnect at once
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
REQUESTS_S = MAX_DRAIN_DELAY_MS / 1000 + HANDSHAKE_S + LAST_REQUEST_S + ACCEPTED_S + DRAIN_LIMIT_S + 2 * CLOSE_LIMIT_S
"""The longest duration of `drain`."""


# The time limits in seconds, in the order in which the parts are closed. The service manager has to wait longer than
# all of them together.
LIMITS_S: Final = {
    "requests": REQUESTS_S,
    "service manager": 1.0,
    "supervisor": 1.0,
    "admin listener": 1.0,
    "operator": 2.0,
    "public listener": 1.0,
    "garbage collection": 1.0,
    "webhooks": 2.5,
    "relay": 1.5,
    "sockets": 1.0,
    "store": 5.0,
    "spans": 2.5,
}

Close = Callable[[], Awaitable[None]]


def handle_signals(lifecycle: Lifecycle) -> None:
    """Stop on SIGTERM and SIGINT, and ignore SIGHUP until `on_hangup`. Needs a running event loop.

    Signals without a meaning here would end the process without a word. They are logged and ignored.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifecycle.stop)
    for other in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        loop.add_signal_handler(other, log.warning, "%s is ignored", other.name)
    on_hangup(lambda: None)


def on_hangup(reload: Callable[[], None]) -> None:
    """Call a function on SIGHUP. Needs a running event loop."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


async def drain(server: Server, admin_server: Server, service: Service) -> None:
    """Stop accepting connections, and complete the requests of open ones.

    First wait for `drain_delay_ms`, so that load balancers send clients elsewhere. Waiting requests get their normal
    response, and open connections have time for one more request. If the service manager keeps the sockets open, new
    connections wait for the next process.
    """
    server.leave()
    await asyncio.sleep(service.settings.drain_delay_ms / 1000)
    await server.accept_no_more()
    service.store.end_watches()
    server.close_websockets(CLOSE_WEBSOCKETS_S)
    await server.serve_the_rest(LAST_REQUEST_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(service.drain(), DRAIN_LIMIT_S)
    await server.close(CLOSE_LIMIT_S)
    await admin_server.close(CLOSE_LIMIT_S)


async def run_until_closed(lifecycle: Lifecycle, work: Coroutine[None, None, None]) -> None:
    """Run a coroutine, and cancel it when the lifecycle reaches CLOSED."""
    running, waiting = asyncio.create_task(work), asyncio.create_task(lifecycle.reached(CLOSED))
    await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if running.done():
        running.result()
    running.cancel()


class Stages:
    """The open parts of a process.

    A part that fails to close in time is logged, and the others are closed nevertheless.
    """

    def __init__(self) -> None:
        self._opened: list[tuple[str, Close]] = []

    def opened(self, name: str, close: Close) -> None:
        """Add a part. `name` is a key of `LIMITS_S`, before that of the previous part."""
        order = list(LIMITS_S)
        assert not self._opened or order.index(name) < order.index(self._opened[-1][0]), name
        self._opened.append((name, close))

    async def close(self) -> None:
        """Close all parts, the latest first."""
        while self._opened:
            name, close = self._opened.pop()
            try:
                async with asyncio.timeout(LIMITS_S[name]):
                    await close()
            except TimeoutError:
                log.error("stopping: %s not closed within %g s; continuing without it", name, LIMITS_S[name])
            except Exception:
                log.exception("stopping: cannot close %s", name)
