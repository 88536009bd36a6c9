"""Honest peers of one address and one origin, as a process that records durations and errors.

They start immediately, and print "ready" once all of them are running. When standard input ends, they stop and print
their records as JSON.
"""

import asyncio
import contextlib
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

import uvloop
from support.rpc import RpcClient, open_socket, outcome
from websockets.exceptions import WebSocketException

from .wire import BROKEN, HONEST, Client, Place

ORIGIN = "https://honest.example"
PAIRS = 5
PATIENCE_S = 60.0  # response timeout. The verdict judges the recorded times
WAIT_S = 20
LISTENING_S = 0.05  # for a wait to arrive before it is answered
REST_S = 0.15  # pause after each step of a pair, so that all together stay well below the rate limit of an address
TTL_MS = 1000
OFFER = "v=0 " * 200
CANDIDATE = "candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host"


class Failed(Exception):
    """A request without a 200 response. It has been recorded."""


class Peers:
    """All honest peers and their records: moments, each with the duration or the error."""

    def __init__(self, place: Place) -> None:
        names = ("poll", "wake", "gone", "failed")
        self.recorded: dict[str, list[tuple[float, float | str]]] = {name: [] for name in names}
        self._place = place
        self._news: defaultdict[tuple[str, str], asyncio.Event] = defaultdict(asyncio.Event)  # by kind and code
        self._watching = asyncio.Event()
        self._said = False

    async def live(self) -> None:
        async with asyncio.TaskGroup() as everybody:
            pairs = [functools.partial(self._meet, number) for number in range(PAIRS)]
            for once in (*pairs, self._watch, self._expire, self._hold):
                everybody.create_task(self._again_and_again(once))

    async def _again_and_again(self, once) -> None:
        while True:
            try:
                await once()
            except Failed:
                await asyncio.sleep(0.5)

    def _client(self) -> Client:
        return Client(self._place, HONEST, ORIGIN, self._place.authorization)

    def _fail(self, began_s: float, what: str) -> Failed:
        self.recorded["failed"].append((began_s, what))
        return Failed(what)

    async def _timed(self, what: str, asking: Awaitable[tuple[int, dict]], wait_s: float = 0, client=None) -> dict:
        """Return the result of a request, and record how long it took, unless it waits."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + wait_s):
                status, response = await asking
        except BROKEN as error:
            if client is not None:  # later responses would be ambiguous
                client.close()
            raise self._fail(began_s, f"{what}: {error!r}") from error
        finally:
            if what.endswith("poll"):
                self.recorded["poll"].append((began_s, time.monotonic() - began_s))
        if status != 200:
            raise self._fail(began_s, f"{what}: {status} {response}")
        return response

    async def _ask(self, client: Client, what: str, method: str, path: str, fields=None, wait_s: float = 0) -> dict:
        return await self._timed(what, client.ask(method, path, fields), wait_s, client)

    async def _meet(self, number: int) -> None:
        """Let two peers connect, one over a kept connection and the other over a new one."""
        with contextlib.closing(self._client()) as offerer:
            for _ in range(3):
                with contextlib.closing(self._client()) as answerer:
                    await self._exchange(offerer, answerer, f"/honest-{number}")

    async def _exchange(self, offerer: Client, answerer: Client, topic: str) -> None:
        session = await self._ask(offerer, "offer", "POST", f"{topic}/offer", {"info": "i", "offer": OFFER})
        code = {"code": session["code"]}
        by_offerer, by_answerer = code | {"side": "offerer"}, code | {"side": "answerer"}
        await asyncio.sleep(REST_S)
        listed = await self._ask(answerer, "sessions", "GET", f"{topic}/sessions")
        if session["code"] not in [each["code"] for each in listed["sessions"]]:
            raise self._fail(time.monotonic(), "sessions: without the one that was acknowledged")
        await self._ask(answerer, "poll", "POST", "/poll", by_answerer)
        await self._ask(answerer, "candidate", "POST", "/answer", by_answerer | {"candidate": CANDIDATE})
        polled = await self._ask(offerer, "poll", "POST", "/poll", by_offerer)
        if polled["answerCandidates"] != [CANDIDATE]:
            raise self._fail(time.monotonic(), "poll: without the candidate that was acknowledged")
        await asyncio.sleep(REST_S)
        cursor = (await self._ask(offerer, "poll", "POST", "/poll", by_offerer | {"wait": 0}))["cursor"]

        async def wait() -> None:
            fields = by_offerer | {"wait": WAIT_S, "since": cursor}
            if (await self._ask(offerer, "wait", "POST", "/poll", fields, WAIT_S))["answer"] != "an answer":
                raise self._fail(time.monotonic(), "wait: without the answer")

        answer = by_answerer | {"answer": "an answer"}
        await self._wake(wait, lambda: self._ask(answerer, "answer", "POST", "/answer", answer))
        await self._ask(offerer, "candidate", "POST", "/answer", by_offerer | {"candidate": CANDIDATE})
        await asyncio.sleep(REST_S)
        for client, fields in ((offerer, by_offerer), (answerer, by_answerer)):
            await self._ask(client, "poll", "POST", "/poll", fields)
        await self._ask(offerer, "withdraw", "POST", "/withdraw", by_offerer)
        await asyncio.sleep(REST_S)

    async def _wake(self, wait: Callable[[], Awaitable], send: Callable[[], Awaitable]) -> None:
        """Record the time from the acknowledgement of what is sent to the end of the wait."""

        async def woken_s() -> float:
            await wait()
            return time.monotonic()

        waiting = asyncio.create_task(woken_s())
        try:
            await asyncio.sleep(LISTENING_S)
            await send()
            sent_s = time.monotonic()
            self.recorded["wake"].append((sent_s, max(0.0, await waiting - sent_s)))
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        if not self._said and len(self.recorded["wake"]) >= PAIRS and self._watching.is_set():
            self._said = True
            print("ready", flush=True)

    async def _watch(self) -> None:
        began_s = time.monotonic()
        with contextlib.closing(self._client()) as client:
            try:
                async with contextlib.aclosing(client.events("/honest-watched/events")) as events:
                    async for event in events:
                        self._watching.set()
                        if event.get("event") in ("session", "gone"):
                            self._news[event["event"], json.loads(event["data"])["code"]].set()
            except BROKEN as error:
                raise self._fail(began_s, f"stream: {error!r}") from error
            finally:
                self._watching.clear()
        raise self._fail(began_s, "stream: ended")

    async def _expire(self) -> None:
        """Publish where others watch, and wait until they learn of the expiry."""
        await self._watching.wait()
        with contextlib.closing(self._client()) as client:
            fields = {"info": "gone", "offer": OFFER, "ttl": TTL_MS}
            code = (await self._ask(client, "offer", "POST", "/honest-watched/offer", fields))["code"]
        began_s, due_s = time.monotonic(), TTL_MS / 1000
        for kind in ("session", "gone"):
            try:
                async with asyncio.timeout(due_s + 2 * PATIENCE_S):
                    await self._news[kind, code].wait()
            except TimeoutError as error:
                raise self._fail(began_s, f"stream: no {kind}") from error
        self.recorded["gone"].append((began_s, max(0.0, time.monotonic() - began_s - due_s)))

    async def _hold(self) -> None:
        """Hold an offer over a WebSocket, send requests there, and read events as long as candidates arrive."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S):
                options = {"ssl": context} if (context := self._place.context()) else {}
                if token := self._place.token:
                    options["additional_headers"] = {"Authorization": f"Bearer {token}"}
                opening = open_socket(self._place, ORIGIN, local_addr=(HONEST, 0), open_timeout=None, **options)
                rpc = await opening.__aenter__()
        except (*BROKEN, WebSocketException) as error:
            raise self._fail(began_s, f"WebSocket: {error!r}") from error
        with contextlib.closing(rpc), contextlib.closing(self._client()) as other:
            fields = {"topic": "honest-held", "info": "h", "offer": OFFER, "hold": True}
            code = {"code": (await self._call(rpc, "offer", fields))["code"]}
            await self._call(rpc, "subscribe", code | {"side": "offerer"})
            for number in range(1000):
                await asyncio.sleep(2 * REST_S)
                await self._call(rpc, "poll", code | {"side": "offerer"})
                candidate = {"candidate": str(number)}
                sent = code | {"side": "answerer"} | candidate
                send = functools.partial(self._ask, other, "candidate", "POST", "/answer", sent)
                await self._wake(functools.partial(self._hear, rpc, candidate), send)

    async def _call(self, rpc: RpcClient, what: str, params: dict) -> dict:
        async def call() -> tuple[int, dict]:
            return outcome(await rpc.send(what, **params))

        return await self._timed(f"WebSocket, {what}", call())

    async def _hear(self, rpc: RpcClient, data: dict) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (await rpc.any_event()).get("data") != data:
                    pass
        except BROKEN as error:
            raise self._fail(time.monotonic(), f"WebSocket, event: {error!r}") from error


async def main(place: Place) -> None:
    peers = Peers(place)
    living = asyncio.create_task(peers.live())
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([living, ended], return_when=asyncio.FIRST_COMPLETED)
    if living.done():
        living.result()
    failed = list(peers.recorded["failed"])
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    json.dump(peers.recorded | {"failed": failed}, sys.stdout)


if __name__ == "__main__":
    uvloop.run(main(Place.parse(*sys.argv[1:])))
