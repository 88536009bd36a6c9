"""How the process ends: the signals, and draining."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine

from ..lifecycle import CLOSED, Lifecycle
from ..service.service import Service
from ..transport import Server

LAST_REQUEST_S = 1.0  # for connections that are open when the server stops, to send one more request
CLOSE_WEBSOCKETS_S = 2.0  # over which WebSockets are closed, so that not all clients come back at one moment
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0


def handle_signals(lifecycle: Lifecycle) -> None:
    """Stop on SIGTERM and SIGINT, and ignore SIGHUP until `on_hangup`. Needs a running event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lifecycle.stop)
    on_hangup(lambda: None)


def on_hangup(reload: Callable[[], None]) -> None:
    """Call a function on SIGHUP. Needs a running event loop."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)


async def drain(server: Server, admin_server: Server, service: Service) -> None:
    """Accept no more connections, and answer those that are open.

    Before that, load balancers have the time that is set for them to send their clients elsewhere. A waiting request
    gets its normal response, and an open connection has time for one more request. New connections are for the next
    process, if the service manager keeps the sockets open.
    """
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
    """Run until it is done, or cancel it when the process is to be closed."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(lifecycle.reached(CLOSED))
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    working.cancel()
