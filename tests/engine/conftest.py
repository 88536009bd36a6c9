"""What tests of stores share."""

import asyncio

import pytest


@pytest.fixture
def one(store, under):
    """The store as one origin sees it."""
    return under(store)


@pytest.fixture
def restarted(open_store, under):
    """A coroutine function that closes a store and opens it again: the store, and as one origin sees it."""

    async def restart(store, **options):
        await store.close()
        again = await open_store(**options)
        return again, under(again)

    return restart


@pytest.fixture
def until():
    """A coroutine function that waits for what nothing tells of."""

    async def wait(condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    return wait
