"""The disk under a store: how much the store may take of it, what is kept free, and a ballast to give up in need."""

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
MERGE_BYTES: Final = 256 << 20  # the most that LevelDB writes anew before it deletes what that was made of


class Space:
    """The room that a database has, measured now and then and estimated in between.

    A database that is full up cannot even be opened: LevelDB writes before it deletes. So nothing is published once
    there is less free than a reserve and what it takes to merge a database of this size. And a file beside the
    database, the ballast, takes room that is given up when the disk has been filled all the same, by others.

    Measured in the writer's thread, asked on the loop.

    Args:
        path: the directory of the database; it exists.
        reserve_bytes: how much is to stay free on its filesystem; of a small one a quarter. 0 for none, and no ballast.

    Attributes:
        max_bytes: how much it may hold.
        wanted_bytes: how much is to stay free, on a disk that is not small; counts from the next measurement on.
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
        """How much the database can hold at most; half of the room there is for what LevelDB merges."""
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
            Unavailable: there is no room for so many bytes.
        """
        if not self._fits(size):
            raise Unavailable("the store is full", RETRY_AFTER_S)

    def submitted(self, size: int) -> None:
        """So many bytes are on their way to the disk."""
        self._submitted_bytes += size

    def _fits(self, size: int) -> bool:
        added = self._submitted_bytes - self._measured_bytes + size
        held = self.size_bytes + added
        # What is in the log now is in a table soon, for a while in both.
        remaining = self.free_bytes - 2 * added - min(held, MERGE_BYTES)
        return held <= self.max_bytes and (not self.wanted_bytes or remaining >= self.reserve_bytes)

    # In the writer's thread

    @property
    def stale(self) -> bool:
        """Whether so much was written since that it is time to measure."""
        return self._written_bytes - self._measured_bytes >= MEASURE_BYTES

    def written(self, size: int) -> None:
        """So many of the bytes that were submitted are on the disk, or not for want of success: a look at it tells."""
        self._written_bytes += size

    def failed(self) -> None:
        """What was submitted and is not written never will be. Nothing is submitted meanwhile."""
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
