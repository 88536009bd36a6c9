"""A client for thousands of peers in one process, which knows when a failure is due to a restart and when it is not."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from urllib.parse import parse_qsl

from ..bench.processes import BenchError
from ..bench.sockets import UPGRADE, Rpc, open_socket

PATIENCE_S = 60.0  # for an answer, beyond what the request itself waits for
BREAKS = (OSError, asyncio.IncompleteReadError)


class Broken(Exception):
    """A request has no answer, or a 503: whether it was done nobody knows."""


class Tally:
    """What happened to all requests.

    Args:
        port: the server's, before and after every restart.

    Attributes:
        outages: from when until when the server was being stopped and started; the last one may have no end yet.
        answers: how many answers there were of each status.
        excused: how many requests failed because of a restart.
        wrong: what must not have happened, as sentences.
        latencies_s: of the requests that did not wait for news, since they were last taken.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.outages: list[tuple[float, float]] = []
        self.answers: Counter[int] = Counter()
        self.excused = 0
        self.wrong: list[str] = []
        self.latencies_s: list[float] = []

    def away(self, since_s: float, until_s: float) -> bool:
        """Whether the server was away at any moment between two (`time.monotonic`)."""
        return any(began_s <= until_s and since_s <= ended_s for began_s, ended_s in self.outages)

    def broken(self, what: str, opened_s: float) -> Broken:
        """Count a failure on a connection that was opened then; no connection outlives a restart."""
        if self.away(opened_s, time.monotonic()):
            self.excused += 1
        else:
            self.wrong.append(what)
        return Broken(what)


class Client:
    """One keep-alive connection, opened when it is needed."""

    def __init__(self, tally: Tally, origin: str) -> None:
        self._tally = tally
        self._origin = origin
        self._writer: asyncio.StreamWriter | None = None
        self._opened_s = float("inf")

    async def ask(self, method: str, path: str, fields: dict | None = None, wait_s: float = 0) -> tuple[int, dict]:
        """Send a request; status and JSON.

        Raises:
            Broken: there is no answer, or a 503.
        """
        what = f"{method} /{path.rpartition('/')[2]}"
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + wait_s):
                await self._send(method, path, fields)
                status, headers = await self._head()
                found = json.loads(await self._body(headers))
        except (*BREAKS, TimeoutError, ValueError) as error:
            self.close()
            raise self._tally.broken(f"{what}: {error!r}", min(began_s, self._opened_s)) from error
        self._tally.answers[status] += 1
        if headers.get("connection") == "close":
            self.close()
        if status == 503:
            raise self._tally.broken(f"{what}: 503 {found}", min(began_s, self._opened_s))
        if not wait_s and not self._tally.away(began_s, time.monotonic()):
            self._tally.latencies_s.append(time.monotonic() - began_s)
        return status, found

    async def events(self, path: str, last: str | None):
        """Read a stream until the server ends it: pairs of an event's fields and its data.

        Raises:
            Broken: it ended otherwise, or was refused.
        """
        began_s = time.monotonic()
        try:
            await self._send("GET", path, headers=f"Last-Event-ID: {last}\r\n" if last else "")
            status, headers = await self._head()
            self._tally.answers[status] += 1
            if status != 200:
                found = json.loads(await self._body(headers))
                if status != 404:
                    raise ConnectionError(f"{status} {found}")
                return
            read = b""
            while piece := await self._chunk():
                *blocks, read = (read + piece).split(b"\n\n")
                for block in blocks:
                    pairs = [line.partition(": ") for line in block.decode().split("\n")]
                    event = {name: value for name, _, value in pairs}
                    yield event, json.loads(event.get("data", "{}"))
        except (*BREAKS, ValueError) as error:
            raise self._tally.broken(f"a stream: {error!r}", min(began_s, self._opened_s)) from error
        finally:
            self.close()

    def close(self) -> None:
        """End the connection; the next request opens another one."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _send(self, method: str, path: str, fields: dict | None = None, headers: str = "") -> None:
        if self._writer is None or self._writer.is_closing() or self._reader.at_eof():
            self.close()
            self._opened_s = time.monotonic()
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._tally.port)
        body = json.dumps(fields).encode() if fields is not None else b""
        length = f"Content-Length: {len(body)}\r\n" if fields is not None else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: soak\r\nOrigin: {self._origin}\r\n{length}{headers}\r\n"
        self._writer.write(head.encode() + body)

    async def _head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines if line)

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        pieces = []
        while piece := await self._chunk():
            pieces.append(piece)
        return b"".join(pieces)

    async def _chunk(self) -> bytes:
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


class SocketClient:
    """The same over one WebSocket: requests and streams are called and look as they do over HTTP.

    What has been asked for ends with a connection that ends; the next request opens another one.
    """

    def __init__(self, tally: Tally, origin: str) -> None:
        self._tally = tally
        self._origin = origin
        self._rpc: Rpc | None = None
        self._opened_s = float("inf")

    @property
    def open(self) -> bool:
        """Whether the connection has been opened and has not ended."""
        return self._rpc is not None and not self._rpc.ended

    async def ask(self, method: str, path: str, fields: dict | None = None, wait_s: float = 0) -> tuple[int, dict]:
        """Send a request; status and JSON.

        Raises:
            Broken: there is no answer, or a 503.
        """
        name, params = call_of(path, fields or {})
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + wait_s):
                response = await (await self._connected()).ask(name, params)
        except (*BREAKS, TimeoutError, BenchError) as error:
            raise self._broken(f"WebSocket, {name}: {error!r}", began_s) from error
        status, found = 200, response.get("result")
        if found is None:
            status, found = response["error"]["code"], {"error": response["error"]["message"]}
        self._tally.answers[status] += 1
        if status == 503:
            raise self._tally.broken(f"WebSocket, {name}: 503 {found}", min(began_s, self._opened_s))
        if not wait_s and not self._tally.away(began_s, time.monotonic()):
            self._tally.latencies_s.append(time.monotonic() - began_s)
        return status, found

    async def events(self, path: str, last: str | None):
        """Read a subscription until its session ends: pairs of an event's fields and its data.

        Raises:
            Broken: the connection ended, or it was refused.
        """
        _, params = call_of(path, {"since": last} if last else {})
        status, found = await self.ask("", "/subscribe", params)
        if status == 404:
            return
        if status != 200:
            raise self._tally.broken(f"subscribe: {status} {found}", time.monotonic())
        began_s, rpc = time.monotonic(), self._rpc
        try:
            while True:
                event = await rpc.event()
                if event["subscription"] != found["subscription"]:
                    continue
                fields = {"id": event["cursor"]} | ({"event": event["type"]} if "type" in event else {})
                yield fields, event.get("data", {})
                if "code" in params and fields.get("event") == "gone":
                    return
        except ConnectionError as error:
            raise self._broken(f"a subscription: {error!r}", began_s) from error
        finally:
            with contextlib.suppress(ConnectionError):  # it may have ended by itself
                await rpc.ask("unsubscribe", found)

    def close(self) -> None:
        """End the connection."""
        if self._rpc is not None:
            self._rpc.close()
            self._rpc = None

    async def _connected(self) -> Rpc:
        if self._rpc is None:
            self._opened_s = time.monotonic()
            upgrade = f"GET /ws HTTP/1.1\r\nHost: soak\r\nOrigin: {self._origin}\r\n{UPGRADE}\r\n".encode()
            self._rpc = Rpc(await open_socket("127.0.0.1", self._tally.port, "127.0.0.1", upgrade))
        return self._rpc

    def _broken(self, what: str, began_s: float) -> Broken:
        self.close()
        return self._tally.broken(what, min(began_s, self._opened_s))


def call_of(path: str, fields: dict) -> tuple[str, dict]:
    """Method and parameters of JSON-RPC for what is asked for over HTTP."""
    place, _, query = path.partition("?")
    _, *topic, name = place.split("/")
    params = {key: value if key in ("code", "side") else json.loads(value) for key, value in parse_qsl(query)}
    return name or "version", params | fields | ({"topic": topic[0]} if topic else {})
