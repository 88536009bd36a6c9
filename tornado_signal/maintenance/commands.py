"""The operator's commands: what each does."""

import argparse
import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import DamagedBackup, DatabaseError, OperatorError
from ..settings.settings import Settings
from ..settings.sources import load
from ..stores import engine_of_redis, where
from ..stores.leveldb import directory, files
from ..stores.leveldb.binding import plyvel
from ..system import terminal
from ..system.clock import Clock
from ..system.secrets import admin_token
from . import recovery, remote
from .backup import Entry, unpack, verified
from .census import Census

# What these commands are on Redis, where they are Redis' own.
ON_REDIS = {
    "backup": "BGSAVE writes its dump file, and `appendonly yes` keeps all that is written",
    "restore": "start it with its dump file or append-only files in its `dir`",
    "compact": "BGREWRITEAOF rewrites its append-only file, and MEMORY PURGE gives memory back",
    "repair": "`redis-check-aof --fix` repairs its append-only file while it is stopped",
}

Arguments = argparse.Namespace


def run(arguments: Arguments) -> None:
    """Run the command that was asked for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is half done is undone
    settings = load(arguments, os.environ)
    if settings.store == "redis" and (theirs := ON_REDIS.get(arguments.command)) is not None:
        raise OperatorError(f"`{arguments.command}` is for --store leveldb; on Redis, {theirs}")
    COMMANDS[arguments.command](arguments, settings)


def backup(arguments: Arguments, settings: Settings) -> None:
    """Write DEST, whole or not at all."""
    url = remote.admin_url(settings, arguments.admin_url)
    if url is None:
        raise OperatorError("the running server makes the backup: give it an --admin-port, and name the same one here")
    census = Census(Clock().now_ms(), 0)
    with (
        _written(arguments.dest, force=arguments.force) as file,
        remote.backup(url, admin_token(settings)) as (read, _),
    ):

        def read_and_keep(size: int) -> bytes:
            data = read(size)
            file.write(data)
            return data

        try:
            census.count(unpack(read_and_keep))
        except DamagedBackup as error:
            raise OperatorError(f"what the server at {url} sent is no backup ({error}); try again") from error
        size = file.tell()
    print(f"{arguments.dest}: {census.sessions} sessions, {size} bytes")


def restore(arguments: Arguments, settings: Settings) -> None:
    """Make the data directory."""
    sessions = recovery.restore(arguments.source, settings.data_dir)
    print(f"{settings.data_dir}: {sessions} sessions restored from {arguments.source}")


def inspect(arguments: Arguments, settings: Settings) -> None:
    """Print the numbers, as a table to a reader and as JSON to a program."""
    if settings.store == "redis" and arguments.source is None:
        with engine_of_redis():
            from . import on_redis
        found = on_redis.count(settings, arguments.most)
        _show({"source": where(settings), **found}, as_json=arguments.json)
        return
    census = Census(Clock().now_ms(), arguments.most)
    with _contents(arguments, settings) as (name, size_bytes, entries):
        try:
            census.count(entries)
        except DamagedBackup as error:
            raise OperatorError(f"{name} is no sound backup: {error}") from error
        except plyvel.Error as error:
            raise directory.unusable(settings.data_dir, error) from error
    _show({"source": name, "size_bytes": size_bytes, **census.end()}, as_json=arguments.json)


def check(arguments: Arguments, settings: Settings) -> None:
    """Say what is wrong."""
    if settings.store == "redis":
        with engine_of_redis():
            from . import on_redis
        name, found = where(settings), on_redis.check(settings)
        repairs = "servers go on with it, and what is wrong goes when its sessions have expired; please report it"
    else:
        path = settings.data_dir
        with directory.opened(path) as db:
            found = recovery.flaws(db)
        name = str(path)
        repairs = f"`tornado-signal repair --data-dir {path.absolute()}` keeps the sessions that are whole"
    for flaw in found:
        print(terminal.printable(flaw))
    if found:
        raise DatabaseError(f"{name} is not sound (listed above: {len(found)}); {repairs}")
    print(f"{name} is sound")


def compact(arguments: Arguments, settings: Settings) -> None:
    """Compact, and say what it gave."""
    url = _server(arguments, settings)
    if url is None:
        path = settings.data_dir
        before = files.size_bytes(path) if directory.exists(path) else 0
        with directory.opened(path) as db:
            files.remove_ballast(path)  # merging takes room before it gives some; a server makes another one
            directory.compact(db)
        name, after = str(path), files.size_bytes(path)
    else:
        name, (before, after) = url, remote.compact(url, admin_token(settings))
    print(f"{name}: {before} bytes before, {after} bytes after")


def repair(arguments: Arguments, settings: Settings) -> None:
    """Put what can be saved in the place of the damaged directory."""
    path = settings.data_dir
    done = recovery.repair(path)
    if done is None:
        print(f"{path} is sound, nothing was changed")
    else:
        saved, kept = done
        print(f"{path}: {saved.sessions} sessions saved, {saved.incomplete} that were not whole left out")
        print(f"{kept}: the damaged database as it was; delete it when you no longer need it")


COMMANDS = {each.__name__: each for each in (backup, restore, inspect, check, compact, repair)}


# Where the data is


@contextlib.contextmanager
def _contents(arguments: Arguments, settings: Settings) -> Iterator[tuple[str, int, Iterable[Entry]]]:
    """What a backup holds, a directory, or a server that has it open.

    Yields:
        Its name, its size on the disk in bytes, and all entries in the order of the keys.
    """
    if arguments.source is not None:
        try:
            with arguments.source.open("rb") as file:
                yield (str(arguments.source), os.stat(file.fileno()).st_size, verified(file))
        except OSError as error:
            raise OperatorError(f"cannot read {arguments.source}: {error.strerror}; name a backup") from error
    elif (url := _server(arguments, settings)) is not None:
        with remote.backup(url, admin_token(settings)) as (read, size_bytes):
            yield (url, size_bytes, unpack(read))
    else:
        path = settings.data_dir
        with directory.opened(path) as db:
            yield (str(path), files.size_bytes(path), recovery.walk(db))


def _server(arguments: Arguments, settings: Settings) -> str | None:
    """The URL of the server to ask; None to open the data directory here.

    Raises:
        OperatorError: the directory is in use by a server whose admin listener is not known.
    """
    if arguments.admin_url is not None:
        return remote.admin_url(settings, arguments.admin_url)
    path = settings.data_dir
    if directory.exists(path):
        if not directory.in_use(path):
            return None
        if settings.admin_port is None:
            raise OperatorError(
                f"{path} is in use by a running server; stop that, or give it and this command the same --admin-port"
            )
    return remote.admin_url(settings, None)


@contextlib.contextmanager
def _written(dest: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that is there whole and on the disk when the block has ended, or not at all; for its owner alone."""
    if dest.exists() and not dest.is_file():
        raise OperatorError(f"{dest} is not a file; name one that is to be written")
    if dest.exists() and not force:
        raise OperatorError(f"{dest} exists; name another file, or overwrite it with --force")
    with contextlib.ExitStack() as undo:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{dest.name}.", dir=dest.parent)
            undo.callback(Path(name).unlink)
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            os.replace(name, dest)
            undo.pop_all()
            files.sync(dest.parent)
        except OSError as error:
            raise OperatorError(f"cannot write {dest}: {error.strerror}; mend that, or name another file") from error


# What is printed


def _show(numbers: dict[str, Any], *, as_json: bool) -> None:
    print(_page(numbers) if terminal.wants_tables(as_json) else json.dumps(numbers, indent=2))


def _page(numbers: dict[str, Any]) -> str:
    """The numbers for a terminal."""
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
