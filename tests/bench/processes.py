"""Measured servers: started and stopped, with CPU time and memory read from outside."""

import os
import re
import resource
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 120.0
STOP_LIMIT_S = 60.0
APART = "servers on one processor, the load on the others"
TICKS = os.sysconf("SC_CLK_TCK")
_LISTENING = re.compile(r"(?<!admin )listen\w+ on (https?://[^\s\"]+)[\s\"]")
_ADMIN = re.compile(r"admin listener on (http://[^\s\"]+)[\s\"]")


class BenchError(Exception):
    """A measurement that is impossible. The message gives the reason."""


class Target:
    """A server at a base URL, with its process if CPU time and memory can be read."""

    forgetful = False  # whether it accepts repeated answers, each as the first one
    callgrind: Path | None = None  # where callgrind writes its counts if the server runs under it

    def __init__(self, base: str, pid: int | None = None) -> None:
        self.base = base.rstrip("/")
        self.pid = pid

    def cpu_s(self) -> float | None:
        """Return the user and system time of all threads and children so far, or None without a process."""
        if self.pid is None:
            return None
        ticks = 0
        for number, pid in enumerate(self.family()):
            with suppress(OSError):
                # utime and stime, for the first process also those of exited children
                ticks += sum(map(int, _stat(Path(f"/proc/{pid}"))[11 : 13 if number else 15]))
        return ticks / TICKS

    def threads_cpu_s(self) -> dict[int, float]:
        """Return the user and system time so far of each current thread."""
        used_s = {}
        for pid in self.family():
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    used_s[int(thread.name)] = sum(map(int, _stat(thread)[11:13])) / TICKS
        return used_s

    def memory_bytes(self) -> int | None:
        """Return the private resident memory, without LevelDB's file pages, which the kernel can reclaim."""
        if self.pid is None:
            return None
        total = 0
        for pid in self.family():
            match = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            total += int(match[1]) * 1024 if match else 0
        return total

    def family(self) -> list[int]:
        """Return the ids of the process and of its descendants."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    parents[int(entry.name)] = int(_stat(entry)[1])
        if self.pid not in parents:
            raise BenchError(f"there is no process {self.pid} (any more)")
        family = [self.pid]
        for pid in family:
            family += [child for child, parent in parents.items() if parent == pid]
        return family


def _stat(entry: Path) -> list[str]:
    """Return the fields after the name in the `stat` of a process or thread, beginning with the state."""
    return (entry / "stat").read_text().rpartition(") ")[2].split()


class Server(Target):
    """Start a server process for the duration of a `with` block. Its output goes to a file."""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._command = command
        self._environment = environment
        self._log = log

    def __enter__(self) -> Self:
        # The caller's settings for its own servers must not affect a measurement.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORNADO_SIGNAL_")}
        environment |= self._environment
        began_s = time.perf_counter()
        try:
            with self._log.open("w") as output:
                self._process = subprocess.Popen(self._command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        except OSError as error:
            raise BenchError(f"cannot run {self._command[0]}: {error}") from error
        try:
            super().__init__(self._said(self._listening), self._process.pid)
        except BaseException:
            self.stop()
            raise
        self.opened_s = time.perf_counter() - began_s
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _said(self, find: Callable[[], str | None]) -> str:
        until_s = time.perf_counter() + START_LIMIT_S
        while not (value := find()):
            if self._process.poll() is not None or time.perf_counter() > until_s:
                raise BenchError(f"{' '.join(self._command)} does not listen:\n{self.log()[-2000:]}")
            time.sleep(0.005)
        return value

    def _listening(self) -> str | None:
        return self._find(_LISTENING)

    def _find(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.search(self.log())
        return match[1] if match else None

    def metrics(self, timeout_s: float = START_LIMIT_S) -> str:
        admin = self._said(lambda: self._find(_ADMIN))
        with urllib.request.urlopen(f"{admin}/metrics", timeout=timeout_s) as answer:
            return answer.read().decode()

    def beyond_caches_bytes(self) -> int:
        cached = float(re.search(r"^tornado_signal_store_cache_bytes (\S+)$", self.metrics(), re.M)[1])
        return self.memory_bytes() - int(cached)

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
def apart(*servers: Target, beside: Sequence[Target] = ()) -> Iterator[None]:
    """Pin servers to one processor, and their load (this process and its children) to the others, if there are any.

    The targets in `beside` run with the load. Without pinning, the kernel moves threads between processors, which
    costs a server a fifth more and distorts the comparison.
    """
    processors = os.sched_getaffinity(0)
    one, *others = sorted(processors)
    for where, targets in (({one}, servers), (others or {one}, beside)):
        for target in targets:
            for thread in target.threads_cpu_s():
                os.sched_setaffinity(thread, where)
    os.sched_setaffinity(0, others or {one})
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)
        for target in (*servers, *beside):
            for thread in target.threads_cpu_s():
                os.sched_setaffinity(thread, processors)


def interpreter(checkout: Path) -> str:
    """Return the Python of a checkout's own environment, which is created if it does not exist.

    Raises:
        BenchError: the folder is not a checkout, or its requirements cannot be installed.
    """
    if not (checkout / "tornado_signal").is_dir():
        raise BenchError(f"{checkout} is not a checkout of tornado-signal")
    python = checkout / ".venv/bin/python"
    try:
        if not python.exists():
            make, install = [sys.executable, "-m", "venv", python.parents[1]], [python, "-m", "pip", "install", "-q"]
            for command in (make, [*install, "-e", checkout]):
                subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(python.parents[1], ignore_errors=True)
        raise BenchError(f"the requirements of {checkout} cannot be installed:\n{error.stderr[-2000:]}") from error
    return str(python)


def tornado_signal(
    where: Path, *, durability: str = "os", checkout: Path | None = None, callgrind: bool = False, **options: object
) -> Server:
    """Start a server of this checkout, or of another one with its own requirements, optionally under callgrind.

    `-P` prevents Python from searching the current folder, which is this checkout, first.
    """
    python = interpreter(checkout) if checkout else sys.executable
    command = [python, "-P", "-m", "tornado_signal"]
    options = {"port": 0, "data-dir": where, "durability": durability, "session-timeout-ms": 3_600_000} | options
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    environment = {"PYTHONPATH": str(checkout or ROOT)}
    counts = where.with_suffix(".callgrind")
    if callgrind:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}", *command]
    server = Server([*command, "serve", *words], where.with_suffix(".log"), environment)
    server.callgrind = counts if callgrind else None
    return server


def ceiling(where: Path, *, durability: str = "os") -> Server:
    server = Server([sys.executable, "-m", "tests.bench.ceiling", str(where), durability], where.with_suffix(".log"))
    server.forgetful = True
    return server
