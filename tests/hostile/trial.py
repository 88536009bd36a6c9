"""One attack on a fresh server with honest peers, its effects on them and on the server, and the verdict."""

import contextlib
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from bench.client import percentile
from bench.processes import Server
from support.certificates import make_pair
from support.command import COMMAND, environment
from support.disks import mounted
from support.paths import TESTS
from support.tokens import make_token, write_secret
from support.waiting import end_all, kill, output, run_command, start_holder

from tornado_signal.settings.settings import Settings

from .attacker import Attack
from .attacks import ATTACKS
from .watcher import Watcher
from .wire import PREPARER

PREPARE_S = 240.0  # time for an attack to prepare
RECOVERY_S = 30.0  # for memory, descriptors and threads to be as before an attack
DISK_RECOVERY_S = 120.0
NEWS_S = 1.0
PROBE_PAUSE_S = 0.012  # below the rate limit of an address
TOKEN_S = 3600  # longer than any trial
MEET_S = 15  # for honest peers to connect before their session expires, on a busy machine
ALLOWED = {"memory_mib": 64, "descriptors": 5, "threads": 2, "disk_mib": 32}  # that an allocator and LevelDB keep


def goal(most: float, start: float = 0):
    """Return a figure of `Outcome`, and the most that it may be."""
    return field(default=start, metadata={"most": most})


@dataclass
class Outcome:
    attack: str
    memory_mib: float = goal(256)  # maximum beyond the quiet state
    disk_mib: float = goal(Settings().max_store_bytes / 2**20)  # maximum
    poll_s: float = goal(0.05, math.inf)  # p99 of honest polls
    wake_s: float = goal(0.1, math.inf)  # p99 of the delay of honest waits
    gone_s: float = goal(3)  # p99 of the delay with which honest peers learn of an expiry, from the next sweep
    stopped_s: float = goal(0.1)  # the longest duration of a tiny request during the whole trial
    failed: dict[str, int] = field(default_factory=dict)  # errors of honest peers and their number
    # Beyond the quiet state when it is as before, or `RECOVERY_S` (disk: `DISK_RECOVERY_S`) after the attack.
    kept_memory_mib: float = goal(ALLOWED["memory_mib"])
    kept_descriptors: float = goal(ALLOWED["descriptors"])
    kept_threads: float = goal(ALLOWED["threads"])
    kept_disk_mib: float = goal(ALLOWED["disk_mib"])
    log: list[str] = field(default_factory=list)  # log lines that report a bug
    end_s: float = goal(10, math.inf)  # how long the server took to stop with exit status 0
    polls: int = 0
    status: int | None = None  # the exit status
    slowness: float = 1.0  # factor by which the server's event loop took longer than its CPU time
    answers: dict[str, int] = field(default_factory=dict)  # the attacker's responses

    @property
    def wrong(self) -> dict[str, int]:
        """Wrong responses to the attacker. All are if they say that the server does not have what is attacked."""
        attacks_nothing = self.answers.keys() == {"404"} or self.answers.keys() == {"431"}
        return {what: count for what, count in self.answers.items() if attacks_nothing or what.startswith("wrong")}


class Served(Server):
    """A server for an attack. `timeout_ms` is its session lifetime unless the attack sets one."""

    def __init__(self, where: Path, attack: Attack, timeout_ms: int) -> None:
        self.data = where / "data"
        flags = ["--port", "0", "--admin-port", "0", "--data-dir", str(self.data)]
        flags += ["--unlimited-addresses", f"{PREPARER}/32", "--session-timeout-ms", str(timeout_ms), *attack.options]
        self._rest: list[object] = ["", ""]  # certificate and token
        if attack.tls:
            pair = make_pair(where)
            self._rest[0] = pair.certificate
            flags += map(str, pair.flags)
        if attack.keys:
            flags += ["--auth-keys", str(write_secret(where / "keys"))]
            self._rest[1] = make_token({"exp": time.time() + TOKEN_S})
        prefix = ["prlimit", f"--nofile={attack.files}:{attack.files}"] if attack.files else []
        super().__init__([*prefix, str(COMMAND), "serve", *flags], where / "log")

    def command(self, module: str, *arguments: object) -> list[str]:
        """Return the command of a process that connects."""
        place = [urlsplit(self.base).port, *self._rest]
        return [sys.executable, "-m", f"{__package__}.{module}", *map(str, [*arguments, *place])]


def result(process: subprocess.Popen[str], timeout_s: float) -> dict:
    said, _ = process.communicate(timeout=timeout_s)
    assert process.returncode == 0, f"{process.args} ended with {process.returncode}"
    return json.loads(said)


def p99(values: list[float]) -> float:
    return percentile(values, 0.99) / 1000 if values else math.inf


def attempt(name: str, seconds: float, *, quiet_s: float = 4, disk_recovery_s: float = DISK_RECOVERY_S) -> Outcome:
    """Run one attack of `seconds` on a server.

    Honest peers run alone for `quiet_s` before the attack. Afterwards memory, descriptors and threads must be back to
    normal within `RECOVERY_S`, the disk within `disk_recovery_s` (not checked if 0).
    """
    attack, outcome = ATTACKS[name], Outcome(name)
    with contextlib.ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        if attack.disk_mib:
            where = stack.enter_context(mounted(where / "disk", attack.disk_mib))
        served = stack.enter_context(Served(where, attack, int(1000 * min(60, max(MEET_S, seconds)))))
        start, here = stack.enter_context(end_all(start_holder, kill)), {"cwd": TESTS, "env": environment()}
        honest, probe = (start(*served.command(*each), **here) for each in (["honest"], ["probe", PROBE_PAUSE_S]))
        watcher = Watcher(served.pid, served.data)
        stack.callback(watcher.stop)
        time.sleep(quiet_s)
        quiet = watcher.since(time.monotonic() - quiet_s / 2)
        attacking = run_command(*served.command("attacks", name, seconds), **here, timeout=seconds + PREPARE_S)
        report = json.loads(output(attacking))
        begun_s, ended_s = report["begun_s"], report["ended_s"]
        outcome.answers = report["answers"]
        *soon, disk = ALLOWED  # LevelDB frees the disk later
        for names, bound_s in ((soon, RECOVERY_S), ([disk], disk_recovery_s)):
            recover(outcome, watcher, quiet, names, ended_s + bound_s)
        time.sleep(NEWS_S)
        measure_peers(outcome, result(honest, 60), begun_s, ended_s)
        probed = result(probe, 120)
        outcome.stopped_s = max((taken for at_s, taken in probed["taken"] if at_s + taken >= begun_s), default=0)
        measure_process(outcome, watcher, quiet, begun_s)
        if not disk_recovery_s:
            outcome.kept_disk_mib = 0
        stopped_s = served.stop()
        outcome.status = served.status
        if outcome.status == 0 and stopped_s is not None:
            outcome.end_s = stopped_s
        lines = served.log().splitlines()
        outcome.log = [line for line in lines if re.search(r"ERROR|CRITICAL|Traceback|^\w*(Error|Exception)\b", line)]
    return outcome


def recover(outcome: Outcome, watcher: Watcher, quiet: list, names: list[str], until_s: float) -> None:
    """Wait until values are back to normal, and record their excess over the quiet state."""
    while True:
        for name in names:
            usual = [getattr(sample, name) for sample in quiet]
            most = max(usual) if name in ("descriptors", "threads") else statistics.median(usual)
            setattr(outcome, f"kept_{name}", getattr(watcher.samples[-1], name) - most)
        back = all(getattr(outcome, f"kept_{name}") <= ALLOWED[name] for name in names)
        if back or time.monotonic() >= until_s or not watcher.is_alive():
            return
        time.sleep(0.5)


def measure_process(outcome: Outcome, watcher: Watcher, quiet: list, begun_s: float) -> None:
    during = watcher.since(begun_s - 0.5)
    usual_mib = statistics.median(sample.memory_mib for sample in quiet)
    outcome.memory_mib = max(sample.memory_mib for sample in during) - usual_mib
    outcome.disk_mib = max(sample.disk_mib for sample in during)
    first, last = during[0], during[-1]
    ran_s = max(last.ran_s - first.ran_s, 0.01)
    outcome.slowness = (ran_s + last.waited_s - first.waited_s) / ran_s


def measure_peers(outcome: Outcome, felt: dict, begun_s: float, ended_s: float) -> None:
    def taken(name: str, to_s: float) -> list[float]:
        return [seconds for at_s, seconds in felt[name] if begun_s <= at_s + seconds and at_s < to_s]

    polls = taken("poll", ended_s)
    outcome.polls = len(polls)
    outcome.poll_s, outcome.wake_s = p99(polls), p99(taken("wake", ended_s))
    outcome.gone_s = p99(taken("gone", math.inf) or [0])
    outcome.failed = dict(Counter(what for _, what in felt["failed"]).most_common())


GOALS = {each.name: each.metadata["most"] for each in fields(Outcome) if each.metadata}
GOALS |= {"failed": 0, "log": 0, "wrong": 0}
# After a short attack on a busy machine, because the attacker uses the same processors.
BUSY = {"poll_s": 0.5, "wake_s": 1.0, "gone_s": 3, "stopped_s": 1.0, "end_s": 20}


def measured(outcome: Outcome, name: str) -> float:
    """Return a figure. Of errors and lines it is their number."""
    value = getattr(outcome, name)
    if isinstance(value, dict):
        return sum(value.values())
    return len(value) if isinstance(value, list) else value


def against(outcome: Outcome, *, busy: bool = False) -> dict[str, str]:
    """Return a sentence for each figure that is too large. Busy, a slow server has more time in proportion."""
    limits = GOALS | {name: most * max(1.0, outcome.slowness) for name, most in BUSY.items() if busy}
    return {
        name: f"{name} {getattr(outcome, name)}, not at most {most:g}"
        for name, most in limits.items()
        if measured(outcome, name) > most
    }
