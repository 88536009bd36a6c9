"""`inspect` and `check` of the data on Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..errors import OperatorError, Unavailable
from ..settings.settings import Settings
from ..stores import quotas_of
from ..stores.redis.census import count
from ..stores.redis.check import flaws
from ..stores.redis.store import RedisStore, make_redis_store
from ..system.secrets import redis_passwords

T = TypeVar("T")


def inspect(settings: Settings, most: int) -> dict[str, Any]:
    """Return statistics of the configured store.

    Raises:
        OperatorError: the store cannot be read.
    """
    return _read(settings, lambda store: count(store, most))


def check(settings: Settings) -> list[str]:
    """Return all flaws of the configured store.

    Raises:
        OperatorError: the store cannot be read.
    """
    return _read(settings, flaws)


def _read(settings: Settings, work: Callable[[RedisStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = make_redis_store(settings, quotas_of(settings), *redis_passwords(settings))
        try:
            await store.open_to_read()
            return await work(store)
        except Unavailable as error:
            raise OperatorError(f"Redis cannot be used: {error.reason}") from error
        finally:
            await store.close()

    return asyncio.run(run())
