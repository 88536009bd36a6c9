"""Looks at a server's process and data from outside, several times a second."""

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAUSE_S = 0.2
MOST_MIB = 6144  # a server that has more is killed, for the sake of the machine


class Sample(NamedTuple):
    at_s: float  # by the monotonic clock
    memory_mib: float  # of its own, without the pages of files, which the kernel may take back
    threads: int
    descriptors: int
    disk_mib: float  # what its data takes
    ran_s: float  # how long its main thread ran so far
    waited_s: float  # how long that could have run, and others did


def look(pid: int, data: Path) -> Sample:
    """What a process has now; an OSError if there is none."""
    proc = Path(f"/proc/{pid}")
    of = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)", (proc / "status").read_text(), re.M)}
    if "RssAnon" not in of:
        raise ProcessLookupError(pid)
    descriptors = sum(1 for _ in (proc / "fd").iterdir())
    ran_ns, waited_ns, _ = map(int, (proc / "schedstat").read_text().split())
    memory_mib = of["RssAnon"] / 1024
    return Sample(
        time.monotonic(), memory_mib, of["Threads"], descriptors, disk_mib(data), ran_ns / 1e9, waited_ns / 1e9
    )


def disk_mib(data: Path, size: Callable[[os.stat_result], int] = lambda stat: stat.st_blocks * 512) -> float:
    """What the files under a directory take of the disk, or how large they are by another measure."""
    total = 0
    for path in data.rglob("*"):
        with contextlib.suppress(OSError):  # LevelDB has removed it
            total += size(path.lstat())
    return total / 2**20


class Watcher(threading.Thread):
    """Looks on until it is stopped or the process ends, which it does when it takes far too much memory."""

    def __init__(self, pid: int, data: Path) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._process = pid, data
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(PAUSE_S):
            try:
                self.samples.append(look(*self._process))
            except OSError:
                return
            if self.samples[-1].memory_mib > MOST_MIB:
                os.kill(self._process[0], signal.SIGKILL)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def between(self, from_s: float, to_s: float) -> list[Sample]:
        return [sample for sample in list(self.samples) if from_s <= sample.at_s <= to_s]
