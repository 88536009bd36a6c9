"""Tasks in the background, and the pauses of what is repeated."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any

from .errors import SignalError
from .types import T

PAUSE_S = 0.25
MAX_PAUSE_S = 15.0


class Tasks(dict[Hashable, asyncio.Task[Any]]):
    """The tasks that are running. At most one of them has a given key."""

    def start(self, coroutine: Coroutine[Any, Any, Any], key: Hashable = None) -> None:
        """Start a task. It replaces the one with the same key."""
        self.end(key)
        task = asyncio.create_task(coroutine)
        key = task if key is None else key
        self[key] = task
        task.add_done_callback(lambda _: self.get(key) is task and self.pop(key))

    def end(self, key: Hashable) -> None:
        if key in self:
            self.pop(key).cancel()

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for the end of all but the current one."""
        tasks = [task for task in self.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def back_off_s(attempt: int, first_s: float = PAUSE_S) -> float:
    """Return the seconds before the next attempt: longer with each `attempt` from 0, and random to spread clients."""
    pause_s: float = min(MAX_PAUSE_S, first_s * 2.0 ** min(attempt, 10))
    return pause_s * random.uniform(0.5, 1.5)


async def retry(task: Callable[[], Awaitable[T]], first_s: float = PAUSE_S) -> T:
    """Run a task, and again after each error that is retryable. Return its result, or raise another error."""
    attempt = 0
    while True:
        try:
            return await task()
        except SignalError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(back_off_s(attempt, first_s))
        attempt += 1
