"""The command check: the integrity of the data."""

import argparse
import os

from ..errors import DatabaseError, OperatorError, Unavailable
from ..settings.settings import Settings
from ..settings.sources import load
from ..stores import engine_of_redis, where
from ..stores.leveldb import directory
from ..stores.leveldb.check import flaws
from ..system import terminal
from ..system.owner import become_owner


def run(arguments: argparse.Namespace) -> None:
    """Print all flaws of the data. Raise DatabaseError if there are any."""
    settings = load(arguments, os.environ)
    if settings.store == "redis":
        import asyncio

        found_flaws = asyncio.run(_flaws_on_redis(settings))
        advice = "servers can continue to use it, and the flaws end when their sessions expire; please report it"
    else:
        with directory.opened(become_owner(settings.data_dir, enter=True)) as db:
            found_flaws = flaws(db)
        advice = "move it away to start empty"
    for flaw in found_flaws:
        print(terminal.printable(flaw))
    if found_flaws:
        raise DatabaseError(f"{where(settings)} is not sound (listed above: {len(found_flaws)}); {advice}")
    print(f"{where(settings)} is sound")


async def _flaws_on_redis(settings: Settings) -> list[str]:
    with engine_of_redis():
        from ..stores.redis.check import flaws
        from ..stores.redis.store import RedisStore
    store = RedisStore(settings)
    try:
        await store.open_to_read()
        return await flaws(store)
    except Unavailable as error:
        raise OperatorError(f"Redis cannot be used: {error.reason}") from error
    finally:
        await store.close()
