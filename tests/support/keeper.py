"""The keeper of a run of tests: a process that ends the leftovers of the run, also after a SIGKILL.

A run has a folder for all its temporary files. The environment of every process that it starts names that folder. The
keeper locks this folder, and removes it in the end. If the keeper is killed too, the checkout's next run does it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

MARK = "TEST_RUN"  # the variable that names the folder
PREFIX = f"signal-{zlib.crc32(__file__.encode()):08x}-"  # of the folders of this checkout
GRACE_S = 5


def processes(folder: str | None = None, root: int | None = None) -> dict[int, str]:
    """Return the processes of a run, those below a process, and all their descendants, each with a description."""
    parents, found = {}, {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        place = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):  # it has exited, or belongs to another user
            state, parent, *_ = (place / "stat").read_text().rpartition(")")[2].split()
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if pid == root or belongs(place, folder):
                found[pid] = describe(place)
    while more := {pid for pid, parent in parents.items() if parent in found} - {*found}:
        found |= {pid: describe(Path(f"/proc/{pid}")) for pid in more}
    return {pid: text for pid, text in found.items() if pid not in (root, os.getpid())}


def belongs(place: Path, folder: str | None) -> bool:
    """Return whether a process names a folder in its environment or works in it.

    nginx overwrites its environment.
    """
    return folder is not None and (
        f"{MARK}={folder}" in variables(place) or f"{os.readlink(place / 'cwd')}/".startswith(f"{folder}/")
    )


def variables(place: Path) -> list[str]:
    return (place / "environ").read_bytes().decode(errors="replace").split("\0")


def describe(place: Path) -> str:
    with contextlib.suppress(OSError):
        command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        tests = [each.partition("=")[2] for each in variables(place) if each.startswith("PYTEST_CURRENT_TEST=")]
        return f"{command}, started by {tests[0]}" if tests else command
    return "a process that has exited"


def mounts(folder: str) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def end(folder: str, *, keep: bool = False) -> int:
    """Kill the processes of a run, and remove its folder unless it is to be kept. Return the number of processes."""
    killed = set()
    end_s = time.monotonic() + GRACE_S
    while (left := processes(folder)) and time.monotonic() < end_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= {*left}
        time.sleep(0.02)
    for place in reversed(mounts(folder)):
        subprocess.run(["umount", "--lazy", place], check=False)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return len(killed)


def keep_watch() -> None:
    """End earlier runs of this checkout, create the folder of a new run, and end it when standard input ends."""
    with open(__file__) as starting:  # one run of the checkout at a time
        fcntl.flock(starting, fcntl.LOCK_EX)
        killed = sum(end(str(old)) for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if lock(old))
        folder = tempfile.mkdtemp(prefix=PREFIX)
        locked = lock(folder)
    print(json.dumps([folder, killed]), flush=True)
    end(folder, keep=sys.stdin.read() == "keep")
    os.close(locked)


def lock(folder) -> int | None:
    """Return a descriptor that locks a folder, or None if it is locked or belongs to another user."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None


if __name__ == "__main__":
    keep_watch()
