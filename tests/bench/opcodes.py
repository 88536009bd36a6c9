"""Opcodes that a server executes for single operations. They do not depend on the load of the machine.

`PYTHONPATH=tests .venv/bin/python -m bench.opcodes [OPERATION...]` prints `opcodes.json` with a row for this Python.
The server runs in the same process.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import tornado
import uvloop

from tornado_signal.limits import fair_queue
from tornado_signal.process.draining import Stages
from tornado_signal.process.server import ServingProcess
from tornado_signal.settings.settings import Settings
from tornado_signal.system import loop
from tornado_signal.system.lifecycle import SERVING, Lifecycle

from . import client, instructions
from .instructions import Perform
from .life import Polled, Socketed
from .peerjs import Meeting

TABLE = Path(__file__).with_suffix(".json")
PYTHON = "{}.{}".format(*sys.version_info)
WARM = 3  # repetitions before counting, which fill caches
COUNTED = 15  # repetitions, of which the cheapest counts: timers, and data in pieces, add to the others
SETTLED_S = 0.02  # for what follows a response
SERVER = tuple(str(Path(module.__file__).parents[depth]) for module, depth in ((loop, 1), (tornado, 0)))
TIMERS = loop.__file__  # what they call depends on how long an operation takes


@asynccontextmanager
async def candidate(base: str):
    peer = instructions.peer_of(1)
    (code,) = await instructions._published(base, peer, 1)
    fields = {"code": code, "side": "offerer"}
    sent = [peer.request(base, "POST", "/answer", {**fields, "candidate": str(n)}) for n in range(WARM + COUNTED)]
    with closing(client.Connection(base, peer.address)) as connection:
        yield lambda number: connection.must(sent[number])


def new(way: Callable[..., Any]) -> Callable[[str], AbstractAsyncContextManager[Perform]]:
    return partial(instructions._new, way)


OPERATIONS: dict[str, Callable[[str], AbstractAsyncContextManager[Perform]]] = {
    "health": instructions.health,
    "poll": instructions.poll,
    "candidate": candidate,
    "pair over HTTP, new connections": new(Polled),
    "pair over HTTP, kept connections": instructions.kept_pair,
    "pair over /ws": new(Socketed),
    "PeerJS pair": new(Meeting),
    "y-webrtc message to 10 subscribers": instructions.room_message,
}


class Counter:
    """Counts opcodes of the server: of the package and of Tornado, and of all that these call."""

    count = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        path, caller = frame.f_code.co_filename, frame.f_back
        if caller is not None and caller.f_trace != self._opcode:
            begins = path.startswith(SERVER) and path != TIMERS and not caller.f_code.co_filename.startswith(SERVER)
            if not begins:
                return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "opcode":
            self.count += 1
        return self._opcode


async def count(base: str, prepare: Callable[[str], AbstractAsyncContextManager[Perform]]) -> int:
    counts = []
    async with prepare(base) as perform:
        for number in range(WARM + COUNTED):
            counter = Counter()
            sys.settrace(counter.trace)
            try:
                await perform(number)
                await asyncio.sleep(SETTLED_S)
            finally:
                sys.settrace(None)
            counts.append(counter.count)
    return min(counts[WARM:])


async def count_all(directory: Path, names: list[str]) -> dict[str, int]:
    options = {"port": 0, "data_dir": directory, "durability": "os"}
    settings = Settings(**options, unlimited_addresses=(), rate_per_address=1_000_000)
    fair_queue.TURN_S = 0.0  # all starts directly: how much does in a turn depends on the speed of the machine
    lifecycle, stages = Lifecycle(), Stages()
    process = ServingProcess(settings, lifecycle, None)
    try:
        await process.open(stages, lambda: settings)
        lifecycle.reach(SERVING)
        base = process._urls[0].rstrip("/")
        return {name: await count(base, OPERATIONS[name]) for name in names}
    finally:
        await stages.close()


def main() -> None:
    """Print the counts of the operations in the arguments, or of all."""
    names = sys.argv[1:] or list(OPERATIONS)
    with tempfile.TemporaryDirectory() as directory:
        table = uvloop.run(count_all(Path(directory, "db"), names))
    recorded: dict[str, dict[str, float]] = json.loads(TABLE.read_text())
    print(json.dumps(recorded | {PYTHON: table}, indent=2))


if __name__ == "__main__":
    main()
