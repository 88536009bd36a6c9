"""Files of a data directory: kinds, sync and size."""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from ...errors import OperatorError

_OWN: Final = re.compile(
    r"CURRENT|LOCK|LOG(\.old)?|MANIFEST-\d+|\d+\.(log|ldb|sst|dbtmp)|ballast|lost|lost\+found|README\.md"
)
_DIRECTORIES: Final = ("lost", "lost+found")  # of earlier repairs, and of file systems
BALLAST: Final = "ballast"
"""The file in a database's directory that only occupies space; see `space`."""


def check_own(path: Path) -> None:
    """Check that a directory is missing, or holds nothing but a database and the README of a checkout."""
    foreign = sorted(file.name for file in path.glob("*") if not _OWN.fullmatch(file.name))
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise OperatorError(
            f"{path} contains files of other programs: {', '.join(foreign[:3])}{more}; "
            "choose another --data-dir, or move these files away"
        )


def check_regular(path: Path) -> None:
    """Check that a directory holds regular files only. LevelDB would follow links."""
    with os.scandir(path) as files:
        for file in files:
            if not (file.is_file(follow_symlinks=False) or file.name in _DIRECTORIES):
                raise OperatorError(
                    f"{path / file.name} is not a regular file; remove it, or choose another --data-dir"
                )


def remove_ballast(path: Path) -> bool:
    """Delete the ballast in a database's directory, and return whether there was one."""
    try:
        (path / BALLAST).unlink()
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_bytes(path: Path) -> int:
    """Return the size of a directory's files without the ballast."""
    total = 0
    with os.scandir(path) as files:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # LevelDB deletes files in a thread of its own
                total += file.stat().st_size if file.name != BALLAST else 0
    return total
