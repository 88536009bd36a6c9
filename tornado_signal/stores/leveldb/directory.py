"""The directory of a database: opened, found to be in use or damaged, begun anew, moved aside, handed over."""

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from ...errors import DamagedDatabase, DamagedListing, DatabaseError
from . import files, layout
from .binding import plyvel

T = TypeVar("T")

MIN_WRITE_BUFFER = 1 << 19
MAX_WRITE_BUFFER = 16 << 20
# LevelDB keeps the blocks of deleted tables until its cache is full, so the cache of every server fills up. The kernel
# caches the tables, too. Reading a block from there takes a few microseconds.
CACHE_BYTES = 4 << 20

# The end of a table: two places (offset and length, as varints) of blocks, padded, and a magic number. It is the
# only part without a checksum: LevelDB takes a length from there for the size of a buffer, and aborts if it is huge.
_FOOTER_BYTES: Final = 48
_MAGIC: Final = bytes.fromhex("57fb808b247547db")
_TRAILER_BYTES: Final = 5  # behind each block

log = logging.getLogger(__name__)

_OPTIONS: dict[str, Any] = {
    "paranoid_checks": True,
    "bloom_filter_bits": 10,
    "lru_cache_size": CACHE_BYTES,
    "max_open_files": 500,
}


def open_leveldb(path: Path) -> Any:
    """Open a directory, or make it, and check that it holds our format.

    Raises:
        DatabaseError: it is taken, damaged, not writable, not ours or of another format; says which.
        OperatorError: it is the directory of something else.
    """
    try:
        make_private(path)
        if found := damage(path):
            raise plyvel.CorruptionError(found)
        try:
            db = _open(path)
        except plyvel.IOError as error:
            # Opening writes before it deletes.
            if "No space left" not in reason(error) or not files.remove_ballast(path):
                raise
            log.warning("the disk of %s is full: giving up the ballast", path)
            db = _open(path)
    except (OSError, plyvel.Error) as error:
        said = reason(error)
        if "lock" in said.lower() and ("held" in said or "unavailable" in said):
            raise taken(path) from error
        raise unusable(path, error) from error
    try:
        # LevelDB ends a scan at a damaged block without a word: what has tables is not empty, whatever it shows.
        # And what has once been read without being verified is not verified later.
        with db.iterator(include_value=False, verify_checksums=True) as keys:
            empty = next(keys, None) is None and not db.approximate_size(layout.BEFORE_ALL, layout.AFTER_ALL)
        if empty:
            db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT), sync=True)
        layout.check_format(db.get(layout.FORMAT_KEY, verify_checksums=True), str(path))
        if db.get(layout.IDENTITY_KEY, verify_checksums=True) is None:
            db.put(layout.IDENTITY_KEY, os.urandom(layout.IDENTITY_BYTES), sync=True)
    except (DatabaseError, plyvel.Error) as error:
        db.close()
        if isinstance(error, plyvel.Error):
            raise unusable(path, error) from error
        raise
    return db


def make_private(path: Path) -> None:
    """Make a directory for a database, for its owner alone; one that is there and empty becomes so.

    What a database holds are people's addresses.

    Raises:
        OperatorError: there is no database in it, but something else: it may be one that others need to read.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (path / "CURRENT").exists():
        files.check_own(path)
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o700)


def _open(path: Path) -> Any:
    # Where there is little room LevelDB has to get by with it: to merge all that its buffers have become, up to twelve
    # of them, it needs as much again, and that has to fit into what is kept free.
    write_buffer = max(MIN_WRITE_BUFFER, min(MAX_WRITE_BUFFER, shutil.disk_usage(path).free // 256))
    return plyvel.DB(str(path), create_if_missing=True, write_buffer_size=write_buffer, **_OPTIONS)


def open_sound(path: Path, load: Callable[[Any], T], *, start_empty: bool = False) -> tuple[Any, T]:
    """Open a directory, or make it, and load what is kept in memory; the database, and what `load` has made of it.

    `load` raises what LevelDB does or DamagedListing for a damaged one, which `start_empty` moves aside to begin anew.

    Raises:
        DatabaseError: it cannot be used; says why.
    """
    try:
        db = open_leveldb(path)
        try:
            return db, load(db)
        except BaseException as error:
            db.close()
            if isinstance(error, plyvel.Error | DamagedListing):
                raise unusable(path, error) from error
            raise
    except DamagedDatabase as error:
        if not start_empty:
            raise
        log.error("%s; it is kept in %s, and the service starts empty", error, set_aside(path))
        return open_sound(path, load)


class Snapshot:
    """A snapshot of a database of which every read is verified.

    Otherwise LevelDB hands out what a damaged block says, or does not find what is in it.
    """

    __slots__ = ("close", "get", "iterator", "raw_iterator")

    def __init__(self, db: Any) -> None:
        snapshot = db.snapshot()
        self.get = functools.partial(snapshot.get, verify_checksums=True)
        self.iterator = functools.partial(snapshot.iterator, verify_checksums=True)
        self.raw_iterator = functools.partial(snapshot.raw_iterator, verify_checksums=True)
        self.close = snapshot.close


class View:
    """A snapshot for the current turn of the event loop. Reading it later raises RuntimeError."""

    __slots__ = ("get", "iterator", "raw_iterator")

    def __init__(self, snapshot: Snapshot) -> None:
        self.get: Callable[..., Any] = snapshot.get
        self.iterator: Callable[..., Any] = snapshot.iterator
        self.raw_iterator: Callable[..., Any] = snapshot.raw_iterator

    def expire(self) -> None:
        """End the turn."""
        self.get = self.iterator = self.raw_iterator = _expired


def _expired(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a view of the database was used after an await")


def unusable(path: Path, error: Exception) -> DatabaseError:
    """What to tell the operator about a directory that cannot be opened."""
    said = reason(error)
    # A table that has lost its content cannot be mapped into memory.
    emptied = isinstance(error, plyvel.IOError) and ".ldb: Invalid argument" in said
    if emptied or isinstance(error, plyvel.CorruptionError | DamagedListing):
        return DamagedDatabase(
            f"the database in {path} is damaged ({said}); stop the server and move the directory away, or serve with "
            "--start-empty-if-damaged"
        )
    return DatabaseError(f"cannot open the database in {path}: {said}; mend that, or choose another --data-dir")


def taken(path: Path) -> DatabaseError:
    """What to tell the operator about a directory that another process has."""
    return DatabaseError(f"{path} is in use by another process; stop it, or choose another --data-dir")


def reason(error: Exception) -> str:
    """LevelDB's message, which plyvel hands over as bytes; or what any other error says."""
    message = error.args[0] if error.args and isinstance(error.args[0], bytes) else None
    return message.decode(errors="replace") if message is not None else str(error)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A database that is there, for as long as the block lasts. It still belongs to its owner then.

    Raises:
        DatabaseError: there is none, it is in use, or it cannot be opened.
    """
    if not exists(path):
        raise DatabaseError(f"there is no database in {path}; name its directory with --data-dir")
    if in_use(path):
        raise taken(path)
    with files.owned(path), contextlib.closing(open_leveldb(path)) as db:
        yield db


def exists(path: Path) -> bool:
    """Whether there is a database in a directory, or the remains of one."""
    return (path / "CURRENT").exists() or damage(path) is not None


def in_use(path: Path) -> bool:
    """Whether another process has the database open.

    It is not disturbed: LevelDB itself renames the log of whoever has the database before it looks at the lock. Not
    for a process that has it open itself, which would lose its lock.
    """
    try:
        with (path / "LOCK").open("r+b") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unusable(path, error) from error
    return False


def set_aside(path: Path) -> Path:
    """Move a directory that nobody uses out of the way; returns where it is now: beside, with the time in its name.

    Raises:
        DatabaseError: it is in use, or cannot be moved.
    """
    if in_use(path):
        raise taken(path)
    path = path.resolve()
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    try:
        path.rename(aside)
    except OSError as error:
        raise DatabaseError(f"cannot move {path} to {aside}: {error.strerror}; move it or its files away") from error
    files.remove_ballast(aside)
    files.sync(path.parent)
    return aside


def compact(db: Any) -> None:
    """Give the space of deleted entries back to the disk; as `Database.compact`, but nobody else uses the database."""
    db.compact_range(start=layout.AFTER_ALL, stop=layout.AFTER_ALL)
    for key in (layout.BEFORE_ALL, layout.AFTER_ALL):
        db.delete(key)
    db.compact_range(start=layout.BEFORE_ALL, stop=layout.AFTER_ALL)


def damage(path: Path) -> str | None:
    """Return what is wrong with a directory that LevelDB must not open; None if nothing is, or without a database.

    LevelDB would abort the process because of some damage, and delete files because of other.
    """
    if not (path / "CURRENT").exists() and [*path.glob("[0-9]*.ldb"), *path.glob("[0-9]*.log")]:
        return "there are tables or logs, but no CURRENT"  # LevelDB would begin anew and delete them
    wrong = next(filter(_footer_is_wrong, path.glob("[0-9]*.ldb")), None)
    return None if wrong is None else f"{wrong.name} does not end as a table does"


def _footer_is_wrong(table: Path) -> bool:
    with table.open("rb") as file:
        blocks_bytes = file.seek(0, 2) - _FOOTER_BYTES
        file.seek(max(0, blocks_bytes))
        footer = file.read()
    if not footer.endswith(_MAGIC):
        # It was not finished and is not in use, or LevelDB says what is wrong.
        return False
    numbers = _varints(footer[: -len(_MAGIC)])
    places = zip(numbers[0:4:2], numbers[1:4:2], strict=False)
    return any(offset + length + _TRAILER_BYTES > blocks_bytes for offset, length in places)


def _varints(data: bytes) -> list[int]:
    """Whole numbers of 7 bits a byte, the lowest first; the top bit says that there are more."""
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers
