"""How the process ends: the signals, and draining."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine

from ..service.service import Service
from ..transport import Server

LAST_REQUEST_S = 1.0  # for connections that are open when the server stops, to send one more request
CLOSE_WEBSOCKETS_S = 2.0  # over which WebSockets are closed, so that not all clients come back at one moment
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0


class Signals:
    """The signals that the process has received. Needs a running event loop.

    Attributes:
        stop: set by SIGTERM and SIGINT.
        force_stop: set by a second one of them: stop without draining.
        reload: called on SIGHUP.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force_stop = asyncio.Event()
        self.reload: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())

    def _on_stop(self) -> None:
        (self.force_stop if self.stop.is_set() else self.stop).set()


async def drain(server: Server, admin_server: Server, service: Service) -> None:
    """Accept no more connections, and answer those that are open.

    Before that, load balancers have the time that is set for them to send their clients elsewhere. A waiting request
    gets its normal response, and an open connection has time for one more request. New connections are for the next
    process, if the service manager keeps the sockets open.
    """
    service.stopping = True
    if delay_ms := service.settings.drain_delay_ms:
        service.leaving = True
        await asyncio.sleep(delay_ms / 1000)
    await server.accept_no_more()
    service.store.end_watches()
    server.close_websockets(CLOSE_WEBSOCKETS_S)
    await server.serve_the_rest(LAST_REQUEST_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(service.drain(), DRAIN_LIMIT_S)
    await server.close(CLOSE_LIMIT_S)
    await admin_server.close(CLOSE_LIMIT_S)


async def run_until(event: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Run until it is done, or cancel it when the event is set."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    working.cancel()
