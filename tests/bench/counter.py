"""Counters of the instructions that a server executes in user space.

The kernel counts them through perf. Where it does not, a server runs under callgrind, fifty times slower.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from .processes import BenchError, Target

EVENT = "instructions:u"
READY_S = 10.0
CALLGRIND_S = 120.0  # a busy machine may pause a server under callgrind for seconds


class Counter:
    """A counter of one event in all processes and threads of a server during a `with` block.

    Attributes:
        count: the number of events, or None if the kernel does not count them or the process is unknown.
    """

    def __init__(self, target: Target, event: str = EVENT) -> None:
        self.count: float | None = None
        self._target = target
        self._event = event
        self._perf: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if self._target.callgrind is not None:
            self._control_callgrind("instrumentation on")
            self._control_callgrind("zero")
            return self
        if self._target.pid is None or shutil.which("perf") is None:
            return self
        pids = ",".join(map(str, self._target.family()))
        controls, control = os.pipe()
        acknowledged, acknowledges = os.pipe()
        options = ["-D", "-1", f"--control=fd:{controls},{acknowledges}"]
        command = ["perf", "stat", "-x,", "-e", self._event, *options, "-p", pids]
        self._perf = subprocess.Popen(
            command,
            pass_fds=(controls, acknowledges),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"LC_ALL": "C"},
        )
        os.close(controls)
        os.close(acknowledges)
        try:
            os.write(control, b"enable\n")
            os.read(acknowledged, 16)  # empty if perf was refused and has exited
        except BrokenPipeError:
            pass  # perf has exited: the kernel does not permit counting
        finally:
            os.close(control)
            os.close(acknowledged)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._target.callgrind is not None:
            self.count = self._dumped(self._target.callgrind)
            return
        if self._perf is None:
            return
        self._perf.send_signal(signal.SIGINT)
        try:
            _, errors = self._perf.communicate(timeout=READY_S)
        except subprocess.TimeoutExpired:
            self._perf.kill()
            self._perf.communicate()
            raise BenchError("perf does not end") from None
        for line in errors.splitlines():
            fields = line.split(",")
            if len(fields) > 2 and fields[2].startswith(self._event) and fields[0][:1].isdigit():
                self.count = float(fields[0])

    def _dumped(self, counts: Path) -> float:
        self._control_callgrind("dump")
        self._control_callgrind("instrumentation off")
        parts = list(counts.parent.glob(f"{counts.name}.*"))
        total = sum(int(re.search(r"^totals: (\d+)", part.read_text(), re.M)[1]) for part in parts)
        for part in parts:
            part.unlink()
        return float(total)

    def _control_callgrind(self, command: str) -> None:
        arguments = ["vgdb", f"--pid={self._target.pid}", *command.split()]
        try:
            subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=CALLGRIND_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"callgrind does not obey `{command}`: {error.stderr}") from None


def kernel_counts() -> bool:
    with Counter(Target("", os.getpid())) as counter:
        sum(range(1000))
    return counter.count is not None


def counted() -> str:
    """Describe what counts instructions on this machine."""
    if kernel_counts():
        return f"counted ({EVENT})"
    why = "the kernel does not count them here" if shutil.which("perf") else "there is no perf"
    return f"n/a: {why}" + ("; the part `instructions` counts with callgrind" if shutil.which("valgrind") else "")
