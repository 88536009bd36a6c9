"""Work on many items, a few per event-loop iteration, so that other work is not delayed.

An item may have ended before its turn, such as a connection or a wait.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Set
from typing import TypeVar

T = TypeVar("T")


def in_slices(items: list[T], work: Callable[[T], object], size: int) -> None:
    """Call a function for `size` items per event-loop iteration, the last one first. The list is emptied.

    An exception ends its slice only.
    """
    due = items[-size:]
    del items[-size:]
    if items:
        asyncio.get_running_loop().call_soon(in_slices, items, work, size)
    while due:
        work(due.pop())


async def slices(items: Iterable[T], size: int) -> AsyncIterator[list[T]]:
    """Yield `size` items at a time, and let the event loop run after each step."""
    copied = list(items)
    for at in range(0, len(copied), size):
        yield copied[at : at + size]
        await asyncio.sleep(0)


async def present(items: Set[T], size: int) -> AsyncIterator[list[T]]:
    """Yield at most `size` items of a changing set at a time, without those that have been removed meanwhile.

    The items of a step are present until the caller's next `await`.
    """
    async for some in slices(items, size):
        yield [item for item in some if item in items]
