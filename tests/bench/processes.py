"""Measured servers: started and stopped, with CPU time and memory read from outside."""

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from support import processes
from support.command import environment
from support.paths import ROOT

START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
APART = "servers on one processor, the load on the others"
_LISTENING = re.compile(r"(?<!admin )listen\w+ on (https?://[^\s\"]+)[\s\"]")


class BenchError(Exception):
    """A measurement that is impossible. The message gives the reason."""


class Server:
    """A server process for the duration of a `with` block, with its CPU time and memory. Its output goes to a file.

    `base` is its URL. If it runs under callgrind, that writes its counts to `callgrind`.
    """

    callgrind: Path | None = None

    def __init__(self, command: list[str], log: Path, **variables: str) -> None:
        self._command, self._log, self._environment = command, log, environment(**variables)

    def __enter__(self) -> Self:
        options = {"cwd": ROOT, "env": self._environment, "stderr": subprocess.STDOUT}
        try:
            with self._log.open("w") as output:
                self._process = subprocess.Popen(self._command, stdout=output, **options)
        except OSError as error:
            raise BenchError(f"cannot run {self._command[0]}: {error}") from error
        self.pid = self._process.pid
        try:
            self.base = self._wait_until_it_listens().rstrip("/")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _wait_until_it_listens(self) -> str:
        until_s = time.perf_counter() + START_LIMIT_S
        while not (url := self._listening()):
            if self._process.poll() is not None or time.perf_counter() > until_s:
                raise BenchError(f"{' '.join(self._command)} does not listen:\n{self.log()[-2000:]}")
            time.sleep(0.005)
        return url

    def _listening(self) -> str | None:
        match = _LISTENING.search(self.log())
        return match[1] if match else None

    def cpu_s(self) -> float:
        """Return the user and system time of all threads and children so far."""
        return processes.cpu_s(self.pid)

    def threads(self) -> list[int]:
        tasks = (Path(f"/proc/{pid}/task").iterdir() for pid in processes.family(self.pid))
        return [int(task.name) for each in tasks for task in each]

    def memory_bytes(self) -> int:
        return processes.memory_bytes(self.pid)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def stop(self) -> float | None:
        """Ask the server to stop. Return how long that took, or None if it had exited or had to be killed."""
        if self._process.poll() is not None:
            return None
        began_s = time.monotonic()
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return None
        return time.monotonic() - began_s


@contextmanager
def many_files() -> Iterator[int]:
    """Raise the limit of open files for this process and its children. Yield the number of files that this allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard - 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def apart(*servers: Server) -> Iterator[None]:
    """Pin servers to one processor, and their load (this process and its children) to the others, if there are any.

    Without pinning, the kernel moves threads between processors, which costs a server a fifth more and distorts the
    comparison.
    """
    processors = os.sched_getaffinity(0)
    one, *others = sorted(processors)

    def pin(where: set[int]) -> None:
        for thread in (thread for server in servers for thread in server.threads()):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, where)

    pin({one})
    os.sched_setaffinity(0, others or {one})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)
        pin(processors)


def tornado_signal(
    where: Path, *, durability: str = "os", checkout: Path = ROOT, callgrind: bool = False, **options: object
) -> Server:
    """Start a server of this checkout, or of another one with the Python of its .venv, optionally under callgrind.

    `-P` prevents Python from searching the current folder, which is this checkout, first.
    """
    python = sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")
    command = [python, "-P", "-m", "tornado_signal"]
    options = {"port": 0, "data-dir": where, "durability": durability, "session-timeout-ms": 3_600_000} | options
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    counts = where.with_suffix(".callgrind")
    if callgrind:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}", *command]
    server = Server([*command, "serve", *words], where.with_suffix(".log"), PYTHONPATH=str(checkout))
    server.callgrind = counts if callgrind else None
    return server
