"""Directories that the first worker to need them makes for all."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that the first worker makes for all; `base` is `tmp_path_factory.getbasetemp()`."""
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)  # of a worker that failed
            make(place)
            made.touch()
    return place
