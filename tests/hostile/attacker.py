"""The attacking address: building blocks of all attacks.

Requests are encoded in advance, so that the attacker uses little of the CPU that it shares with the server.
"""

import asyncio
import base64
import contextlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .wire import ATTACKER, BROKEN, PREPARER, Client, Place, make_socket, request, reset

ORIGIN = "https://attacker.example"
RATE, BURST = 98, 980  # slightly less than the default limits of an address
CONNECTIONS = 990
BIG = base64.b64encode(random.Random(1).randbytes(192_000)).decode()  # incompressible text
PATIENCE_S = 10.0
HOLD_S = 20.0
SMALL_ROOM = 4096


@dataclass(frozen=True)
class Attack:
    run: Callable[["Attacker"], Awaitable[None]]
    options: tuple[str, ...] = ()
    tls: bool = False
    disk_mib: int = 0  # size of a separate filesystem for the data, or 0 for none
    files: int = 0  # limit of descriptors, or 0 for the machine's limit
    keys: bool = False  # whether the server requires tokens

    @property
    def meaning(self) -> str:
        return (self.run.__doc__ or "").partition("\n")[0]


ATTACKS: dict[str, Attack] = {}


def attack(*options: str, **rest: int):
    """Register a coroutine function as an attack. The arguments are those of `Attack`."""

    def register(run):
        ATTACKS[run.__name__.replace("_", "-")] = Attack(run, options, **rest)
        return run

    return register


class Pace:
    """A rate limit like the server's: a number per second, and a burst."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._at_s = time.monotonic()

    async def take(self, count: int = 1) -> None:
        """Take tokens, and wait until they are available."""
        now_s = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate) - count
        self._at_s = now_s
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)


class Attacker:
    def __init__(self, place: Place, seconds: float) -> None:
        self.place = place
        self.seconds = seconds
        self.pace = Pace(RATE, BURST)
        self.answers: Counter[str] = Counter()  # number of responses by status, or by error
        self.loop = asyncio.get_running_loop()
        self._buffer = bytearray(1 << 20)
        self.begin()

    def begin(self) -> None:
        """Forget all responses from before the attack."""
        self.begun_s = time.monotonic()
        self.end_s = self.begun_s + self.seconds
        self.answers.clear()

    def slow_down(self, rate: float = RATE) -> None:
        """Have another rate, and no burst."""
        self.pace = Pace(rate, 0)

    # Requests with responses

    async def ask(self, client: Client, raw: bytes) -> bytes | None:
        await self.pace.take()
        return await self.exchange(client, raw)

    async def exchange(self, client: Client, raw: bytes) -> bytes | None:
        """Send a request at once, and return the body of a success."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                status, body = await client.exchange(raw)
        except BROKEN as error:
            client.close()
            self.answers[type(error).__name__] += 1
            await asyncio.sleep(0.05)
            return None
        self.answers[str(status)] += 1
        return body if status == 200 else None

    async def code(self, client: Client, raw: bytes) -> str | None:
        body = await self.ask(client, raw)
        return json.loads(body)["code"] if body else None

    async def must(self, raw: bytes) -> dict:
        client = self.client()
        for _ in range(100):
            if (body := await self.ask(client, raw)) is not None:
                client.close()
                return json.loads(body)
            await asyncio.sleep(0.1)
        raise AssertionError(f"never a 200: {self.answers}")

    def client(self, address: str = ATTACKER) -> Client:
        return Client(self.place, address, ORIGIN)

    async def often(self, times: int, once: Callable[[Client], Awaitable[object]]) -> None:
        """Repeat an action on parallel connections."""

        async def go_on() -> None:
            client = self.client()
            while True:
                await once(client)

        await asyncio.gather(*(go_on() for _ in range(times)))

    async def repeat(self, times: int, raw: bytes) -> None:
        await self.often(times, lambda client: self.ask(client, raw))

    async def prepare(self, count: int, one: Callable[[Client, int], Awaitable[object]], until_s: float = 0) -> None:
        """Do in seconds what an address has minutes for. Then the attack begins, at `until_s`."""
        self.end_s = float("inf")
        numbers = iter(range(count))

        async def some() -> None:
            client = self.client(PREPARER)
            for number in numbers:
                await one(client, number)
            client.close()

        await asyncio.gather(*(some() for _ in range(20)))
        await asyncio.sleep(until_s - time.monotonic())
        self.begin()

    async def publish_big(self) -> None:
        """Fill a topic whose listing is long."""
        raw = offer("big", BIG)
        await asyncio.gather(*(self.ask(self.client(), raw) for _ in range(60)))

    async def publish_and_withdraw(self, client: Client, topic: str) -> None:
        if body := await self.exchange(client, offer(topic)):
            await self.exchange(client, post("/withdraw", code=json.loads(body)["code"], side="offerer"))

    # Misuse of connections

    async def open(self, room: int | None = None) -> socket.socket:
        made = make_socket(ATTACKER, room)
        made.setblocking(False)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.loop.sock_connect(made, ("127.0.0.1", self.place.port))
        except BaseException:
            made.close()
            raise
        return made

    async def send(self, connected: socket.socket, raw: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.loop.sock_sendall(connected, raw)

    async def swallow(self, connected: socket.socket, for_s: float) -> None:
        """Read and discard data until the connection is closed, or for some time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                while await self.loop.sock_recv_into(connected, self._buffer):
                    pass

    async def hold(self, count: int, treat: Callable[[socket.socket], Awaitable], room: int | None = None) -> None:
        """Keep a number of connections open, each misused in this way and then reopened."""

        async def one() -> None:
            while True:
                try:
                    connected = await self.open(room)
                    try:
                        await treat(connected)
                        self.answers["treated"] += 1
                    finally:
                        reset(connected)
                except (OSError, TimeoutError) as error:
                    self.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one() for _ in range(count)))

    async def swarm(self, count, raw, *, paced=True, wait_s=0, size=65536, read_s=0, rest_s=0, room=None) -> None:
        """Send the same bytes, or those that a function returns, on a number of connections, repeatedly.

        Each connection then waits for a limited part of the response, reads for a time, rests, and closes.
        """

        async def treat(connected: socket.socket) -> None:
            if paced:
                await self.pace.take()
            await self.send(connected, raw() if callable(raw) else raw)
            if wait_s:
                async with asyncio.timeout(wait_s):
                    await self.loop.sock_recv(connected, size)
            if read_s:
                await self.swallow(connected, read_s)
            await asyncio.sleep(rest_s)

        await self.hold(count, treat, room)


# Requests


def get(path: str, headers: str = "") -> bytes:
    return request("GET", path, origin=ORIGIN, headers=headers)


def post(path: str, **fields: object) -> bytes:
    return request("POST", path, fields, origin=ORIGIN)


def offer(topic: str, text: str = "o", **fields: object) -> bytes:
    return post(f"/{topic}/offer", info="i", offer=text, **fields)
