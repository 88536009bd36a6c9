"""What is made once in a run of the tests, by the first worker that needs it."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """A directory that all workers share; it is made if none has made it yet.

    Args:
        base: `tmp_path_factory.getbasetemp()`.
        name: of the directory.
        make: makes and fills it.
    """
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)  # of a worker that failed
            make(place)
            made.touch()
    return place
