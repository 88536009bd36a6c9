"""Samples a server's process and data from outside, several times a second."""

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

PAUSE_S = 0.2
MOST_MIB = 6144  # a server that uses more is killed to protect the machine


class Sample(NamedTuple):
    at_s: float  # by the monotonic clock
    memory_mib: float  # private memory, without file pages, which the kernel can reclaim
    threads: int
    descriptors: int
    disk_mib: float  # disk space of the data
    ran_s: float  # CPU time of its main thread so far
    waited_s: float  # time in which the main thread was runnable but other threads ran


def look(pid: int, data: Path) -> Sample:
    """Return the current values of a process. Raise OSError if it does not exist."""
    proc = Path(f"/proc/{pid}")
    of = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)", (proc / "status").read_text(), re.M)}
    if "RssAnon" not in of:
        raise ProcessLookupError(pid)
    descriptors = sum(1 for _ in (proc / "fd").iterdir())
    ran_ns, waited_ns, _ = map(int, (proc / "schedstat").read_text().split())
    disk = 0
    for path in data.rglob("*"):
        with contextlib.suppress(OSError):  # LevelDB has removed the file
            disk += path.lstat().st_blocks * 512
    seen = of["RssAnon"] / 1024, of["Threads"], descriptors, disk / 2**20
    return Sample(time.monotonic(), *seen, ran_ns / 1e9, waited_ns / 1e9)


class Watcher(threading.Thread):
    """A thread that samples until it is stopped or the process exits. It kills a process with far too much memory."""

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

    def since(self, from_s: float) -> list[Sample]:
        """Return the samples since a moment, at least the last one."""
        return [sample for sample in list(self.samples) if sample.at_s >= from_s] or self.samples[-1:]
