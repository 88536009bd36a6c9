"""A data directory made anew: from a backup, or from what a damaged one still holds.

Both are made beside their place, proved sound, and moved there by a rename: nothing is half done at any moment.
"""

import contextlib
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedBackup, DamagedDatabase, DamagedListing, DatabaseError, OperatorError
from ..stores.leveldb import directory, files, layout, records, tables
from ..stores.leveldb.binding import plyvel
from ..stores.leveldb.check import problems
from ..stores.leveldb.directory import open_leveldb
from .backup import Entry, unpack
from .census import Census
from .salvage import Filler, Saved, salvage

# LevelDB's own repair can end the process that it runs in.
_REPAIR = f"import sys, {plyvel.__name__} as plyvel; plyvel.repair_db(sys.argv[1], paranoid_checks=True)"


def now_ms() -> int:
    """The time, Unix milliseconds."""
    return time.time_ns() // 1_000_000


class Repaired(NamedTuple):
    """What became of a damaged directory.

    Attributes:
        saved: how much of it was saved.
        kept: where it is now, as it was.
    """

    saved: Saved
    kept: Path


def restore(source: Path, path: Path) -> int:
    """Make a data directory from a backup.

    Args:
        source: the backup.
        path: the directory; empty, or not there.

    Returns:
        How many sessions it holds.

    Raises:
        OperatorError: the backup is damaged or cannot be read, or the directory is taken or cannot be written.
    """
    must_be_empty(path)
    path = path.resolve()
    with files.scratch(path) as beside:
        made = beside / "data"
        try:
            with source.open("rb") as file, contextlib.closing(open_leveldb(made)) as db:
                sessions = _fill(db, unpack(file.read))
                file.seek(0)
                _prove(db, unpack(file.read))
                directory.become_another(db)
            _finish(made, path if path.exists() else path.parent)
            made.rename(path)
            files.sync(path.parent)
        except DamagedBackup as error:
            raise OperatorError(f"{source} is damaged: {error}; nothing was restored, take another backup") from error
        except (OSError, plyvel.Error) as error:
            said = directory.reason(error)
            raise OperatorError(f"cannot restore {source} into {path}: {said}; mend that, and try again") from error
    return sessions


def must_be_empty(path: Path) -> None:
    """Refuse a directory with anything in it.

    Raises:
        DatabaseError: says what it is.
    """
    if directory.in_use(path):
        raise DatabaseError(f"{path} is in use by a running server; stop it, or choose another --data-dir")
    if path.exists() and any(path.iterdir()):
        raise DatabaseError(f"{path} is not empty; move it away, or choose another --data-dir")


def repair(path: Path) -> Repaired | None:
    """Save the whole sessions of a damaged directory, and keep that as it was.

    Args:
        path: the directory; nobody may have it open.

    Returns:
        What was saved; None for a sound directory, which is left alone.

    Raises:
        DatabaseError: nothing can be saved, or what is in the way of it; nothing has changed then.
    """
    if is_sound(path):
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
            saved = _save(copy, made)
            _finish(made, path)
            kept = directory.set_aside(path)
            made.rename(path)
            files.sync(path.parent)
        except OSError as error:
            raise DatabaseError(f"cannot repair {path}: {error}; mend that, and try again") from error
        except plyvel.Error as error:
            said = directory.reason(error)
            raise DatabaseError(
                f"cannot repair {path}: {said}; it is as it was: move it away to start empty, or to restore a backup"
            ) from error
    return Repaired(saved, kept)


def is_sound(path: Path) -> bool:
    """Whether a directory that nobody has open is free of damage, and all that is in it agrees.

    Raises:
        DatabaseError: it cannot be opened, for another reason.
    """
    try:
        with directory.opened(path) as db:
            return not flaws(db)
    except DamagedDatabase:
        return False


def flaws(db: Any) -> list[str]:
    """Everything that is wrong with a database; reads all of it."""
    try:
        loaded = records.load(db)
    except (DamagedListing, plyvel.Error) as error:
        return [directory.reason(error)]
    return problems(db, loaded.topics, max(now_ms(), loaded.counters.created_ms))


def _fill(db: Any, entries: Iterable[Entry]) -> int:
    """Put the entries of a backup into a new database; returns how many sessions they are."""
    filler, census = Filler(db), Census(now_ms(), 0)
    for key, value in entries:
        if key == layout.FORMAT_KEY and value != layout.pack_number(layout.FORMAT):
            raise OperatorError("the backup is of another version of tornado-signal; restore it with that version")
        census.add(key, value)
        filler.put([(key, value)])
    filler.flush()
    return census.sessions


def _prove(db: Any, entries: Iterable[Entry]) -> None:
    """Hold a restored database against its backup, and against itself."""
    with db.iterator(verify_checksums=True, fill_cache=False) as held:
        if any(one != other for one, other in itertools.zip_longest(entries, held)):
            raise DamagedBackup("what was written cannot be read again")
    if found := flaws(db):
        raise DamagedBackup(f"its parts do not agree ({found[0]})")


def _save(copy: Path, made: Path) -> Saved:
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
        saved = salvage(damaged, db)
        if not saved.sessions and found is None:
            raise plyvel.Error("nothing of tornado-signal's is left in it")
        directory.become_another(db)
        if wrong := flaws(db):
            raise plyvel.Error(f"what is left of it does not agree ({wrong[0]})")
    return saved


def _finish(made: Path, owner: Path) -> None:
    """Have a new directory on the disk, as the property of whom another directory belongs to."""
    with files.owned(made, owner):
        files.sync_all(made)
