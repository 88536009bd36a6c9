"""Work that is repeated for as long as the process runs, by the monotonic clock."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Repeating:
    """Calls a function again and again. Needs a running event loop.

    Tornado's PeriodicCallback plans by the wall clock: after the clock is set back it does nothing for that long.

    The pause precedes each call. A coroutine is awaited before the next pause. An exception is logged, and the work
    continues.
    """

    def __init__(self, work: Callable[[], Awaitable[None] | None], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop, and cancel the current call."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            try:
                if (awaitable := self._work()) is not None:
                    await awaitable
            except Exception:
                log.exception("repeated work failed; repeating it")
