"""Repair of a damaged directory: a new database with the sessions that are still whole.

The damaged directory is only read, and then moved aside.
"""

import contextlib
import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import DamagedDatabase, DatabaseError
from ...session import Reason, Session
from ...system.clock import Clock
from . import directory, files, layout
from .binding import plyvel
from .check import flaws
from .layout import StoreCounters

# LevelDB can abort the process. Its repair does not verify checksums of logs, but opening them does.
_LEVELDB_REPAIR: Final = f"""
import os, pathlib, sys
import {plyvel.__name__} as plyvel
logs, tables = map(pathlib.Path, sys.argv[1:])
plyvel.DB(str(logs), paranoid_checks=False).close()
number = max((int(table.stem) for table in tables.glob("*.ldb")), default=0)
for number, table in enumerate(sorted(logs.glob("*.ldb")), number + 1):
    os.rename(table, tables / f"{{number:06}}.ldb")
plyvel.repair_db(str(tables), paranoid_checks=True)
"""
_LOSS: Final = re.compile(
    r"\S+ \S+ (?:\(ignoring error\) )?(?:\S+/)?(.*(?:dropping|ignoring|Corruption|Dropped|missing files).*)"
)
_GARBAGE: Final = (ValueError, IndexError, struct.error)  # of entries with a right checksum and wrong content


class Repaired(NamedTuple):
    """Result of a repair.

    Attributes:
        kept: the number of whole sessions.
        lost: the least number of live sessions that are lost.
        reports: sentences about what could not be read.
        aside: where the damaged directory is now.
    """

    kept: int
    lost: int
    reports: list[str]
    aside: Path


def repair(path: Path) -> Repaired | None:
    """Replace a damaged database by one with its whole sessions. Return None for a sound one, which stays unchanged.

    The process must not have the database open.

    Raises:
        DatabaseError: it does not exist, is in use, or cannot be repaired. Then it stays unchanged.
    """
    with contextlib.suppress(DamagedDatabase), directory.opened(path) as db:
        if not flaws(db):
            return None
    path = path.resolve()
    files.remove_ballast(path)
    # A copy, what LevelDB makes of it, and the new database. LevelDB would leave out what has no space.
    needed = 3 * files.size_bytes(path) + 2 * directory.MIN_WRITE_BUFFER
    if shutil.disk_usage(path.parent).free < needed:
        raise DatabaseError(f"the repair of {path} needs {needed} bytes of disk space in {path.parent}; free them")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f"{path.name}.repair-", dir=path.parent) as scratch,
            directory.locked(path),
        ):
            new = Path(scratch) / "new"
            kept, lost, reports = _rebuild(path, Path(scratch), new)
            if os.geteuid() == 0:
                os.chown(new, path.stat().st_uid, path.stat().st_gid)
            with files.owned(new):
                files.sync(new)
            aside = directory.set_aside(path)
            new.rename(path)
            files.sync(path.parent)
    except (OSError, plyvel.Error) as error:
        raise DatabaseError(
            f"cannot repair {path}: {directory.reason(error)}; move the directory away to start empty"
        ) from error
    return Repaired(kept, lost, reports, aside)


def _rebuild(path: Path, scratch: Path, new: Path) -> tuple[int, int, list[str]]:
    """Write a new database from the files of a damaged one. Return the counts and reports of `Repaired`."""
    tables = scratch / "tables"
    reports = _read_leniently(path, scratch / "logs", tables)
    with plyvel.DB(str(tables), paranoid_checks=True) as damaged:
        format_value = damaged.get(layout.FORMAT_KEY)
        if format_value is not None:
            layout.check_format(format_value, str(path))
        with contextlib.closing(directory.open_leveldb(new)) as db:
            salvage = _Salvage(damaged)
            entries = iter(salvage)
            while batch := list(itertools.islice(entries, 1000)):
                with db.write_batch() as writing:
                    for key, value in batch:
                        writing.put(key, value)
            if not salvage.kept and format_value is None:
                raise DatabaseError(
                    f"cannot repair {path}: no session can be read; move the directory away to start empty"
                )
            # The new identity makes all cursors unknown, so that clients read the listings again.
            identity = damaged.get(layout.IDENTITY_KEY, b"")[layout.IDENTITY_BYTES :]
            if len(identity) == layout.SECRET_BYTES:
                db.put(layout.IDENTITY_KEY, os.urandom(layout.IDENTITY_BYTES) + identity)
            db.put(layout.COUNTERS_KEY, layout.pack_counters(salvage.counters), sync=True)
            if found := flaws(db):
                raise DatabaseError(f"cannot repair {path}: {found[0]}; move the directory away to start empty")
    return salvage.kept, salvage.lost(), reports


def _read_leniently(path: Path, logs: Path, tables: Path) -> list[str]:
    """Create a database of all entries with a right checksum, from the logs and tables of a damaged one.

    Args:
        path: the damaged directory. Its CURRENT and MANIFEST are not needed.
        logs: where to make a database of the logs.
        tables: where to make the database.

    Returns:
        LevelDB's sentences about what it could not read.
    """
    reports = []
    plyvel.DB(str(logs), create_if_missing=True).close()
    for log in logs.glob("*.log"):
        log.unlink()
    tables.mkdir()
    for log in path.glob("[0-9]*.log"):
        # LevelDB reads only logs with a higher number than its own files.
        shutil.copyfile(log, logs / f"{int(log.stem) + 1000:06}.log")
    for table in path.glob("[0-9]*.ldb"):
        if directory.footer_is_wrong(table):
            reports.append(f"{table.name}: ignoring the table, which does not end as a table does")
        else:
            shutil.copyfile(table, tables / table.name)
    ended = subprocess.run(
        [sys.executable, "-P", "-c", _LEVELDB_REPAIR, str(logs), str(tables)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode:
        reason = [f"exit status {ended.returncode}", *ended.stderr.splitlines()][-1]
        raise plyvel.Error(f"LevelDB cannot read it ({reason})")
    for place in (logs, tables):
        matches = map(_LOSS.match, (place / "LOG").read_text(errors="replace").splitlines())
        reports += [match[1] for match in matches if match]
    return reports


class _Salvage:
    """The entries of a new database, taken from a damaged one. Iterate over it once.

    It has the whole sessions. Listings, expiries and counters are rebuilt. Removals are only for known cursors, so they
    are left out.

    Args:
        damaged: a database in which entries can be missing, and deleted entries can exist again.

    Attributes:
        kept: the number of whole sessions.
        counters: the counters of the new database, complete after the iteration.
    """

    def __init__(self, damaged: Any) -> None:
        self._damaged = damaged
        self._lost: set[tuple[str, bytes]] = set()
        self._serials: set[int] = set()
        self.kept = 0
        self._before = layout.unpack_counters(damaged.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))
        self.counters = self._before._replace(listed=0)

    def lost(self) -> int:
        """Return the least number of live sessions that are lost."""
        return max(len(self._lost), self._before.listed - self.counters.listed)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        now_ms = max(Clock().now_ms(), self.counters.created_ms)
        removed = self._removed()
        self._lost = set(self._live_names(now_ms))
        with self._damaged.iterator(prefix=layout.SESSIONS) as entries:
            parts = ((*layout.unpack_session_key(key), value) for key, value in entries)
            for name, group in itertools.groupby(parts, key=lambda part: part[:2]):
                session = self._whole(name[1], contents := {part: value for _, _, part, value in group})
                answered = layout.ANSWER in contents
                if session is None or (not answered and (name[1], session.serial) in removed):
                    self._lost.add(name)
                    continue
                self._lost.discard(name)
                yield from self._entries(name[0], session, contents, listed=not answered)

    def _entries(
        self, origin: str, session: Session, contents: dict[bytes, bytes], *, listed: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        self.kept += 1
        self._serials.add(session.serial)
        created_ms, serial, count = self.counters
        self.counters = StoreCounters(max(created_ms, session.created_ms), max(serial, session.serial), count + listed)
        key = layout.pack_session_prefix(origin, session.code)
        yield from ((key + part, value) for part, value in contents.items())
        yield layout.pack_expiry_key(session.expires_ms, key), b""
        if listed:
            yield layout.pack_listing_key(origin, session), layout.pack_listing_value(session)
            leases = self._damaged.get(layout.pack_leases_key(key))
            if leases is not None:
                yield layout.pack_leases_key(key), leases

    def _whole(self, code: bytes, contents: dict[bytes, bytes]) -> Session | None:
        """Return the session of these parts. None if one is missing or of another session with the code."""
        if not contents.keys() >= {layout.HEAD, layout.OFFER}:
            return None
        try:
            session = layout.unpack_head(code, contents[layout.HEAD])
            sent = [layout.unpack_part(part, value) for part, value in contents.items() if part != layout.HEAD]
        except _GARBAGE:
            return None
        numbers = {side: sorted(number for of, number in sent if of is side) for side, _ in sent}
        gapless = all(found == list(range(1, len(found) + 1)) for found in numbers.values())
        return session if gapless and session.serial not in self._serials else None

    def _removed(self) -> set[tuple[bytes, int]]:
        """Return code and serial of the sessions that were answered or withdrawn lately."""
        removals = map(layout.unpack_removal_value, self._damaged.iterator(prefix=layout.REMOVALS, include_key=False))
        return {(code, serial) for code, serial, reason in removals if reason not in (Reason.EXPIRED, None)}

    def _live_names(self, now_ms: int) -> Iterator[tuple[str, bytes]]:
        """Yield origin and code of the sessions that must exist, according to the expiry entries."""
        start, stop = layout.pack_expired_stop(now_ms), layout.EXPIRY + layout.AFTER_KEYS
        for entry in self._damaged.iterator(start=start, stop=stop, include_value=False):
            expired = layout.unpack_expiry_key(entry)[1]
            if expired.startswith(layout.SESSIONS):
                yield layout.unpack_session_key(expired)[:2]
