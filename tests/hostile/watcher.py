"""Looks at a server's process and data from outside, several times a second."""

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

PAUSE_S = 0.2
MOST_MIB = 6144  # a server that has more is killed, for the sake of the machine


class Sample(NamedTuple):
    """What a process has at a moment.

    Attributes:
        at_s: when, by the monotonic clock.
        memory_mib: memory of its own, without the pages of files, which the kernel may take back.
        resident_mib: with them.
        threads: how many.
        descriptors: how many.
        disk_mib: what its data takes.
        slowness: how much longer the look took than the processor time it needed: what else the machine has to do.
    """

    at_s: float
    memory_mib: float
    resident_mib: float
    threads: int
    descriptors: int
    disk_mib: float
    slowness: float


def look(pid: int, data: Path) -> Sample:
    """What a process has now.

    Raises:
        OSError: there is no such process.
    """
    began_s, cpu_s = time.monotonic(), time.thread_time()
    status = Path(f"/proc/{pid}/status").read_text()
    of = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)", status, re.M)}
    if "RssAnon" not in of:
        raise ProcessLookupError(pid)
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    disk = disk_mib(data)
    now_s = time.monotonic()
    slowness = (now_s - began_s) / max(time.thread_time() - cpu_s, 1e-6)
    return Sample(now_s, of["RssAnon"] / 1024, of["VmRSS"] / 1024, of["Threads"], descriptors, disk, slowness)


def disk_mib(data: Path) -> float:
    """What the files under a directory take of the disk."""
    blocks = 0
    for path in data.rglob("*"):
        try:
            blocks += path.lstat().st_blocks
        except OSError:  # LevelDB has removed it
            continue
    return blocks * 512 / 2**20


class Watcher(threading.Thread):
    """Looks on until it is stopped or the process ends, which it does when it takes far too much memory.

    Args:
        pid: of the server.
        data: its data directory.

    Attributes:
        samples: what it has seen.
    """

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
        """Look no more."""
        self._stopping.set()
        self.join()

    def between(self, from_s: float, to_s: float) -> list[Sample]:
        """What it has seen in some time."""
        return [sample for sample in list(self.samples) if from_s <= sample.at_s <= to_s]
