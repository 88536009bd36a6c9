"""The supervisor of several workers that share a port: it starts, watches, restarts and stops them."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..operator.actions import make_server_actions
from ..operator.control import server_name
from ..operator.fullness import CHECK_S as FULLNESS_CHECK_S
from ..operator.fullness import Fullness, describe_full
from ..operator.handlers import AdminPolicy
from ..operator.workers import WorkerListener, WorkersOperator
from ..settings.settings import LiveSettings, Settings
from ..system import logs
from ..system.lifecycle import LEAVING, SERVING, Lifecycle
from ..system.loop import Repeating
from ..system.service_manager import Notifier
from ..system.sockets import UnixSocket, url
from .draining import CLOSE_LIMIT_S, LIMITS_S, handle_signals, run_until_closed
from .handover import create_balance_memory, encode
from .listeners import log_start, open_all_sockets, start_admin_server
from .reload import Reloader, Resources, read_resources, reload_status
from .server import STATUS_S
from .tuning import raise_descriptor_limit

log = logging.getLogger(__name__)

# Clients of a stuck worker hang for at most the sum of these three.
CHECK_S = 1.0  # between two health checks of a worker
STUCK_S = 3.5  # a worker is stuck after this time without a response, unless the watchdog asks for less
ABORT_S = 0.5  # time for a stuck worker to log where it is
START_S = 30.0  # time for a worker to start serving
RESTART_S = 1.0  # pause before a worker is restarted; twice as long after each start that fails
MAX_RESTART_S = 8.0
STOP_S = sum(LIMITS_S.values())  # for workers to stop


class Worker:
    """A worker, and its current process, which is stuck after `stuck_s` without a response.

    All workers share the sockets of the public listener, and the shared memory of `Balance`.
    """

    def __init__(
        self,
        number: int,
        settings: Settings,
        public: list[socket.socket],
        balance: int,
        directory: Path,
        stuck_s: float,
    ) -> None:
        self.listener = WorkerListener(number, directory / str(number))
        self._number = number
        self._admin = UnixSocket(directory / str(number), 0o600)
        self._public = [listening.fileno() for listening in public]
        self._balance = balance
        self._settings = settings
        self._stuck_s = stuck_s
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None

    @property
    def running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def start(self) -> int:
        """Start the process and wait until it serves. Return 0, or the exit status if it exited instead."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", f"{__package__}.worker", str(self._number)),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(*self._public, self._admin.fileno(), self._balance),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # signals from a terminal go only to the supervisor
        )
        assert self._process.stdin is not None
        work = (self._number, self._settings, self._public, self._admin.fileno(), self._balance)
        self._process.stdin.write(encode(work))  # the pipe stays open: closing it stops the worker
        self._ended = asyncio.create_task(self._process.wait())
        # Its socket listens already, so the first response arrives once the worker serves.
        response = asyncio.create_task(self.listener.request("/healthz"))
        await asyncio.wait((response, self._ended), timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        if not response.done() and self.running:
            log.error("worker %d does not serve within %g s; killing it", self._number, START_S)
            await self._abort()
        response.cancel()
        return (self._ended.result() or 1) if self._ended.done() else 0

    async def keep_running(self) -> None:
        """Restart the process whenever it exits, is stuck, or could not be started."""
        pause_s = RESTART_S
        while True:
            if self._ended is not None:
                await self._watch()
                self.listener.restarts += 1
                log.error("worker %d %s; restarting it", self._number, _how(self._ended.result()))
            await asyncio.sleep(pause_s)
            pause_s = RESTART_S if await self.try_to_start() else min(2 * pause_s, MAX_RESTART_S)

    async def try_to_start(self) -> bool:
        try:
            return await self.start() == 0
        except OSError as error:
            self._ended = None
            log.error("worker %d cannot be started: %s; trying again", self._number, error)
            return False

    async def _watch(self) -> None:
        """Wait until the process has exited, and kill it when it is stuck."""
        assert self._ended is not None
        loop = asyncio.get_running_loop()
        responded_s = loop.time()
        while self.running:
            # A connection can break while the worker is well: only the time since the last response counts.
            if await self.listener.request("/healthz", self._stuck_s) is not None:
                responded_s = loop.time()
            elif self.running and loop.time() - responded_s >= self._stuck_s:
                log.error("worker %d does not respond within %g s; killing it", self._number, self._stuck_s)
                await self._abort()
            await asyncio.wait((self._ended,), timeout=CHECK_S)

    async def _abort(self) -> None:
        """Kill the process after SIGABRT, which makes it log its stack."""
        assert self._ended is not None
        self.send(signal.SIGABRT)
        await asyncio.wait((self._ended,), timeout=ABORT_S)
        self.send(signal.SIGKILL)
        await asyncio.wait((self._ended,))

    def apply(self, settings: Settings) -> None:
        """Send settings to the worker, which applies them once it serves."""
        self._settings = settings
        if self._process is not None and self._process.stdin is not None and self.running:
            self._process.stdin.write(encode(settings))

    def stop(self) -> None:
        """Make the worker drain and exit."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    async def ended(self) -> None:
        if self._ended is not None:
            await asyncio.wait((self._ended,))

    def close(self) -> None:
        self.listener.close()
        self._admin.close()


def _how(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # most real-time signals have no name
        name = f"signal {-status}"
    return f"was killed by {name}"


async def supervise(settings: Settings, read: Callable[[], Settings], number: int) -> None:
    """Run `number` workers until SIGTERM or SIGINT.

    Raise SystemExit if the first worker exits during its start, with the same status. It has logged the reason.
    """
    descriptors = raise_descriptor_limit()
    lifecycle = Lifecycle()
    handle_signals(lifecycle)
    notifier = Notifier(os.environ)
    async with contextlib.AsyncExitStack() as opened:
        live, resources = LiveSettings(settings), read_resources(settings)
        public, admin = open_all_sockets(settings)
        for listening in public:
            opened.callback(listening.close)
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="tornado-signal-")))
        stuck_s = notifier.pause_s(STUCK_S)
        balance = create_balance_memory(number)
        opened.callback(os.close, balance)
        workers = [Worker(index, settings, public, balance, directory, stuck_s) for index in range(1, number + 1)]
        for worker in workers:
            opened.callback(worker.close)
        try:
            if status := await workers[0].start():  # the first one alone, so that an error is logged once
                raise SystemExit(status)
        except OSError as error:
            raise OperatorError(f"no worker can be started: {error}") from error
        await asyncio.gather(*(worker.try_to_start() for worker in workers[1:]))

        policy = AdminPolicy(resources.admin_token, hosts=settings.admin_hosts)
        refusals: Counter[str] = Counter()
        fullness = Fullness(None, refusals)

        def use(new: Settings, resources: Resources) -> None:
            logs.set_up(new.log_level, new.log_format)
            policy.use(resources.admin_token, new.admin_hosts)
            for worker in workers:
                worker.apply(new)

        reloader = Reloader(live, resources, use)
        listeners = [worker.listener for worker in workers]
        server_actions = make_server_actions(lambda: lifecycle.reach(LEAVING), live, reloader.apply)
        operator = WorkersOperator(listeners, server_name(public), server_actions, live)
        admin_server = await start_admin_server(operator, admin, policy, live, refusals)
        urls = [url(listening, "https" if settings.tls_certificate else "http") for listening in public]
        log_start(urls, admin, settings, descriptors)

        state: dict[str, Any] = {}

        async def read_state() -> None:
            nonlocal state
            state = (await operator.readiness())[1]

        def status_line() -> str:
            if lifecycle.state >= LEAVING:
                return f"draining {number} workers"
            restarts = sum(worker.listener.restarts for worker in workers)
            listening = f"listening on {', '.join(urls)}, {number} workers, restarted {restarts} times"
            full = describe_full(state | {"full": sorted({*state.get("full", ()), *fullness.full})})
            return f"{listening}{full}{reload_status(live)}"

        reloader.reload_on_hangup(read, lifecycle, notifier, status_line)
        reports = Repeating(lambda: notifier.alive(status_line()), notifier.pause_s(STATUS_S))
        readings = Repeating(read_state, STATUS_S)
        checks = Repeating(fullness.check, FULLNESS_CHECK_S)
        notifier.ready(status_line())
        async with asyncio.TaskGroup() as group:
            keepers = [group.create_task(worker.keep_running()) for worker in workers]
            lifecycle.reach(SERVING)
            await lifecycle.reached(LEAVING)
            for keeper in keepers:
                keeper.cancel()
        log.info("stopping: draining")
        notifier.stopping(status_line())
        for listening in public:
            listening.close()
        await stop(workers, lifecycle)
        await admin_server.close(0)
        await checks.stop()
        await readings.stop()
        await reports.stop()
    log.info("stopped")


async def stop(workers: Sequence[Worker], lifecycle: Lifecycle) -> None:
    """Stop the workers. Those that do not exit within `STOP_S`, or by CLOSED, are killed."""
    for worker in workers:
        worker.stop()

    async def all_ended() -> None:
        for worker in workers:
            await worker.ended()

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            await run_until_closed(lifecycle, all_ended())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            worker.send(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await all_ended()
