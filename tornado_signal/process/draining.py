"""Signals and draining."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Coroutine

from ..service.service import Service
from ..settings.settings import MAX_DRAIN_DELAY_MS
from ..system.lifecycle import CLOSED, Lifecycle
from ..transport import Server
from ..transport.listener import ACCEPTED_S, HANDSHAKE_S

log = logging.getLogger(__name__)

LAST_REQUEST_S = 1.0  # for open connections to send one more request
CLOSE_WEBSOCKETS_S = 2.0  # over which WebSockets are closed, so that clients do not all reconnect at once
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
REQUESTS_S = MAX_DRAIN_DELAY_MS / 1000 + HANDSHAKE_S + LAST_REQUEST_S + ACCEPTED_S + DRAIN_LIMIT_S + 2 * CLOSE_LIMIT_S
"""The longest duration of `drain`."""


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
