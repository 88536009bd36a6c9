"""Instructions that servers execute in user space. They repeat within a few percent, whereas CPU time scatters."""

import os
import shutil
import signal
import subprocess
from typing import Self

from .processes import BenchError, Target

EVENT = "instructions:u"
READY_S = 10.0


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


def counted() -> str:
    """Describe whether the kernel of this machine counts instructions."""
    with Counter(Target("", os.getpid())) as counter:
        sum(range(1000))
    if counter.count is not None:
        return f"counted ({EVENT})"
    return "n/a: " + ("the kernel does not count them here" if shutil.which("perf") else "there is no perf")
