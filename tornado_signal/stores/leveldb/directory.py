"""The directory of a database: opening, checks for damage and for other users, and moving it aside."""

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from ...errors import DamagedDatabase, DamagedListing, DatabaseError, DatabaseInUse
from ...system.owner import check_owner
from . import files, layout
from .binding import plyvel

T = TypeVar("T")

NO_SPACE: Final = "No space left"  # in LevelDB's errors, which have no number

MIN_WRITE_BUFFER = 1 << 19
MAX_WRITE_BUFFER = 16 << 20
# LevelDB keeps blocks of deleted tables until its cache is full, so every server fills its cache. A small one is
# enough, because the kernel also caches the tables: reading a block from there takes a few microseconds.
CACHE_BYTES = 4 << 20

# The footer of a table: offset and length of two blocks as varints, padding, and a magic number. It is the only part
# without a checksum. LevelDB allocates a buffer of a length that it reads there, and aborts if the length is huge.
_FOOTER_BYTES: Final = 48
_MAGIC: Final = bytes.fromhex("57fb808b247547db")
_TRAILER_BYTES: Final = 5  # after each block

log = logging.getLogger(__name__)

_OPTIONS: dict[str, Any] = {
    "paranoid_checks": True,
    "bloom_filter_bits": 10,
    "lru_cache_size": CACHE_BYTES,
    "max_open_files": 500,
}


def open_leveldb(path: Path) -> Any:
    """Open a directory, creating it if it is missing. Raise a DatabaseError that says why it cannot be used."""
    try:
        make_private(path)
        files.check_regular(path)
        if problem := damage(path):
            raise plyvel.CorruptionError(problem)
        try:
            db = _open(path)
        except plyvel.IOError as error:
            # Opening writes before it deletes.
            if NO_SPACE not in reason(error) or not files.remove_ballast(path):
                raise
            log.warning("the disk of %s is full: deleted the ballast", path)
            db = _open(path)
    except (OSError, plyvel.Error) as error:
        message = reason(error)
        if "lock" in message.lower() and ("held" in message or "unavailable" in message):
            raise in_use_error(path) from error
        raise unusable(path, error) from error
    try:
        # LevelDB silently ends a scan at a damaged block, so a database with tables can look empty. A block that was
        # read without verification is never verified later.
        with db.iterator(include_value=False, verify_checksums=True) as keys:
            empty = next(keys, None) is None and not db.approximate_size(layout.BEFORE_ALL, layout.AFTER_ALL)
        if empty:
            db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT), sync=True)
        if layout.check_format(db.get(layout.FORMAT_KEY, verify_checksums=True), str(path)) == layout.FORMAT_1:
            _upgrade(db)
        identity = db.get(layout.IDENTITY_KEY, b"", verify_checksums=True)
        missing = layout.IDENTITY_BYTES + layout.SECRET_BYTES - len(identity)
        if missing:  # a new store, or one of an early version without a secret
            db.put(layout.IDENTITY_KEY, identity + os.urandom(missing), sync=True)
    except (DatabaseError, plyvel.Error) as error:
        db.close()
        if isinstance(error, plyvel.Error):
            raise unusable(path, error) from error
        raise
    return db


def _upgrade(db: Any) -> None:
    """Rewrite a database of format 1. After an interruption it is repeated from the start."""
    for table in (b"E", b"G", b"H", b"L", b"Mf"):
        with db.iterator(prefix=table, verify_checksums=True) as entries, db.write_batch(sync=True) as batch:
            for key, value in entries:
                if table == b"L":
                    batch.put(key, value[: layout.CODE_BYTES])  # without the expiry
                else:
                    batch.delete(key)
                if table == b"H":
                    batch.put(key[1:] + layout.LEASES, value)
    db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT), sync=True)


def make_private(path: Path) -> None:
    """Create a directory that only its owner can read, or restrict an existing empty one.

    A database holds people's addresses. A directory of other files is refused: other users may need to read it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_owner(path)
    if not (path / "CURRENT").exists():
        files.check_own(path)
        if path.stat().st_uid == os.geteuid():
            path.chmod(0o700)


def _open(path: Path) -> Any:
    # On a small disk the buffers must be small. Merging the tables of up to twelve of them takes as much space again,
    # which has to fit into the reserve.
    write_buffer = max(MIN_WRITE_BUFFER, min(MAX_WRITE_BUFFER, shutil.disk_usage(path).free // 256))
    return plyvel.DB(str(path), create_if_missing=True, write_buffer_size=write_buffer, **_OPTIONS)


def open_sound(path: Path, load: Callable[[Any], T], *, start_empty: bool = False) -> tuple[Any, T]:
    """Open or create a directory and load its content. Return the database and the result of `load`.

    For a damaged database `load` raises LevelDB's errors or DamagedListing. `start_empty` then moves it aside and
    starts with an empty one.
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
        log.error("%s; it is kept in %s, and the service starts empty", error.damage, set_aside(path))
        return open_sound(path, load)


class Snapshot:
    """A snapshot of a database that verifies every read.

    Otherwise LevelDB returns the content of a damaged block, or misses entries in it.
    """

    __slots__ = ("_snapshot", "close", "get", "iterator", "raw_iterator")

    def __init__(self, db: Any) -> None:
        self._snapshot = db.snapshot()
        self.close = self._snapshot.close

    def __getattr__(self, name: str) -> Any:
        """Make a method that reads. Most snapshots are never read, because each write makes another one."""
        method = functools.partial(getattr(self._snapshot, name), verify_checksums=True)
        setattr(self, name, method)
        return method


def unusable(path: Path, error: Exception) -> DatabaseError:
    message = reason(error)
    # A table that has lost its content cannot be mapped into memory.
    emptied = isinstance(error, plyvel.IOError) and ".ldb: Invalid argument" in message
    if emptied or isinstance(error, plyvel.CorruptionError | DamagedListing):
        return DamagedDatabase(f"the database in {path} is damaged ({message})")
    where = f"cannot open the database in {path}"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return DatabaseError(f"{where}: a file is in the way; name a directory with --data-dir")
    return DatabaseError(f"{where}: {message}; fix that, or choose another --data-dir")


def in_use_error(path: Path) -> DatabaseInUse:
    return DatabaseInUse(f"{path} is in use by another process; stop it, or choose another --data-dir")


def reason(error: Exception) -> str:
    """Return the message of an error. plyvel passes LevelDB's messages as bytes."""
    message = error.args[0] if error.args and isinstance(error.args[0], bytes) else None
    return message.decode(errors="replace") if message is not None else str(error)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open an existing database for the duration of the block."""
    check_unused(path)
    if not exists(path):
        raise DatabaseError(f"there is no database in {path}; name its directory with --data-dir")
    with contextlib.closing(open_leveldb(path)) as db:
        yield db


def exists(path: Path) -> bool:
    return (path / "CURRENT").exists() or damage(path) is not None


def check_unused(path: Path) -> None:
    """Check that no other process uses a directory, and that it can be opened without following links.

    The process must not have the database open, see `in_use`.
    """
    try:
        files.check_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unusable(path, error) from error
    if in_use(path):
        raise in_use_error(path)


def in_use(path: Path) -> bool:
    """Return whether another process has the database open, without disturbing that process.

    LevelDB itself would rename the log of the other process before it checks the lock. A process that has the database
    open must not call this, because it would lose its own lock.
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
    """Rename an unused directory. Return its new path, which is next to the old one and contains the time."""
    if in_use(path):
        raise in_use_error(path)
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


def damage(path: Path) -> str | None:
    """Return the damage of a directory that LevelDB must not open, or None.

    Some damage would make LevelDB abort the process, and some would make it delete files.
    """
    if not (path / "CURRENT").exists() and [*path.glob("[0-9]*.ldb"), *path.glob("[0-9]*.log")]:
        return "there are tables or logs, but no CURRENT"  # LevelDB would start over and delete them
    wrong = next(filter(footer_is_wrong, path.glob("[0-9]*.ldb")), None)
    return None if wrong is None else f"{wrong.name} does not end as a table does"


def footer_is_wrong(table: Path) -> bool:
    """Return whether the footer of a table points outside the table, so that LevelDB would abort."""
    with table.open("rb") as file:
        blocks_bytes = file.seek(0, 2) - _FOOTER_BYTES
        file.seek(max(0, blocks_bytes))
        footer = file.read()
    if not footer.endswith(_MAGIC):
        # The table is unfinished and unused, or LevelDB reports the problem.
        return False
    numbers = _varints(footer[: -len(_MAGIC)])
    places = zip(numbers[0:4:2], numbers[1:4:2], strict=False)
    return any(offset + length + _TRAILER_BYTES > blocks_bytes for offset, length in places)


def _varints(data: bytes) -> list[int]:
    """Return the varints in the data: 7 bits per byte, lowest first. The top bit marks a continuation."""
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers
