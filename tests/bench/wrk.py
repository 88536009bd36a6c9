"""Throughput of one endpoint, measured by wrk with a generated script."""

import json
import math
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .counter import Counter
from .processes import BenchError, Target

ENOUGH_S = 2.0  # enough to measure something on a busy machine
CONNECTIONS = 32
_SCRIPT = """
local prefix, suffix = {prefix}, {suffix}
local made, at, out = {{}}, 0, nil
function init()
    for line in io.lines({parts}) do made[#made + 1] = prefix .. line .. suffix end
    {collect}
end
function request()
    at = at % #made + 1
    return made[at]
end
function done(summary)
    local errors = summary.errors
    io.write(string.format('\\nBENCH {{"requests": %d, "us": %d, "refused": %d, "broken": %d}}\\n', summary.requests,
        summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
"""
_COLLECT = """
    out = io.open({codes}, "w")
    response = function(status, headers, body)
        local code = body:match('"code"%s*:%s*"([^"]+)"')
        if code then out:write(code, "\\n") end
    end
"""


@dataclass
class Run:
    """The result of one run of wrk: responses, their time, and what the server used, if that can be read."""

    requests: int
    seconds: float
    cpu_s: float | None
    instructions: float | None = None

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_us(self) -> float | None:
        return None if self.cpu_s is None else self.cpu_s / self.requests * 1e6

    @property
    def kilo_instructions(self) -> float | None:
        """Return the instructions in user space for one request, in thousands."""
        return None if self.instructions is None else self.instructions / self.requests / 1e3


def run(target: Target, template: bytes, parts: Sequence[str] = ("",), *, seconds: float, collect=None) -> Run:
    """Send the same request as fast as the server responds. A response that is not a success is an error.

    The parts, all of the same length, replace `@` in the template in turn. The codes in the responses are written to
    the file `collect`, one per line, which slows wrk down.
    """
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        (where / "parts").write_text("".join(f"{part}\n" for part in parts))
        prefix, _, suffix = template.partition(b"@")
        suffix = suffix if b"@" in template else b""
        words = {"prefix": _quoted(prefix), "suffix": _quoted(suffix), "parts": _quoted(bytes(where / "parts"))}
        words["collect"] = _COLLECT.format(codes=_quoted(bytes(collect))) if collect else ""
        (where / "script.lua").write_text(_SCRIPT.format(**words))
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{math.ceil(seconds) + 5}s", "-s", str(where / "script.lua")]
        before_s = target.cpu_s()
        with (
            Counter(target) as counter,
            subprocess.Popen([*command, target.base], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
        ):
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # wrk exits as if its time were up. Its limit has whole seconds
            output = process.communicate()[0].decode(errors="replace")
        time.sleep(0.02)  # let the server notice that the clients have disconnected
        after_s = target.cpu_s()
    _, marker, report = output.rpartition("BENCH ")
    counts = json.loads(report) if marker else {"requests": 0}
    if not counts["requests"] and seconds < ENOUGH_S:  # other programs used the processor
        return run(target, template, parts, seconds=ENOUGH_S, collect=collect)
    if not counts["requests"]:
        raise BenchError(f"wrk measured nothing of {target.base}:\n{output[-2000:]}")
    if counts["refused"] or counts["broken"]:
        line = template.partition(b"\r\n")[0].decode()
        raise BenchError(f"{counts['refused']} error responses and {counts['broken']} broken connections to {line}")
    cpu_s = None if before_s is None or after_s is None else after_s - before_s
    return Run(counts["requests"], counts["us"] / 1e6, cpu_s, counter.count)


def _quoted(data: bytes) -> str:
    return '"' + "".join(chr(byte) if byte < 128 and chr(byte).isalnum() else f"\\{byte:03d}" for byte in data) + '"'
