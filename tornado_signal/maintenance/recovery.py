"""A data directory made anew: from a backup, or from what a damaged one still holds.

The new directory is made beside its place, checked, and moved there by a rename: nothing is half done at any moment.
"""

import contextlib
import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import DamagedBackup, DamagedDatabase, DamagedListing, DatabaseError, OperatorError
from ..stores.leveldb import directory, files, layout, records, tables
from ..stores.leveldb.binding import plyvel
from ..stores.leveldb.check import problems
from ..stores.leveldb.directory import open_leveldb
from ..system.clock import Clock
from .backup import Entry, unpack, verified
from .census import Census
from .salvage import Salvage

FILL_BYTES = 1 << 20
# LevelDB's own repair can end the process that it runs in.
_REPAIR = f"import sys, {plyvel.__name__} as plyvel; plyvel.repair_db(sys.argv[1], paranoid_checks=True)"


def restore(source: Path, path: Path) -> int:
    """Make a data directory, which is empty or missing, from a backup; how many sessions it holds.

    Raises:
        OperatorError: the backup is damaged or cannot be read, or the directory is taken or cannot be written.
    """
    if directory.in_use(path):
        raise DatabaseError(f"{path} is in use by a running server; stop it, or choose another --data-dir")
    if path.exists() and any(path.iterdir()):
        raise DatabaseError(f"{path} is not empty; move it away, or choose another --data-dir")
    path = path.resolve()
    census = Census(Clock().now_ms(), 0)
    with files.scratch(path) as beside:
        made = beside / "data"
        try:
            with source.open("rb") as file, contextlib.closing(open_leveldb(made)) as db:
                fill(db, _counted(verified(file), census))
                file.seek(0)
                if any(one != other for one, other in itertools.zip_longest(unpack(file.read), walk(db))):
                    raise DamagedBackup("what was written cannot be read again")
                if found := flaws(db):
                    raise DamagedBackup(f"its parts do not agree ({found[0]})")
                directory.become_another(db)
            _install(made, path)
        except DamagedBackup as error:
            raise OperatorError(f"{source} is damaged: {error}; nothing was restored, take another backup") from error
        except (OSError, plyvel.Error) as error:
            said = directory.reason(error)
            raise OperatorError(f"cannot restore {source} into {path}: {said}; mend that, and try again") from error
    return census.sessions


def repair(path: Path) -> tuple[Salvage, Path] | None:
    """Save the whole sessions of a damaged directory that is not in use, and keep that as it was.

    Returns:
        What was saved, and where the damaged directory is now, as it was; None for a sound one, which is left alone.

    Raises:
        DatabaseError: nothing can be saved, or something prevents it; nothing has changed then.
    """
    with contextlib.suppress(DamagedDatabase), directory.opened(path) as db:
        if not flaws(db):
            return None
    path = path.resolve()
    # A copy, what LevelDB makes of it, and the new one. LevelDB would only leave out what there is no room for.
    needed = 3 * files.size_bytes(path)
    if shutil.disk_usage(path).free < needed:
        files.remove_ballast(path)
    if shutil.disk_usage(path.parent).free < needed:
        raise DatabaseError(f"cannot repair {path}: that needs {needed} bytes free beside it; make room, and try again")
    with files.scratch(path) as beside:
        copy, made = beside / "copy", beside / "data"
        try:
            copy.mkdir()
            for file in path.iterdir():
                if file.is_file() and file.name != files.BALLAST:
                    shutil.copyfile(file, copy / file.name)
            salvage = _save(copy, made)
            kept = _install(made, path, keep=True)
        except OSError as error:
            raise DatabaseError(f"cannot repair {path}: {error}; mend that, and try again") from error
        except plyvel.Error as error:
            said = directory.reason(error)
            raise DatabaseError(
                f"cannot repair {path}: {said}; it is as it was: move it away to start empty, or to restore a backup"
            ) from error
    return salvage, kept


def walk(db: Any) -> Iterator[Entry]:
    """Every entry of a database, in the order of the keys, verified."""
    with db.iterator(verify_checksums=True, fill_cache=False) as entries:
        yield from entries


def fill(db: Any, entries: Iterable[Entry]) -> None:
    """Put entries into a new database, many at once. They are on the disk after `sync_all` alone."""
    remaining = iter(entries)
    size = FILL_BYTES
    while size >= FILL_BYTES:
        size = 0
        with db.write_batch(transaction=True) as batch:
            for key, value in remaining:
                batch.put(key, value)
                size += len(key) + len(value)
                if size >= FILL_BYTES:
                    break


def flaws(db: Any) -> list[str]:
    """Everything that is wrong with a database; reads all of it."""
    try:
        loaded = records.load(db)
    except (DamagedListing, plyvel.Error) as error:
        return [directory.reason(error)]
    return problems(db, loaded.topics, max(Clock().now_ms(), loaded.counters.created_ms))


def _counted(entries: Iterable[Entry], census: Census) -> Iterator[Entry]:
    """The entries of a backup of this version, counted as they come."""
    for key, value in entries:
        if key == layout.FORMAT_KEY and value != layout.pack_number(layout.FORMAT):
            raise OperatorError("the backup is of another version of tornado-signal; restore it with that version")
        census.add(key, value)
        yield key, value


def _save(copy: Path, made: Path) -> Salvage:
    """Repair a copy of a damaged directory and take over what it holds into a new one."""
    for table in tables.wrong(copy):
        table.unlink()
    done = subprocess.run([sys.executable, "-I", "-c", _REPAIR, str(copy)], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise plyvel.Error(f"LevelDB gives up on it ({said})")
    with plyvel.DB(str(copy), paranoid_checks=True) as damaged, contextlib.closing(open_leveldb(made)) as db:
        found = damaged.get(layout.FORMAT_KEY)
        if found is not None:
            layout.check_format(found, "the directory")
        salvage = Salvage(damaged)
        fill(db, salvage)
        if not salvage.sessions and found is None:
            raise plyvel.Error("nothing of tornado-signal's is left in it")
        directory.become_another(db)
        if wrong := flaws(db):
            raise plyvel.Error(f"what is left of it does not agree ({wrong[0]})")
    return salvage


def _install(made: Path, path: Path, *, keep: bool = False) -> Path:
    """Put a new directory in its place, on the disk and with the owner of what was there; where that is kept."""
    with files.owned(made, path if path.exists() else path.parent):
        files.sync_all(made)
    kept = directory.set_aside(path) if keep else path
    made.rename(path)
    files.sync(path.parent)
    return kept
