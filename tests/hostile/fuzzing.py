"""The fuzzer sends generated inputs to a server in this process over real sockets, and checks their effects.

No response may be a 500 or 503, foreign HTML, missing or truncated. Every connection must be closed, and no error may
be logged.
"""

import argparse
import asyncio
import contextlib
import logging
import random
import re
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import uvloop
from support.raw_http import Answer, answers
from support.rpc import until
from support.service import TRANSPORTS, Service

from tornado_signal.http.error_responses import make_error_responder

from .inputs import Input, Maker

BYTES_SHARE = 0.6  # share of byte inputs among all inputs. The others are operations
TOGETHER = 25  # operations on a connection
SIDE_BY_SIDE = 32  # parallel connections
PATIENCE_S = 60.0
LOOKS = 20  # at a connection during a silence. A pause of this process has few of them
WAITING_S = 0.05  # silence after which a possible stream or long poll counts as read
LEFT_S = 0.02  # for the server to notice a client that disconnects
STEP_MS = 100  # the clock's advance for each input, so that sessions expire
SWEEP = 500  # inputs between two sweeps
FINE = {*range(200, 207), 303, 304, *range(400, 432), 501, 505}
PAGES = ("text/html", "text/javascript", "text/css", "image/svg+xml", "text/plain", "application/typescript")
PAGES += ("application/openmetrics-text", "application/octet-stream", "application/json", "text/event-stream")
SHOWN = 20


class Wrong(Exception):
    """An input had a forbidden effect."""


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.entries: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info or "Traceback" in record.getMessage():
            text = self.format(record)
            self.entries.append(f"log: {text.splitlines()[0]} ... {text.splitlines()[-1]}")


def responses(raw: bytes) -> list[Answer]:
    """Return the final responses. Raise `Wrong` if one is malformed or truncated."""
    try:
        parsed = answers(raw, may_be_heads=True)
    except (AssertionError, ValueError):
        raise Wrong("not HTTP, or chunks that are not well-formed") from None
    if not all(each.whole or each.headers.get("content-type") == "text/event-stream" for each in parsed):
        raise Wrong("an answer that is cut off")
    return [each for each in parsed if each.status >= 200]


def check(response: Answer) -> dict:
    """Return the JSON of a response, empty if it has none. Raise `Wrong` for a response that must never be sent."""
    status, kind = response.status, response.headers.get("content-type", "")
    if status not in FINE:
        raise Wrong(f"a {status}")
    if kind != "application/json" if status >= 400 else not kind.startswith(PAGES) and kind:
        raise Wrong(f"a {status} of type {kind}")
    if kind != "application/json" or not response.body:
        return {}
    try:
        content = response.json
    except ValueError:
        raise Wrong(f"a {status} whose JSON is none") from None
    if type(content) is not dict or (status >= 400 and content.keys() - {"action"} != {"error"}):
        raise Wrong(f"a {status} with other JSON than ever")
    return content


class Fuzzer:
    """A server with its data in `room`, and a fuzzer whose inputs are derived from a seed."""

    def __init__(self, seed: int, room: Path) -> None:
        self.wrong: Counter[str] = Counter()  # number of each forbidden effect
        self.examples: dict[str, str] = {}  # the first input for each effect
        self.statuses: Counter[int] = Counter()
        self._maker = Maker(random.Random(seed))
        self._rng = self._maker.rng
        self._room = room
        self._log = Log()

    async def run(self, inputs: int) -> int:
        loop = asyncio.get_running_loop()
        note = self._log.entries.append
        loop.set_exception_handler(lambda loop, context: note(f"loop: {context.get('exception')!r}"))
        root = logging.getLogger()
        root.addHandler(self._log)
        service = Service(self._room / "data")
        await service.start()
        refusal = make_error_responder(service.shared.log)
        sent = swept = 0
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(root.removeHandler, self._log)
            stack.push_async_callback(service.stop)
            states = []
            for name, application in (("public", service.application), ("admin", service.admin)):
                listening = socket.socket(socket.AF_UNIX)
                listening.bind(str(self._room / name))
                server = await stack.enter_async_context(TRANSPORTS["own"](application, [listening], refusal))
                states.append(server.state)
            while sent < inputs:
                before = sent
                if self._rng.random() < BYTES_SHARE * TOGETHER / (1 + BYTES_SHARE * (TOGETHER - 1)):
                    await self._send([self._maker.broken() for _ in range(SIDE_BY_SIDE)])
                    sent += SIDE_BY_SIDE
                else:
                    await self._send([self._maker.operations(TOGETHER) for _ in range(SIDE_BY_SIDE)])
                    sent += TOGETHER * SIDE_BY_SIDE
                service.clock.ms += STEP_MS * (sent - before)
                if sent - swept >= SWEEP:
                    swept = sent
                    while await service.store.sweep(service.clock.ms):
                        pass
            with contextlib.suppress(TimeoutError):
                await until(lambda: not any(state.connections for state in states))
            if left := sum(len(state.connections) for state in states):
                self._note(f"{left} connections that do not end", [])
        return sent

    async def _send(self, inputs: list[Input]) -> None:
        results = await asyncio.gather(*map(self._one, inputs), return_exceptions=True)
        for result, each in zip(results, inputs, strict=True):
            if isinstance(result, Wrong):
                self._note(str(result), [each])
            elif result is not None:
                raise result
        for entries in self._log.entries:
            self._note(entries, inputs)
        self._log.entries.clear()

    async def _one(self, each: Input) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._room / ("admin" if each.admin else "public")))
        received = bytearray()
        raw = b"".join(each.pieces)
        may_wait = b"/events" in raw or b"wait" in raw
        try:
            for piece in each.pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            if each.leaves:
                await asyncio.sleep(LEFT_S if self._rng.random() < 0.1 else 0)
                return
            writer.write_eof()
            looks = LOOKS
            while looks and not reader.at_eof():  # while data arrives
                looks -= 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((WAITING_S if may_wait else PATIENCE_S) / LOOKS):
                        received += await reader.read(1 << 16)
                        looks = LOOKS
            if not reader.at_eof() and may_wait:
                return
            if not reader.at_eof():
                raise Wrong("a connection that does not end")
        except OSError:
            pass  # the server has closed the connection, after what was received
        finally:
            writer.transport.abort()
        for response in responses(bytes(received)):
            self.statuses[response.status] += 1
            self._maker.remember(check(response))

    def _note(self, what: str, inputs: list[Input]) -> None:
        what = re.sub(r"\d{4,}|0x[0-9a-f]+", "N", what)
        self.wrong[what] += 1
        self.examples.setdefault(what, " | ".join(repr(b"".join(each.pieces))[:2000] for each in inputs))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/hostile/fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=30_000, help="how many (default: %(default)d)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is made up (default: %(default)d)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as room:
        fuzzer = Fuzzer(options.seed, Path(room))
        began_s = time.monotonic()
        sent = uvloop.run(fuzzer.run(options.inputs))
        taken_s = time.monotonic() - began_s
    print(f"seed {options.seed}: {sent} inputs in {taken_s:.1f} s, {sent / taken_s:.0f} a second")
    print("statuses:", ", ".join(f"{status}: {count}" for status, count in sorted(fuzzer.statuses.items())))
    for what, count in fuzzer.wrong.most_common(SHOWN):
        print(f"WRONG, {count} times: {what}\n    after one of {fuzzer.examples[what]}")
    return int(bool(fuzzer.wrong))


if __name__ == "__main__":
    sys.exit(main())
