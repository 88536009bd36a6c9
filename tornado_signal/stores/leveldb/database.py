"""One LevelDB directory: reads from a snapshot, group commits in one thread, and reopening after errors.

Everything runs on the event loop, except the functions of the writer's thread. A change is submitted on the loop,
written in one batch with other waiting changes (synced with `durability = fsync`), and confirmed on the loop. Reads use
a snapshot taken after the last confirmed group. So readers only see durable data, and the sessions in memory match the
database. After a failed write the database is closed and reopened, because LevelDB can silently lose later
writes.
"""

import asyncio
import contextlib
import functools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...errors import Unavailable
from ...metrics import WORK_S, Family, Histogram
from ...system.loop import guarded
from . import directory, files, layout
from .binding import plyvel
from .directory import NO_SPACE, Snapshot, reason
from .space import Space

log = logging.getLogger(__name__)

# A group costs as much as many changes, because of the sync and of the thread switch. So two groups start at least
# GATHER_S apart, unless enough changes wait already. Gathering does not help a single client with sequential requests:
# after some groups of one change in succession only one of several such groups waits.
GATHER_S = 0.005
GATHER_CHANGES = 16
GATHER_ALONE = 2
GATHER_AGAIN = 16
MEASURE_S = 1.0  # the maximum time between two measurements of the disk
REOPEN_PAUSE_S = 0.5
REOPEN_SHARE = 10  # ratio of the pause after a failed attempt to its duration
SLICE_BYTES = 16 << 20  # of a compaction, which takes about a second
MAX_KEY_BYTES = 600  # of a key as far as it matters for a compaction; an origin has up to 512 characters
FAILED = "the database failed"
_CHANGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)  # in a group, for its metric

P = ParamSpec("P")
T = TypeVar("T")
OnCommitted = Callable[[bool], None]


@dataclass(slots=True, eq=False)  # made in half the time of a NamedTuple, for each change
class Change:
    """One atomic change: first the deletes, then the puts."""

    puts: list[tuple[bytes, bytes]]  # keys with their new values
    deletes: list[bytes]


class Group:
    """Changes that share one write."""

    def __init__(self, db: Any, sync: bool) -> None:
        # For each change, the function to call and the future to set at its end.
        self.changes: list[tuple[OnCommitted, asyncio.Future[None]]] = []
        self.took_s = 0.0  # the duration of the write with its sync
        self.size = 0  # the size of all keys and values in bytes
        self._db = db
        self._batch = db.write_batch(sync=sync)

    @functools.cached_property
    def _next(self) -> Any:
        """A batch for one further change, which is appended when it is complete."""
        return self._db.write_batch()

    def add(self, change: Change, on_committed: OnCommitted, waiter: "asyncio.Future[None]") -> int:
        """Add a change and return its size. If LevelDB refuses a part of it, the group contains nothing of it."""
        first = not self.changes  # and most often the only one
        batch = self._batch if first else self._next
        size = 0
        try:
            for key in change.deletes:
                batch.delete(key)
                size += len(key)
            for key, value in change.puts:
                batch.put(key, value)
                size += len(key) + len(value)
        except BaseException:
            batch.clear()
            raise
        if not first:
            self._batch.append(batch)
            batch.clear()
        self.size += size
        self.changes.append((on_committed, waiter))
        return size

    def write(self) -> None:
        """Write the changes, in any thread."""
        began_s = time.perf_counter()
        self._batch.write()
        self.took_s = time.perf_counter() - began_s


class DatabaseMetrics:
    """Metrics of the LevelDB engine. `families` says what each of them counts."""

    def __init__(self) -> None:
        self.writes, self.sweeps, self.compactions = Histogram(WORK_S), Histogram(WORK_S), Histogram(WORK_S)
        self.changes = Histogram(_CHANGES)
        self.failed = self.reopened = 0

    def families(self) -> Iterator[Family]:
        meaning = "How long writes took, each with its sync if there is one."
        yield Family("histogram", "store_write_duration_seconds", meaning, self.writes)
        yield Family("histogram", "store_write_changes", "How many changes shared a write.", self.changes)
        yield Family("counter", "store_failed_writes", "Writes that did not work.", self.failed)
        yield Family("counter", "store_reopenings", "How often the store was opened again.", self.reopened)
        meaning = "How long it took to look for what has expired, and to delete it."
        yield Family("histogram", "sweep_duration_seconds", meaning, self.sweeps)
        yield Family("histogram", "compaction_duration_seconds", "How long compactions took.", self.compactions)


class Database:
    """A LevelDB directory that this process uses. `sync` says whether a confirmed change is on disk.

    `load` is called with each newly opened database, in the thread that opened it. `loaded` is called on the loop with
    the result, before the first read. `start_empty` moves a damaged directory aside at any time, and starts with an
    empty one.
    """

    def __init__(
        self,
        path: Path,
        *,
        sync: bool,
        load: Callable[[Any], Any],
        loaded: Callable[[Any], None],
        start_empty: bool = False,
        space: Space,
    ) -> None:
        self.space = space  # the disk space
        self.metrics = DatabaseMetrics()
        self._path = path
        self._sync = sync
        self._loaded = loaded
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="leveldb-writer", daemon=True)
        self._compacting = threading.Lock()
        self._closing = threading.Event()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._open_sound = functools.partial(directory.open_sound, path, load, start_empty=start_empty)
        self._db: Any = None
        self._snapshot: Snapshot | None = None
        self._group: Group
        self._writing = False
        self._pause: asyncio.Handle | None = None  # until the next group is sent
        self._sent_s = -math.inf  # not 0: the clock of the loop starts with the machine
        self._single_changes = 0  # successive groups with one change
        self._measuring: asyncio.TimerHandle

    async def open(self) -> None:
        """Open the directory and load the state, in a thread."""
        self._db, state = await asyncio.to_thread(self._open_measured)
        self._loaded(state)
        self._replace_snapshot(Snapshot(self._db))
        self._group = Group(self._db, self._sync)
        self._thread.start()
        self._measuring = self._loop.call_later(MEASURE_S, self._measure)

    @property
    def snapshot(self) -> Snapshot:
        """The committed data. Do not keep it across an `await`: the next commit closes it.

        Raises Unavailable while the database is being reopened.
        """
        if self._snapshot is None:
            raise Unavailable("the database is being reopened")
        return self._snapshot

    @property
    def available(self) -> bool:
        return self._snapshot is not None

    def read(self, reading: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function with the snapshot. A LevelDB error becomes Unavailable."""
        try:
            return reading(self.snapshot, *args, **kwargs)
        except plyvel.Error as error:
            raise self.failed(error) from error

    def failed(self, error: Exception) -> Unavailable:
        """Report a LevelDB error of a read, and return the error for the request that failed.

        The database is out of service until it has been reopened.
        """
        if self._snapshot is not None:
            log.error("a read of %s failed (%s): refusing requests until it is reopened", self._path, reason(error))
            self._replace_snapshot(None)
            if not self._writing:  # otherwise `_written` or `_failed` fails the changes at the end of that write
                self._writing = True
                self._fail_changes(self._group)
        return Unavailable(FAILED)

    def commit(self, change: Change, on_committed: OnCommitted) -> "asyncio.Future[None]":
        """Write a change atomically, together with others. The future is done then, or fails with Unavailable.

        `on_committed` is called once on the loop before waiters resume, with True after the commit. False means that
        the write failed, and that the change may or may not exist after the reopening.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        if self._snapshot is None or self._closing.is_set():
            on_committed(False)
            waiter.set_exception(Unavailable("the database is being reopened or closed"))
            return waiter
        try:
            self.space.submitted(self._group.add(change, on_committed, waiter))
        except BaseException:
            on_committed(False)
            raise
        if not self._writing:
            self._writing = True
            self._send_soon()
        elif self._pause is not None and len(self._group.changes) == GATHER_CHANGES:
            self._pause.cancel()
            self._pause = self._loop.call_soon(self._send)
        return waiter

    async def compact(self) -> None:
        """Return the space of deleted entries to the disk.

        Reads and writes continue during this. It is done in slices, because closing waits for one.
        """
        try:
            # LevelDB merges each level into the next one but does not rewrite the last. Entries that were written and
            # deleted in memory would stay forever. So first write a table that spans all keys, and then merge it down.
            await asyncio.to_thread(self._flush)
            await self.commit(Change([], [layout.BEFORE_ALL, layout.AFTER_ALL]), lambda committed: None)
            for start, stop in await asyncio.to_thread(self._slices):
                _ = self.snapshot  # raises if the database was closed or failed
                await asyncio.to_thread(self._compact, start, stop)
            await asyncio.to_thread(self._flush)  # deletes the files that readers used until now
        except plyvel.Error as error:
            raise self.failed(error) from error

    async def close(self) -> None:
        """Write all submitted changes, then close. Later commits fail. A second call waits for the same end."""
        if self._thread.ident is None:
            return  # never opened
        if not self._closing.is_set():
            self._closing.set()
            self._measuring.cancel()
            if not self._writing:
                self._stop()
        await asyncio.shield(self._closed)

    def size_bytes(self) -> int:
        """Return the size of the directory's files, 0 while it is replaced by an empty one."""
        with contextlib.suppress(FileNotFoundError):
            return files.size_bytes(self._path)
        return 0

    def cache_bytes(self) -> int:
        """Return the memory that LevelDB uses, 0 while it is reopened or closed."""
        return 0 if self._snapshot is None else int(self._db.get_property(b"leveldb.approximate-memory-usage"))

    # On the loop
    def _measure(self) -> None:
        self._measuring = self._loop.call_later(MEASURE_S, self._measure)
        if self._snapshot is not None:  # otherwise the thread is reopening the database
            self._jobs.put(self._inspect_disk)

    def _removed(self) -> None:
        if self._snapshot is not None and not self._closing.is_set():
            self.failed(FileNotFoundError("somebody has removed its files"))

    def _send_soon(self) -> None:
        """Send the group `GATHER_S` after the one before. One that gathering does not help is sent at once."""
        due_s = self._sent_s + GATHER_S
        # Every `GATHER_AGAIN` single changes it tries again to gather.
        alone = self._single_changes >= GATHER_ALONE and self._single_changes % GATHER_AGAIN
        if alone or len(self._group.changes) >= GATHER_CHANGES or self._loop.time() >= due_s:
            self._pause = self._loop.call_soon(self._send)
        else:
            self._pause = self._loop.call_at(due_s, self._send)

    def _send(self) -> None:
        self._pause = None
        self._sent_s = self._loop.time()
        self._single_changes = self._single_changes + 1 if len(self._group.changes) == 1 else 0
        group, self._group = self._group, Group(self._db, self._sync)
        self._jobs.put(functools.partial(self._write, group))

    def _written(self, group: Group) -> None:
        self.metrics.writes.observe(group.took_s)
        self.metrics.changes.observe(len(group.changes))
        broken = self._snapshot is None  # a read failed during the write
        self._replace_snapshot(Snapshot(self._db))
        for on_committed, waiter in group.changes:
            try:
                on_committed(True)
            except Exception:
                # The state in memory can be wrong now. Reopening loads it again.
                log.exception(
                    "a change of %s failed after its commit: refusing requests until it is reopened", self._path
                )
                broken = True
            if not waiter.done():
                waiter.set_result(None)
        if broken:
            self._fail_changes(self._group)
        elif self._group.changes:
            self._send_soon()
        else:
            self._writing = False
            if self._closing.is_set():
                self._stop()

    def _failed(self, group: Group, error: Exception) -> None:
        self.metrics.failed += 1
        log.error("a write to %s failed (%s): refusing requests until it is reopened", self._path, reason(error))
        self._note_full(error)
        self._fail_changes(group, self._group)

    def _note_full(self, error: Exception) -> None:
        if NO_SPACE in reason(error):
            self.space.ran_out()

    def _fail_changes(self, *groups: Group) -> None:
        self._replace_snapshot(None)
        for failed in groups:
            for on_committed, _ in failed.changes:
                guarded(on_committed, False)
            for _, waiter in failed.changes:
                if not waiter.done():
                    waiter.set_exception(Unavailable(FAILED))
        self._jobs.put(self._reopen)

    def _reopened(self, db: Any, loaded: Any) -> None:
        log.warning("%s has been reopened", self._path)
        self.metrics.reopened += 1
        self._db = db
        self._loaded(loaded)
        self._replace_snapshot(Snapshot(db))
        self._group = Group(db, self._sync)
        self._writing = False
        if self._closing.is_set():
            self._stop()

    def _replace_snapshot(self, snapshot: Snapshot | None) -> None:
        # Close it explicitly: reading or freeing a snapshot while the thread closes the database crashes the process.
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = snapshot

    def _stop(self) -> None:
        self._replace_snapshot(None)
        self._jobs.put(None)

    # In another thread
    def _inspect_disk(self) -> None:
        """Measure the disk, and notice that somebody has removed the files. Those that are open could still be used."""
        self.space.measure()
        if not (self._path / "CURRENT").exists():
            self._loop.call_soon_threadsafe(self._removed)

    def _open_measured(self) -> tuple[Any, Any]:
        opened = self._open_sound()
        self.space.measure()
        return opened

    # In the writer's thread
    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            guarded(job)
        with self._compacting:
            self._db.close()
        self._loop.call_soon_threadsafe(self._closed.set_result, None)

    def _write(self, group: Group) -> None:
        try:
            group.write()
        except Exception as error:
            self._loop.call_soon_threadsafe(self._failed, group, error)
        else:
            self.space.written(group.size)
            self._loop.call_soon_threadsafe(self._written, group)
            if self.space.stale:
                self.space.measure()

    def _reopen(self) -> None:
        complaint = ""
        while True:
            began_s = time.monotonic()
            try:
                with self._compacting:
                    self._db.close()
                self.space.release_ballast()
                db, loaded = self._open_sound()
            except Exception as error:
                if str(error) != complaint:
                    complaint = str(error)
                    log.error("still refusing requests: %s", complaint)
                self._note_full(error)
                # Opening reads everything. The pause keeps attempts from occupying the machine.
                if self._closing.wait(REOPEN_PAUSE_S + REOPEN_SHARE * (time.monotonic() - began_s)):
                    self._jobs.put(None)
                    return
            else:
                self.space.failed()
                self.space.measure()
                self._loop.call_soon_threadsafe(self._reopened, db, loaded)
                return

    def _slices(self) -> list[tuple[bytes, bytes]]:
        """Divide all keys into slices with at most `SLICE_BYTES` on disk each. Return them in order."""
        slices: list[tuple[bytes, bytes]] = []
        remaining = [(layout.BEFORE_ALL, layout.AFTER_ALL)]
        with self._compacting:
            while remaining and not self._db.closed:
                start, stop = remaining.pop()
                middle = _middle(start, stop)
                if self._db.approximate_size(start, stop) > SLICE_BYTES and start < middle:
                    remaining += (middle, stop), (start, middle)
                elif (
                    slices and slices[-1][1] == start and self._db.approximate_size(slices[-1][0], stop) <= SLICE_BYTES
                ):
                    slices[-1] = slices[-1][0], stop  # most halves are empty
                else:
                    slices.append((start, stop))
        return slices

    def _flush(self) -> None:
        """Write LevelDB's memory to a table, and delete unused files. Compacting an empty range does both."""
        self._compact(layout.AFTER_ALL, layout.AFTER_ALL)

    def _compact(self, start: bytes, stop: bytes) -> None:
        with self._compacting:
            if not self._db.closed and not self._closing.is_set():
                # Both ends are named: plyvel takes a missing one for the empty key, and nothing lies before that.
                self._db.compact_range(start=start, stop=stop)


def _middle(start: bytes, stop: bytes) -> bytes:
    """Return a key in the middle between two, which is `start` if they are the same in `MAX_KEY_BYTES`."""
    low, high = (int.from_bytes(key.ljust(MAX_KEY_BYTES, b"\x00")[:MAX_KEY_BYTES], "big") for key in (start, stop))
    return ((low + high) // 2).to_bytes(MAX_KEY_BYTES, "big").rstrip(b"\x00")
