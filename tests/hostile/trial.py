"""One attack on a fresh server with honest peers, and its effects on them and on the server."""

import contextlib
import functools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from bench.client import percentile
from bench.processes import Server
from support.certificates import make_pair
from support.command import COMMAND, environment
from support.paths import TESTS
from support.tokens import make_token, write_secret

from .attacker import Attack
from .attacks import ATTACKS
from .watcher import Sample, Watcher
from .wire import PREPARER

PREPARE_S = 240.0  # time for an attack to prepare
QUIET_S = 4.0
NEWS_S = 1.0
PROBE_PAUSE_S = 0.012  # below the rate limit of an address
TOKEN_S = 3600  # longer than any trial
MEET_S = 15  # for honest peers to connect before their session expires, on a busy machine

# Goals. The tolerances cover what an allocator and LevelDB keep.
MEMORY_MIB = 256
POLL_S, WAKE_S, STOPPED_S = 0.05, 0.1, 0.1
GONE_S = 3  # for the next sweep and the notification of an expiry
KEPT_MIB, KEPT_DESCRIPTORS, KEPT_THREADS, KEPT_DISK_MIB = 64, 5, 2, 32


@dataclass
class Outcome:
    attack: str
    seconds: float
    memory_mib: float = 0  # maximum beyond the quiet state
    disk_mib: float = 0  # maximum
    bound_mib: float | None = None  # limit of the store, or None for no limit
    poll_s: float = 0  # p99 of honest polls
    quiet_poll_s: float = 0  # p99 before the attack
    wake_s: float = 0  # p99 of the delay of honest waits
    gone_s: float = 0  # p99 of the delay with which honest peers learn of an expiry
    stopped_s: float = 0  # the longest duration of a tiny request during the whole trial
    failed: dict[str, int] = field(default_factory=dict)  # errors of honest peers and their number
    failed_after: int = 0  # number of errors in the last seconds
    polls: int = 0
    wakes: int = 0
    kept_mib: float = 0  # 30 s after the attack, beyond the quiet state, like the next two
    kept_descriptors: int = 0
    kept_threads: int = 0
    kept_disk_mib: float = 0  # two minutes after the attack
    level_s: float | None = None  # seconds until all values were back to normal, or None if they were not
    disk_level_s: float | None = None
    end_s: float | None = None  # how long the server took to stop, or None if it was killed or exited before
    status: int | None = None  # the exit status
    log: list[str] = field(default_factory=list)  # log lines that report a bug
    slowness: float = 1.0  # factor by which the server's event loop took longer than its CPU time
    lag_s: float | None = None  # upper bound of the longest pause of the event loop, by the server's own metrics
    answers: dict[str, int] = field(default_factory=dict)  # the attacker's responses

    @property
    def wrong(self) -> dict[str, int]:
        """Wrong responses to the attacker. All are if they say that the server does not have what is attacked."""
        attacks_nothing = self.answers.keys() == {"404"} or self.answers.keys() == {"431"}
        return {what: count for what, count in self.answers.items() if attacks_nothing or what.startswith("wrong")}


class Served(Server):
    """A server for an attack. `timeout_ms` is its session lifetime unless the attack sets one."""

    def __init__(self, command: list[str], where: Path, attack: Attack, timeout_ms: int) -> None:
        self.data = where / "data"
        self.place: list[object]
        certificate, token = "", ""
        flags = ["--port", "0", "--admin-port", "0", "--data-dir", str(self.data)]
        flags += ["--unlimited-addresses", f"{PREPARER}/32", "--session-timeout-ms", str(timeout_ms), *attack.options]
        if attack.tls:
            pair = make_pair(where)
            certificate = str(pair.certificate)
            flags += map(str, pair.flags)
        if attack.keys:
            flags += ["--auth-keys", str(write_secret(where / "keys"))]
            token = make_token({"exp": time.time() + TOKEN_S})
        prefix = ["prlimit", f"--nofile={attack.files}:{attack.files}"] if attack.files else []
        self.place = [certificate, token]
        super().__init__([*prefix, *command, "serve", *flags], where / "log")

    def __enter__(self) -> "Served":
        super().__enter__()
        self.place.insert(0, urlsplit(self.base).port)
        return self

    def lags(self) -> dict[float, float] | None:
        """Return how often the event loop was late, by upper bound, or None without a timely response."""
        with contextlib.suppress(OSError):
            buckets = re.findall(r'^\w+_event_loop_lag_seconds_bucket{le="(\S+)"} (\S+)$', self.metrics(5), re.M)
            return {float(most): float(count) for most, count in buckets}
        return None


class Beside:
    """A process that runs a module of this package against the server. It exits when its input is closed."""

    def __init__(self, module: str, served: Served, *arguments: object) -> None:
        command = [sys.executable, "-m", f"{__package__}.{module}", *map(str, [*arguments, *served.place])]
        self.process = subprocess.Popen(
            command, cwd=TESTS, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begun(self) -> None:
        assert self.process.stdout.readline(), f"{self.process.args} has ended"

    def result(self, timeout_s: float) -> dict:
        output, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, f"{self.process.args} ended with {self.process.returncode}"
        return json.loads(output)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@functools.cache
def bound_of(*command: str) -> float | None:
    help_text = subprocess.run([*command, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"--max-store-bytes .*?default:\s+(\d+)", help_text, re.S)
    return int(match[1]) / 2**20 if match else None


def p99(values: list[float]) -> float:
    return percentile(values, 0.99) / 1000 if values else 0


@contextlib.contextmanager
def room(directory: Path | None, disk_mib: int) -> Iterator[Path]:
    """Create a directory, optionally on a separate filesystem, which needs root."""
    with tempfile.TemporaryDirectory(dir=directory, prefix="hostile-") as name:
        if not disk_mib:
            yield Path(name)
            return
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "hostile", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def attempt(
    name: str, seconds: float, *, quiet_s=QUIET_S, command=None, directory=None, after_s=30, disk_after_s=120
) -> Outcome:
    """Run one attack of `seconds` on a server, optionally with another command and directory.

    Honest peers run alone for `quiet_s` before the attack. Afterwards memory, descriptors and threads must be back to
    normal within `after_s`, the disk within `disk_after_s` (not checked if 0).
    """
    attack = ATTACKS[name]
    command = command or [str(COMMAND)]
    outcome = Outcome(name, seconds, bound_mib=bound_of(*command))
    with contextlib.ExitStack() as stack:

        def beside(*what: object) -> Beside:
            started = Beside(*what)
            stack.callback(started.kill)
            return started

        where = stack.enter_context(room(directory, attack.disk_mib))
        served = stack.enter_context(Served(command, where, attack, int(1000 * min(60, max(MEET_S, seconds)))))
        honest, probe = beside("honest", served), beside("probe", served, PROBE_PAUSE_S)
        watcher = Watcher(served.pid, served.data)
        stack.callback(watcher.stop)
        honest.begun()
        probe.begun()
        time.sleep(quiet_s)
        attacked_s = time.monotonic()
        quiet = watcher.between(attacked_s - quiet_s / 2, attacked_s) or watcher.samples[-1:]
        lags = served.lags()
        report = beside("attacks", served, name, seconds).result(seconds + PREPARE_S)
        begun_s, ended_s = report["begun_s"], report["ended_s"]
        outcome.answers = report["answers"]
        outcome.level_s = wait_until_level(watcher, quiet, ended_s, after_s, ["memory_mib", "descriptors", "threads"])
        if disk_after_s:
            outcome.disk_level_s = wait_until_level(watcher, quiet, ended_s, disk_after_s, ["disk_mib"])
        time.sleep(NEWS_S)
        over_s = time.monotonic()
        outcome.lag_s = longest_lag(lags, served.lags())
        felt = honest.result(60)
        probed = probe.result(120)
        measure_process(outcome, watcher, quiet, begun_s, ended_s, after_s)
        measure_peers(outcome, felt, (attacked_s, begun_s, ended_s, over_s))
        outcome.stopped_s = max((taken for at_s, taken in probed["taken"] if at_s + taken >= begun_s), default=0)
        outcome.end_s = served.stop()
        outcome.status = served.status
        lines = served.log().splitlines()
        outcome.log = [line for line in lines if re.search(r"ERROR|CRITICAL|Traceback|^\w*(Error|Exception)\b", line)]
    return outcome


def typical(samples: list[Sample], name: str) -> float:
    return statistics.median(getattr(sample, name) for sample in samples)


def kept(quiet: list[Sample], last: Sample, name: str) -> float:
    """Return the excess over the quiet state, for descriptors and threads over its maximum."""
    if name in ("descriptors", "threads"):
        return getattr(last, name) - max(getattr(sample, name) for sample in quiet)
    return getattr(last, name) - typical(quiet, name)


ALLOWED = {"memory_mib": KEPT_MIB, "descriptors": KEPT_DESCRIPTORS, "threads": KEPT_THREADS}
ALLOWED |= {"disk_mib": KEPT_DISK_MIB}


def wait_until_level(watcher: Watcher, quiet: list, ended_s: float, timeout_s: float, names: list) -> float | None:
    """Wait until values are back to normal. Return the seconds since the attack, or None if they are not."""
    while (passed_s := time.monotonic() - ended_s) < timeout_s and watcher.is_alive():
        time.sleep(0.5)
        if all(kept(quiet, watcher.samples[-1], name) <= ALLOWED[name] for name in names):
            return passed_s
    return None


def measure_process(outcome, watcher: Watcher, quiet: list, begun_s: float, ended_s: float, after_s: float) -> None:
    during = watcher.between(begun_s - 0.5, float("inf")) or watcher.samples[-1:]
    outcome.memory_mib = max(sample.memory_mib for sample in during) - typical(quiet, "memory_mib")
    outcome.disk_mib = max(sample.disk_mib for sample in during)
    first, last = during[0], watcher.samples[-1]
    ran_s = max(last.ran_s - first.ran_s, 0.01)
    outcome.slowness = (ran_s + last.waited_s - first.waited_s) / ran_s
    then = (watcher.between(begun_s, ended_s + after_s) or [last])[-1]
    outcome.kept_mib = kept(quiet, then, "memory_mib")
    outcome.kept_descriptors = int(kept(quiet, then, "descriptors"))
    outcome.kept_threads = int(kept(quiet, then, "threads"))
    outcome.kept_disk_mib = max(0.0, kept(quiet, last, "disk_mib"))


def measure_peers(outcome: Outcome, felt: dict, moments: tuple[float, float, float, float]) -> None:
    attacked_s, begun_s, ended_s, over_s = moments

    def taken(name: str, from_s: float, to_s: float) -> list[float]:
        return [seconds for at_s, seconds in felt[name] if from_s <= at_s + seconds and at_s < to_s]

    polls, wakes = taken("poll", begun_s, ended_s), taken("wake", begun_s, ended_s)
    outcome.polls, outcome.wakes = len(polls), len(wakes)
    outcome.poll_s, outcome.wake_s = p99(polls), p99(wakes)
    outcome.quiet_poll_s = p99(taken("poll", 0, attacked_s))
    outcome.gone_s = p99(taken("gone", begun_s, over_s))
    failed = felt["failed"]
    outcome.failed = dict(Counter(what for _, what in failed).most_common())
    outcome.failed_after = sum(at_s > over_s - 5 for at_s, _ in failed)


def longest_lag(before: dict[float, float] | None, after: dict[float, float] | None) -> float | None:
    """Return an upper bound of the longest delay of the event loop between two reads."""
    if before is None or after is None:
        return None
    news = {most: after[most] - before.get(most, 0) for most in after}
    return min((most for most, count in news.items() if count >= max(news.values())), default=None)
