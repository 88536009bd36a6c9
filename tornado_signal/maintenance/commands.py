"""The commands by which an operator looks after the data: backup, restore, inspect, check, compact, repair."""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import DamagedBackup, DatabaseError, OperatorError
from ..settings.command_line import CommandLine, add_settings, flag_reader
from ..settings.settings import Settings
from ..settings.sources import load
from ..settings.value_types import URL, integer
from ..stores.leveldb import directory, files
from ..stores.leveldb.binding import plyvel
from . import remote, rescue
from .backup import Entry, unpack
from .census import Census

PRIVATE = 0o077  # for the umask: everything that is made here is people's addresses
MOST = 20  # origins and topics that are named
LONGEST = 60  # characters of a name in a table

Arguments = argparse.Namespace


def add_commands(commands: CommandLine) -> None:
    """Add these commands to those of the command line."""
    parser = _add(commands, backup, "save all that a running server holds to a file", "admin_port")
    parser.add_argument("dest", type=Path, metavar="DEST", help="the file")
    parser.add_argument("--force", action="store_true", help="overwrite DEST")
    _add_url(parser)
    parser = _add(commands, restore, "make the data directory of a stopped server from a backup", "data_dir")
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the backup")
    parser = _add(commands, inspect, "count what is there, by origin and topic", "data_dir", "admin_port")
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        nargs="?",
        help="a backup; without it the data, of a server that runs or not",
    )
    parser.add_argument("--json", action="store_true", help="JSON also on a terminal")
    parser.add_argument(
        "--most",
        type=flag_reader(integer(0, 1000)),
        default=MOST,
        metavar="N",
        help=f"name so many origins and topics, the largest (default: {MOST})",
    )
    _add_url(parser)
    _add(commands, check, "prove that the data of a stopped server is sound", "data_dir")
    parser = _add(commands, compact, "give the space of deleted sessions back to the disk", "data_dir", "admin_port")
    _add_url(parser)
    _add(commands, repair, "save what can be saved of a damaged database", "data_dir")


def _add(
    commands: CommandLine, command: Callable[[Arguments, Settings], None], meaning: str, *settings: str
) -> CommandLine:
    parser = commands.add_command(
        command.__name__,
        lambda arguments: _run(command, arguments),
        meaning,
        f"{meaning.capitalize()}. Settings are found as by `serve`.",
    )
    add_settings(parser, settings)
    return parser


def _add_url(parser: argparse.ArgumentParser) -> None:
    meaning = "where the admin listener of the running server is, if not at --admin-port of this machine"
    parser.add_argument("--admin-url", type=flag_reader(URL), metavar="URL", help=meaning)


def _run(command: Callable[[Arguments, Settings], None], arguments: Arguments) -> None:
    os.umask(PRIVATE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is half done is undone
    command(arguments, load(arguments, os.environ))


def backup(arguments: Arguments, settings: Settings) -> None:
    """Write DEST, whole or not at all."""
    url = remote.admin_url(settings, arguments.admin_url)
    if url is None:
        raise OperatorError("the running server makes the backup: give it an --admin-port, and name the same one here")
    census = Census(rescue.now_ms(), 0)
    with _written(arguments.dest, force=arguments.force) as file, remote.backup(url) as (read, _):

        def read_and_keep(size: int) -> bytes:
            data = read(size)
            file.write(data)
            return data

        try:
            _count(unpack(read_and_keep), census)
        except DamagedBackup as error:
            raise OperatorError(f"what the server at {url} sent is no backup ({error}); try again") from error
        size = file.tell()
    print(f"{arguments.dest}: {census.sessions} sessions, {size} bytes")


def restore(arguments: Arguments, settings: Settings) -> None:
    """Make the data directory."""
    sessions = rescue.restore(arguments.source, settings.data_dir)
    print(f"{settings.data_dir}: {sessions} sessions restored from {arguments.source}")


def inspect(arguments: Arguments, settings: Settings) -> None:
    """Print the numbers, as a table to a reader and as JSON to a program."""
    census = Census(rescue.now_ms(), arguments.most)
    with _found(arguments, settings) as found:
        try:
            _count(found.entries, census)
        except DamagedBackup as error:
            raise OperatorError(f"{found.name} is no sound backup: {error}") from error
        except plyvel.Error as error:
            raise directory.unusable(settings.data_dir, error) from error
    numbers = {"source": found.name, "size_bytes": found.size_bytes, **census.end()}
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps(numbers, indent=2))
    else:
        print(_page(numbers))


def check(arguments: Arguments, settings: Settings) -> None:
    """Say what is wrong."""
    path = settings.data_dir
    with directory.opened(path) as db:
        found = rescue.flaws(db)
    for flaw in found:
        print(_printable(flaw))
    if found:
        repairs = f"`tornado-signal repair --data-dir {path.absolute()}` keeps the sessions that are whole"
        raise DatabaseError(f"{path} is not sound (listed above: {len(found)}); {repairs}")
    print(f"{path} is sound")


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
        name, (before, after) = url, remote.compact(url)
    print(f"{name}: {before} bytes before, {after} bytes after")


def repair(arguments: Arguments, settings: Settings) -> None:
    """Put what can be saved in the place of the damaged directory."""
    path = settings.data_dir
    done = rescue.repair(path)
    if done is None:
        print(f"{path} is sound, nothing was changed")
    else:
        print(f"{path}: {done.saved.sessions} sessions saved, {done.saved.halves} that were not whole left out")
        print(f"{done.kept}: the damaged database as it was; delete it when you no longer need it")


# Where the data is


class Found(NamedTuple):
    """What is to be inspected.

    Attributes:
        name: what it is called.
        size_bytes: how much it takes on the disk.
        entries: everything in it, in the order of the keys.
    """

    name: str
    size_bytes: int
    entries: Iterable[Entry]


@contextlib.contextmanager
def _found(arguments: Arguments, settings: Settings) -> Iterator[Found]:
    """A backup, a directory, or a server that has it open."""
    if arguments.source is not None:
        try:
            with arguments.source.open("rb") as file:
                yield Found(str(arguments.source), os.stat(file.fileno()).st_size, unpack(file.read))
        except OSError as error:
            raise OperatorError(f"cannot read {arguments.source}: {error.strerror}; name a backup") from error
    elif (url := _server(arguments, settings)) is not None:
        with remote.backup(url) as (read, size_bytes):
            yield Found(url, size_bytes, unpack(read))
    else:
        path = settings.data_dir
        with directory.opened(path) as db:
            size_bytes = files.size_bytes(path)
            with db.iterator(verify_checksums=True, fill_cache=False) as entries:
                yield Found(str(path), size_bytes, entries)


def _server(arguments: Arguments, settings: Settings) -> str | None:
    """The URL of the server that is to be asked; None if the data directory can be opened here, or tell why not.

    Raises:
        OperatorError: the directory is in use, and there is no telling by whom.
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


def _count(entries: Iterable[Entry], census: Census) -> None:
    for key, value in entries:
        census.add(key, value)


def _page(numbers: dict[str, Any]) -> str:
    """The numbers for a reader."""
    counts = "{sessions} sessions: {unanswered} unanswered, {answered} answered, {expired} expired and not swept yet"
    pieces = [
        f"{_printable(numbers['source'])}: {numbers['size_bytes']} bytes\n",
        counts.format(**numbers) + "\n",
        "{candidates} candidates, {origins} origins, {topics} topics with unanswered sessions\n".format(**numbers),
    ]
    for name in ("largest_origins", "largest_topics"):
        rows = numbers[name]
        if rows:
            pieces.append("\n")
            pieces += _table(
                [[key.upper() for key in rows[0]], *([_cell(cell) for cell in row.values()] for row in rows)]
            )
    return "".join(pieces).rstrip("\n")


def _table(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if cell.isdigit() else cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip() + "\n"


def _cell(value: str | int) -> str:
    text = _printable(str(value))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _printable(text: str) -> str:
    """Text that does nothing to a terminal: who names an origin or a topic is anybody."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
