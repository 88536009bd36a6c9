"""The commands inspect, check, repair and compact."""

import argparse
import os
import signal
from typing import Any

from ..errors import DatabaseError, OperatorError
from ..settings.settings import Settings
from ..settings.sources import load
from ..stores import engine_of_redis, where
from ..stores.leveldb import directory, files
from ..stores.leveldb import repair as leveldb_repair
from ..stores.leveldb.binding import plyvel
from ..stores.leveldb.census import Census
from ..stores.leveldb.check import flaws
from ..system import terminal
from ..system.clock import Clock
from ..system.secrets import admin_token
from . import remote

Arguments = argparse.Namespace

ON_REDIS = {
    "compact": "BGREWRITEAOF rewrites its append-only file, and MEMORY PURGE releases memory",
    "repair": "redis-check-aof and redis-check-rdb repair the files of a stopped node",
}


def run(arguments: Arguments) -> None:
    """Run the command of the arguments."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that files get their owner back
    settings = load(arguments, os.environ)
    if settings.store == "redis" and arguments.command in ON_REDIS:
        raise OperatorError(f"`{arguments.command}` is for --store leveldb; on Redis, {ON_REDIS[arguments.command]}")
    COMMANDS[arguments.command](arguments, settings)


def inspect(arguments: Arguments, settings: Settings) -> None:
    """Print statistics, as tables on a terminal and otherwise as JSON."""
    if settings.store == "redis":
        with engine_of_redis():
            from . import on_redis
        source, numbers = where(settings), on_redis.inspect(settings, arguments.most)
    elif (url := _server(arguments, settings)) is not None:
        source, numbers = url, remote.inspect(url, admin_token(settings), arguments.most)
    else:
        path = settings.data_dir
        census = Census(Clock().now_ms(), arguments.most)
        with directory.opened(path) as db:
            try:
                with db.iterator(verify_checksums=True, fill_cache=False) as entries:
                    census.count(entries)
            except plyvel.Error as error:
                raise directory.unusable(path, error) from error
            source, numbers = str(path), {"size_bytes": files.size_bytes(path), **census.end()}
    numbers = {"source": source, **numbers}
    with remote.expected(source):
        terminal.print_fields(numbers, _page, arguments.json)


def check(arguments: Arguments, settings: Settings) -> None:
    """Print all flaws of the data.

    Raises:
        DatabaseError: the data has flaws.
    """
    if settings.store == "redis":
        with engine_of_redis():
            from . import on_redis
        name, found_flaws = where(settings), on_redis.check(settings)
        advice = "servers can continue to use it, and the flaws end when their sessions expire; please report it"
    else:
        name = str(settings.data_dir)
        with directory.opened(settings.data_dir) as db:
            found_flaws = flaws(db)
        advice = "run `tornado-signal repair`, or move it away to start empty"
    for flaw in found_flaws:
        print(terminal.printable(flaw))
    if found_flaws:
        raise DatabaseError(f"{name} is not sound (listed above: {len(found_flaws)}); {advice}")
    print(f"{name} is sound")


def repair(arguments: Arguments, settings: Settings) -> None:
    """Repair the data, and print what was kept and what was lost."""
    repaired = leveldb_repair.repair(settings.data_dir)
    if repaired is None:
        print(f"{settings.data_dir} is sound")
        return
    for report in repaired.reports:
        print(terminal.printable(report))
    print(
        f"{settings.data_dir} is repaired: {repaired.kept} sessions kept, at least {repaired.lost} lost; the damaged "
        f"directory is {repaired.aside}"
    )


def compact(arguments: Arguments, settings: Settings) -> None:
    """Compact, and print the sizes before and after."""
    url = _server(arguments, settings)
    if url is None:
        path = settings.data_dir
        before = files.size_bytes(path) if directory.exists(path) else 0
        if before:
            files.remove_ballast(path)  # merging begins on opening, and needs space; a server creates another
        with directory.opened(path) as db:
            try:
                directory.compact(db)
            except plyvel.Error as error:
                raise DatabaseError(f"cannot compact {path}: {directory.reason(error)}; nothing is lost") from error
        name, after = str(path), files.size_bytes(path)
    else:
        name, (before, after) = url, remote.compact(url, admin_token(settings))
    print(f"{name}: {before} bytes before, {after} bytes after")


COMMANDS = {command.__name__: command for command in (inspect, check, repair, compact)}


def _server(arguments: Arguments, settings: Settings) -> str | None:
    """Return the URL of the server that has the data directory open. None to open the directory here."""
    if arguments.admin_url is not None:
        return remote.admin_url(settings, arguments.admin_url)
    path = settings.data_dir
    if directory.exists(path):
        if not directory.in_use(path):
            return None
        if settings.admin_port is None:
            raise OperatorError(
                f"{path} is in use by a running server; stop it, or set the same --admin-port for it and this command"
            )
    return remote.admin_url(settings, None)


def _page(numbers: dict[str, Any]) -> str:
    """Format statistics for a terminal."""
    text = (
        "{name}: {size_bytes} bytes\n"
        "{sessions} sessions: {unanswered} unanswered, {answered} answered, {expired} expired and not swept yet\n"
        "{candidates} candidates, {origins} origins, {topics} topics with unanswered sessions"
    ).format(name=terminal.printable(numbers["source"]), **numbers)
    for rows in (numbers["largest_origins"], numbers["largest_topics"]):
        if rows:
            heads = [name.upper() for name in rows[0]]
            text += "\n\n" + terminal.table(heads, [list(row.values()) for row in rows])
    return text
