"""The engines, and the choice of one."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from ..errors import OperatorError
from ..settings.settings import Settings
from ..system.clock import Clock

if TYPE_CHECKING:  # hiredis can be missing, and a command that looks at files starts faster without asyncio
    from .leveldb.store import LevelDBStore
    from .redis.store import RedisStore

Store: TypeAlias = "LevelDBStore | RedisStore"
"""A store of sessions. `LevelDBStore` describes the operations, which both engines have."""


@contextlib.contextmanager
def engine_of_redis() -> Iterator[None]:
    """Allow imports of the engine for Redis, which can be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise OperatorError("--store redis needs hiredis; in the checkout: pip install '.[redis]'") from error


async def open_store(settings: Settings, clock: Clock) -> Store:
    """Open the configured store. Only its engine is imported."""
    store: Store
    if settings.store == "redis":
        with engine_of_redis():
            from .redis.store import RedisStore
        store = RedisStore(settings)
    else:
        from .leveldb.store import LevelDBStore

        store = LevelDBStore(settings, clock)
    await store.open()
    return store


def where(settings: Settings) -> str:
    """Return the place of the sessions as text."""
    if settings.store == "leveldb":
        return str(settings.data_dir)
    return f"{settings.redis_prefix}* on Redis at {', '.join(f'{host}:{port}' for host, port in settings.redis_nodes)}"


def check_files(settings: Settings) -> None:
    """Check that the data directory, if any, holds no files of other programs."""
    if settings.store == "leveldb":
        from .leveldb.files import check_own

        check_own(settings.data_dir)


def check_unused(settings: Settings) -> None:
    """Check that no other process uses the data directory, if any. This process must not have opened it."""
    if settings.store == "leveldb":
        from .leveldb.directory import check_unused

        check_unused(settings.data_dir)
