"""Fixtures of the tests of stores."""

import pytest
from support import rpc


@pytest.fixture
def one(store, under):
    return under(store)


@pytest.fixture
def opened(open_store, under):
    """A coroutine function that opens a store: itself, and as one origin sees it."""

    async def opening(**options):
        store = await open_store(**options)
        return store, under(store)

    return opening


@pytest.fixture
def restarted(opened):
    """A coroutine function that closes a store and opens it again: itself, and as one origin sees it."""

    async def restarting(store, **options):
        await store.close()
        return await opened(**options)

    return restarting


@pytest.fixture
def until():
    return rpc.until
