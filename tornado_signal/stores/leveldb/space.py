"""The disk space of a store: its limits, the reserve, and a ballast file for emergencies."""

import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...errors import Unavailable
from ...metrics import Family
from . import files

UNLIMITED: Final = 2**53
RETRY_AFTER_S: Final = 10  # expired sessions are swept by then
REFUSED_S: Final = 5.0  # after a refusal, the store counts as full
MEASURE_BYTES: Final = 1 << 20  # bytes written between two measurements
MERGE_BYTES: Final = 256 << 20  # maximum that LevelDB writes in a merge before it deletes the merged tables


class Space:
    """The disk space available to a database, measured at intervals and estimated in between.

    On a full disk a database cannot even be opened, because LevelDB writes before it deletes. New data is therefore
    refused while less is free than the reserve and the space for merging a database of this size. A file next to the
    database, the ballast, occupies space. It is deleted when other programs have filled the disk.

    The writer's thread measures, the event loop reads the result. `wanted_bytes`, the configured reserve, applies from
    the next measurement on. It is at most a quarter of the filesystem, and 0 for no reserve or ballast.
    """

    def __init__(self, path: Path, max_bytes: int = UNLIMITED, reserve_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = self.free_bytes = self.reserve_bytes = 0
        self.capacity_bytes = 0  # the maximum size of the database
        self._path = path
        self.wanted_bytes = reserve_bytes
        self._submitted_bytes = 0  # total, counted on the loop
        self._written_bytes = 0  # total written, counted in the writer's thread
        self._measured_bytes = 0  # total written at the last measurement
        self._exhausted, self._exhausted_s = "", -math.inf
        self._ballast = path / files.BALLAST
        self._ballast_bytes = 0

    @property
    def full(self) -> str:
        """The full resource, because of which offers are refused: `store`, `disk`, or empty."""
        recent = time.monotonic() - self._exhausted_s < REFUSED_S
        return self._exhausted_by(MEASURE_BYTES) or (self._exhausted if recent else "")

    def ran_out(self) -> None:
        """Note that the disk has refused a write."""
        self._exhausted, self._exhausted_s = "disk", time.monotonic()

    def families(self) -> Iterator[Family]:
        yield Family("gauge", "store_max_bytes", "The maximum size of the data directory.", self.max_bytes)
        yield Family("gauge", "store_free_bytes", "Free bytes on its disk.", self.free_bytes)
        yield Family("gauge", "store_full", "Whether offers are refused for lack of space.", bool(self.full))

    def admit(self, size: int, memory_bytes: int = 0) -> None:
        """Check that there is space for `size` bytes of new data.

        `memory_bytes` is the memory of all sessions, which has the same limit as their files.
        """
        if exhausted := "store" if memory_bytes > self.max_bytes else self._exhausted_by(size):
            self._exhausted, self._exhausted_s = exhausted, time.monotonic()
            raise Unavailable("the store is full", RETRY_AFTER_S)

    def submitted(self, size: int) -> None:
        self._submitted_bytes += size

    def _exhausted_by(self, size: int) -> str:
        """Return what has no room for `size` more bytes: `store`, `disk`, or empty."""
        added = self._submitted_bytes - self._measured_bytes + size
        held = self.size_bytes + added
        if held > self.max_bytes:
            return "store"
        # LevelDB moves the log to a table, and both exist for a while.
        needed = 2 * added + (held if held < MERGE_BYTES else MERGE_BYTES)
        return "disk" if self.wanted_bytes and self.free_bytes - needed < self.reserve_bytes else ""

    # In the writer's thread

    @property
    def stale(self) -> bool:
        """Whether enough was written since the last measurement to measure again."""
        return self._written_bytes - self._measured_bytes >= MEASURE_BYTES

    def written(self, size: int) -> None:
        """Record that `size` submitted bytes were written or have failed. The next measurement shows which."""
        self._written_bytes += size

    def failed(self) -> None:
        """Drop the count of submitted bytes, which will never be written. Nothing is submitted during this call."""
        self._written_bytes = self._submitted_bytes

    def measure(self) -> None:
        """Measure the disk, and write the ballast again if there is room for it."""
        written = self._written_bytes
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._path)
            self.reserve_bytes = min(self.wanted_bytes, disk.total // 4)
            # Systems without `posix_fallocate`, such as macOS, are for development only.
            self._ballast_bytes = self.reserve_bytes // 2 if hasattr(os, "posix_fallocate") else 0
            # With the ballast written, half a reserve is free above the reserve: the ballast itself refuses no data.
            if self._ballast_bytes and disk.free >= self.reserve_bytes + 2 * self._ballast_bytes:
                with contextlib.suppress(OSError):  # the measurement does not depend on the ballast
                    self._write_ballast()
                disk = shutil.disk_usage(self._path)
            self.size_bytes, self.free_bytes = files.size_bytes(self._path), disk.free
            # Half of the free space is left to LevelDB's merges.
            free_bytes = max(0, self.free_bytes - self.reserve_bytes)
            self.capacity_bytes = min(self.max_bytes, self.size_bytes + free_bytes // 2)
            self._measured_bytes = written

    def _write_ballast(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._ballast.stat().st_size == self._ballast_bytes:
                return
            self._ballast.unlink()
        with self._ballast.open("xb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, self._ballast_bytes)
            except OSError:
                self._ballast.unlink()
                raise

    def release_ballast(self) -> None:
        """Delete the ballast if the free space is below the reserve."""
        with contextlib.suppress(FileNotFoundError):  # the directory was removed
            if shutil.disk_usage(self._path).free < self.reserve_bytes:
                files.remove_ballast(self._path)
