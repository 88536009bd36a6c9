"""A counter of the instructions that a server executes, by callgrind: slower by a factor of fifty, but repeatable."""

import re
import subprocess
from typing import Self

from .processes import BenchError, Server

PATIENCE_S = 120.0  # a busy machine may pause a server under callgrind for seconds


class Counter:
    """A counter for a server under callgrind in a `with` block. Afterwards `count` is its number of instructions."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.count = 0

    def __enter__(self) -> Self:
        self._control("instrumentation on")
        self._control("zero")
        return self

    def __exit__(self, *exc: object) -> None:
        self._control("dump")
        self._control("instrumentation off")
        counts = self._server.callgrind
        for part in counts.parent.glob(f"{counts.name}.*"):
            self.count += int(re.search(r"^totals: (\d+)", part.read_text(), re.M)[1])
            part.unlink()

    def _control(self, command: str) -> None:
        arguments = ["vgdb", f"--pid={self._server.pid}", *command.split()]
        try:
            subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise BenchError(f"callgrind does not obey `{command}`: {error.stderr}") from None
