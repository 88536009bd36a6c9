"""Tasks in the background."""

import asyncio
from collections.abc import Coroutine, Hashable
from typing import Any


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
        """Cancel the task with a key if it is running."""
        if key in self:
            self.pop(key).cancel()

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for the end of all but the current one."""
        tasks = [task for task in self.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
