"""One LevelDB directory: opened, read through one view, written in groups by one thread, reopened after an error.

Everything here runs on the event loop but the thread's own functions. A commit is asked for on the loop, written
with all others that came while the thread was busy (one synced batch under `durability = fsync`), and confirmed on
the loop. Reads go through `view`, a snapshot taken after the last confirmed group: nobody sees what is not yet
durable, and what is kept in memory is never ahead of the database or behind it. A failed write ends the service until
it has been closed and opened again: LevelDB can lose what is written after one, also when that returns normally.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plyvel

from . import layout, tables
from .changes import Change
from .errors import DamagedListing, DatabaseError, Unavailable

log = logging.getLogger(__name__)

REOPEN_PAUSE_S = 0.5
_OPTIONS: dict[str, Any] = {
    "paranoid_checks": True,
    "bloom_filter_bits": 10,
    "write_buffer_size": 16 << 20,
    "lru_cache_size": 32 << 20,
    "max_open_files": 500,
}

Settled = Callable[[bool], None]


class _Group:
    """Changes that share one write."""

    def __init__(self, db: Any, sync: bool) -> None:
        self.batch = db.write_batch(sync=sync)
        self.changes: list[tuple[Settled, asyncio.Future[None]]] = []


def open_leveldb(path: Path) -> Any:
    """Open a directory, or make it, and check that it holds our format.

    Raises:
        DatabaseError: it is taken, damaged, not writable, not ours or of another format; says which.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if damage := tables.damage(path):
            raise plyvel.CorruptionError(damage)
        db = plyvel.DB(str(path), create_if_missing=True, **_OPTIONS)
    except (OSError, plyvel.Error) as error:
        reason = _reason(error)
        if "lock" in reason.lower() and ("held" in reason or "unavailable" in reason):
            in_use = f"{path} is in use by another process; stop it, or choose another --data-dir"
            raise DatabaseError(in_use) from error
        raise _unusable(path, error) from error
    try:
        # LevelDB ends a scan at a damaged block without a word: what has tables is not empty, whatever it shows.
        # And what has once been read without being verified is not verified later.
        with db.iterator(include_value=False, verify_checksums=True) as keys:
            empty = next(keys, None) is None and not db.approximate_size(layout.BEFORE_ALL, layout.AFTER_ALL)
        if empty:
            db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT), sync=True)
        layout.check_format(db.get(layout.FORMAT_KEY, verify_checksums=True), str(path))
    except (DatabaseError, plyvel.Error) as error:
        db.close()
        if isinstance(error, plyvel.Error):
            raise _unusable(path, error) from error
        raise
    return db


def _unusable(path: Path, error: Exception) -> DatabaseError:
    if isinstance(error, plyvel.CorruptionError | DamagedListing):
        return DatabaseError(
            f"the database in {path} is damaged ({_reason(error)}); move the directory away to start empty, "
            "or bring back a copy of it"
        )
    return DatabaseError(
        f"cannot open the database in {path}: {_reason(error)}; mend that, or choose another --data-dir"
    )


def _reason(error: Exception) -> str:
    """LevelDB's message; plyvel hands it over as bytes."""
    message = error.args[0] if error.args and isinstance(error.args[0], bytes) else None
    return message.decode(errors="replace") if message is not None else str(error)


class Database:
    """A LevelDB directory in use by this process.

    Args:
        path: the directory; made if missing.
        sync: whether a confirmed change is on disk (`fsync`) or only with the operating system (`os`).
        load: called with each newly opened database, in the thread that opened it; what it returns is handed to
            `loaded`, on the loop, before anyone reads the database.
        loaded: see `load`.
    """

    def __init__(self, path: Path, *, sync: bool, load: Callable[[Any], Any], loaded: Callable[[Any], None]) -> None:
        self._path = path
        self._sync = sync
        self._load = load
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="leveldb-writer", daemon=True)
        self._compacting = threading.Lock()
        self._closing = threading.Event()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._db, found = self._open()
        loaded(found)
        self._snapshot: Any = self._db.snapshot()
        self._group = _Group(self._db, sync)
        self._writing = False
        self._thread.start()

    @property
    def view(self) -> Any:
        """A snapshot of all that is committed; good until the next `await`.

        Raises:
            Unavailable: the database is being reopened, or closed.
        """
        if self._snapshot is None:
            raise Unavailable("the database is being reopened")
        return self._snapshot

    def commit(self, change: Change, settled: Settled) -> "asyncio.Future[None]":
        """Write a change, together with others.

        Args:
            change: written whole or not at all.
            settled: called on the loop, once, before whoever waits goes on: with True when the change is committed,
                with False when it failed and may or may not be found after the reopening.

        Returns:
            A future that is done once the change is committed, or fails with Unavailable.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._snapshot is None or self._closing.is_set():
            settled(False)
            waiter.set_exception(Unavailable("the database is being reopened or closed"))
            return waiter
        # A batch of its own first: if one of its parts is refused, nothing of it reaches the others'.
        batch = self._db.write_batch()
        try:
            for key in change.deletes:
                batch.delete(key)
            for key, value in change.puts:
                batch.put(key, value)
        except BaseException:
            settled(False)
            raise
        self._group.batch.append(batch)
        self._group.changes.append((settled, waiter))
        if not self._writing:
            self._writing = True
            self._loop.call_soon(self._write_group)  # later in this turn of the loop, for all that it brings
        return waiter

    async def compact(self) -> None:
        """Give the space of deleted entries back to the disk. Reads and writes go on meanwhile.

        Raises:
            Unavailable: the database is being reopened, or closed.
        """
        # LevelDB merges each level into the next and leaves the last as it is: what was written and deleted in memory
        # would stay for ever. So memory becomes a table first, and then one that spans all goes down the levels.
        await asyncio.to_thread(self._compact, layout.AFTER_ALL)
        await self.commit(Change([], [layout.BEFORE_ALL, layout.AFTER_ALL]), lambda committed: None)
        await asyncio.to_thread(self._compact, layout.BEFORE_ALL)
        await asyncio.to_thread(self._compact, layout.AFTER_ALL)  # deletes the files that readers held until now

    async def close(self) -> None:
        """Write what was asked for, then close. Later commits fail; calling again waits for the same end."""
        if not self._closing.is_set():
            self._closing.set()
            if not self._writing:
                self._stop()
        await asyncio.shield(self._closed)

    def size_bytes(self) -> int:
        """How much the directory holds, by its files."""
        total = 0
        for file in self._path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # LevelDB deletes files in a thread of its own
                total += file.stat().st_size
        return total

    # On the loop
    def _write_group(self) -> None:
        group, self._group = self._group, _Group(self._db, self._sync)
        self._jobs.put(lambda: self._write(group))

    def _written(self, group: _Group, snapshot: Any) -> None:
        self._show(snapshot)
        for settled, _ in group.changes:
            settled(True)
        for _, waiter in group.changes:
            if not waiter.done():
                waiter.set_result(None)
        if self._group.changes:
            self._write_group()
        else:
            self._writing = False
            if self._closing.is_set():
                self._stop()

    def _failed(self, group: _Group, error: Exception) -> None:
        log.error("a write to %s failed (%s): refusing requests until it is open again", self._path, _reason(error))
        self._show(None)
        for failed in (group, self._group):
            for settled, _ in failed.changes:
                settled(False)
            for _, waiter in failed.changes:
                if not waiter.done():
                    waiter.set_exception(Unavailable("a write failed"))
        self._jobs.put(self._reopen)

    def _reopened(self, db: Any, loaded: Any) -> None:
        log.warning("%s is open again", self._path)
        self._db = db
        self._loaded(loaded)
        self._show(db.snapshot())
        self._group = _Group(db, self._sync)
        self._writing = False
        if self._closing.is_set():
            self._stop()

    def _show(self, snapshot: Any) -> None:
        # Not left to the last reference: whoever reads or frees a snapshot of a database that the thread is closing
        # crashes the process.
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = snapshot

    def _stop(self) -> None:
        self._show(None)
        self._jobs.put(None)

    # In the writer's thread
    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
        with self._compacting:
            self._db.close()
        self._loop.call_soon_threadsafe(self._closed.set_result, None)

    def _open(self) -> tuple[Any, Any]:
        db = open_leveldb(self._path)
        try:
            return db, self._load(db)
        except BaseException as error:
            db.close()
            if isinstance(error, plyvel.Error | DamagedListing):
                raise _unusable(self._path, error) from error
            raise

    def _write(self, group: _Group) -> None:
        try:
            group.batch.write()
            snapshot = self._db.snapshot()
        except Exception as error:
            self._loop.call_soon_threadsafe(self._failed, group, error)
        else:
            self._loop.call_soon_threadsafe(self._written, group, snapshot)

    def _reopen(self) -> None:
        with self._compacting:
            self._db.close()
        complaint = ""
        while True:
            try:
                db, loaded = self._open()
            except Exception as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("still refusing requests: %s", complaint)
                if self._closing.wait(REOPEN_PAUSE_S):
                    self._jobs.put(None)
                    return
            else:
                self._loop.call_soon_threadsafe(self._reopened, db, loaded)
                return

    def _compact(self, start: bytes) -> None:
        with self._compacting:
            if not self._db.closed and not self._closing.is_set():
                # Both ends are named: plyvel takes a missing one for the empty key, and nothing lies before that.
                self._db.compact_range(start=start, stop=layout.AFTER_ALL)
