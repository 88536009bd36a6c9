"""The disk space of a store: its limits, the reserve, and a ballast file for emergencies."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...errors import Unavailable
from ...metrics import Family
from . import files

UNLIMITED: Final = 2**53
RETRY_AFTER_S: Final = 10  # there is room again when something has expired and is swept
MEASURE_BYTES: Final = 1 << 20  # written between two looks at the disk
MERGE_BYTES: Final = 256 << 20  # the most that LevelDB writes in a merge before it deletes the merged tables


class Space:
    """The room that a database has, measured now and then and estimated in between.

    On a full disk a database cannot even be opened, because LevelDB writes before it deletes. New data is therefore
    refused while less is free than the reserve and the space for merging a database of this size. A file next to the
    database, the ballast, occupies space. It is deleted when other programs have filled the disk.

    Measured in the writer's thread, asked on the loop.

    Args:
        path: the existing directory of the database.
        reserve_bytes: the space to keep free on the filesystem, at most a quarter of it. 0 for no reserve or ballast.

    Attributes:
        max_bytes: how much it may hold.
        wanted_bytes: the configured reserve. It applies from the next measurement on.
        size_bytes: what the database held when it was measured.
        free_bytes: what was free then.
    """

    def __init__(self, path: Path, max_bytes: int = UNLIMITED, reserve_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = self.free_bytes = self.reserve_bytes = 0
        self._path = path
        self.wanted_bytes = reserve_bytes
        self._submitted_bytes = 0  # ever, on the loop
        self._written_bytes = 0  # of these, in the writer's thread
        self._measured_bytes = 0  # of these, when it was measured
        self._ballast = path / files.BALLAST
        self._ballast_bytes = 0

    @property
    def capacity_bytes(self) -> int:
        """The maximum size of the database. Half of the free space is left to LevelDB's merges."""
        return min(self.max_bytes, self.size_bytes + max(0, self.free_bytes - self.reserve_bytes) // 2)

    @property
    def full(self) -> bool:
        """Whether not everything that comes can be published."""
        return not self._fits(MEASURE_BYTES)

    def families(self) -> Iterator[Family]:
        """Yield the bounds and what is free."""
        yield Family("gauge", "store_max_bytes", "What the data directory may hold.", self.max_bytes)
        yield Family("gauge", "store_free_bytes", "What is free on its disk.", self.free_bytes)
        yield Family("gauge", "store_full", "Whether nothing is published for want of room.", self.full)

    def admit(self, size: int) -> None:
        """Let something be published.

        Raises:
            Unavailable: there is no space for `size` bytes.
        """
        if not self._fits(size):
            raise Unavailable("the store is full", RETRY_AFTER_S)

    def submitted(self, size: int) -> None:
        """Count `size` bytes as submitted."""
        self._submitted_bytes += size

    def _fits(self, size: int) -> bool:
        added = self._submitted_bytes - self._measured_bytes + size
        held = self.size_bytes + added
        # The content of the log moves to a table, and for a while is in both.
        remaining = self.free_bytes - 2 * added - min(held, MERGE_BYTES)
        return held <= self.max_bytes and (not self.wanted_bytes or remaining >= self.reserve_bytes)

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
        """Look at the disk, and take the ballast aboard again if there is room for it."""
        written = self._written_bytes
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._path)
            self.reserve_bytes = min(self.wanted_bytes, disk.total // 4)
            self._ballast_bytes = self.reserve_bytes // 2
            if self._ballast_bytes and disk.free >= self.reserve_bytes + 2 * self._ballast_bytes:
                with contextlib.suppress(OSError):  # without it the disk is measured all the same
                    self._load_ballast()
                disk = shutil.disk_usage(self._path)
            self.size_bytes, self.free_bytes = files.size_bytes(self._path), disk.free
            self._measured_bytes = written

    def _load_ballast(self) -> None:
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
        """Make room, if there is less free than there should be."""
        with contextlib.suppress(FileNotFoundError):  # there is no directory any more
            if shutil.disk_usage(self._path).free < self.reserve_bytes:
                files.remove_ballast(self._path)
