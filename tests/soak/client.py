"""Clients for thousands of peers in one process."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from urllib.parse import parse_qsl

from bench.processes import BenchError
from hostile import wire
from support.rpc import RpcClient, outcome
from websockets.exceptions import WebSocketException

from .tally import Broken, Tally

PATIENCE_S = 60.0  # response timeout, in addition to the time for which the request itself waits
BREAKS = (*wire.BROKEN, BenchError, WebSocketException)


class Peer:
    """The client of a peer over HTTP. After each lost connection, `tally_of` returns the tally of the server to use."""

    protocol = "HTTP"

    def __init__(self, tally_of: Callable[[], Tally], origin: str) -> None:
        self._tally_of, self._origin = tally_of, origin
        self._choose_server()

    async def ask(self, method: str, path: str, fields: dict | None = None, wait_s: float = 0) -> tuple[int, dict]:
        """Send a request and return status and JSON. Raise `Broken` without a response or after a 503."""
        what = f"{method} /{path.partition('?')[0].rpartition('/')[2]}"
        if self._closed:
            self._choose_server()
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + wait_s):
                status, response = await self._exchange(method, path, fields)
        except BREAKS as error:
            self.close()
            raise self._broken(f"{what}: {error!r}", began_s) from error
        if status == 503:
            raise self._broken(f"{what}: 503 {response}", began_s)
        if not wait_s and not self._tally.away(began_s, time.monotonic()):
            self._tally.latencies_s.append(time.monotonic() - began_s)
        return status, response

    async def events(self, path: str, last: str | None):
        """Yield a stream's events as pairs of fields and data until the server ends it. Raise `Broken` if it breaks."""
        if self._closed:
            self._choose_server()
        began_s = time.monotonic()
        try:
            async for event in self._http.events(path, f"Last-Event-ID: {last}\r\n" if last else ""):
                yield event, json.loads(event.get("data", "{}"))
        except BREAKS as error:
            if not (isinstance(error, wire.Refused) and error.args[0] == 404):
                raise self._broken(f"a stream: {error!r}", began_s) from error
        finally:
            self.close()

    def close(self) -> None:
        self._http.close()
        self._closed = True

    def _choose_server(self) -> None:
        self._tally = self._tally_of()
        self._http = wire.Client(wire.Place(self._tally.port), "127.0.0.1", self._origin)
        self._closed = False

    @property
    def opened_s(self) -> float:
        return self._http.opened_s

    async def _exchange(self, method: str, path: str, fields: dict | None) -> tuple[int, dict]:
        return await self._http.ask(method, path, fields)

    def _broken(self, what: str, began_s: float) -> Broken:
        return self._tally.broken(self.protocol, what, self.opened_s, began_s)


class SocketPeer(Peer):
    """The client of a peer over one WebSocket.

    Requests and subscriptions end when the connection is closed. The next request opens another one.
    """

    protocol = "WebSocket"
    opened_s = float("inf")
    _rpc: RpcClient | None = None

    @property
    def open(self) -> bool:
        return self._rpc is not None and not self._rpc.over

    async def events(self, path: str, last: str | None):
        """Read a subscription until its session ends, as `Peer.events` reads a stream."""
        _, params = call_of(path, {"since": last} if last else {})
        status, subscription = await self.ask("POST", "/subscribe", params)
        if status == 404:
            return
        if status != 200:
            raise self._broken(f"subscribe: {status} {subscription}", time.monotonic())
        began_s, rpc = time.monotonic(), self._rpc
        try:
            while True:
                event = await rpc.any_event()
                if event["subscription"] != subscription["subscription"]:
                    continue
                fields = {"id": event["cursor"]} | ({"event": event["type"]} if "type" in event else {})
                yield fields, event.get("data", {})
                if "code" in params and fields.get("event") == "gone":
                    return
        except ConnectionError as error:
            self.close()
            raise self._broken(f"a subscription: {error!r}", began_s) from error
        finally:
            with contextlib.suppress(ConnectionError):  # the connection may be closed already
                await rpc.send("unsubscribe", **subscription)

    def close(self) -> None:
        super().close()
        if self._rpc is not None:
            self._rpc.close()
            self._rpc = None

    async def _exchange(self, method: str, path: str, fields: dict | None) -> tuple[int, dict]:
        if self._rpc is None:
            self.opened_s = time.monotonic()
            url = f"ws://127.0.0.1:{self._tally.port}/ws"
            self._rpc = await RpcClient(url, self._origin, open_timeout=None).__aenter__()
        name, params = call_of(path, fields or {})
        return outcome(await self._rpc.send(name, **params))


def call_of(path: str, fields: dict) -> tuple[str, dict]:
    place, _, query = path.partition("?")
    _, *topic, name = place.split("/")
    params = {key: value if key in ("code", "side") else json.loads(value) for key, value in parse_qsl(query)}
    return name or "version", params | fields | ({"topic": topic[0]} if topic else {})
