"""The attacking address: building blocks of all attacks.

Requests are encoded in advance, so that the attacker uses little of the CPU that it shares with the server.
"""

import asyncio
import base64
import contextlib
import functools
import itertools
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.sockets import CLOSE, TEXT, take_frame, upgrade

from .wire import ATTACKER, BROKEN, PREPARER, Client, Place, make_socket, request, reset

ORIGIN = "https://attacker.example"
RATE, BURST = 98, 980  # slightly less than the default limits of an address
CONNECTIONS = 990
BIG = base64.b64encode(random.Random(1).randbytes(192_000)).decode()  # incompressible text
PATIENCE_S = 10.0
HOLD_S = 20.0
SMALL_ROOM = 4096
UPGRADING = upgrade("/ws", ORIGIN)
BUFFER = memoryview(bytearray(1 << 20))  # for what nobody reads


@dataclass(frozen=True)
class Attack:
    run: Callable[["Attacker"], Awaitable[object]]
    meaning: str
    options: tuple[str, ...] = ()
    tls: bool = False
    disk_mib: int = 0  # size of a separate filesystem for the data, or 0 for none
    files: int = 0  # limit of descriptors, or 0 for the machine's limit
    keys: bool = False  # whether the server requires tokens


ATTACKS: dict[str, Attack] = {}


def attack(*options: str, **rest: int):
    """Register a coroutine function as an attack. The arguments are those of `Attack`."""

    def register(run):
        ATTACKS[run.__name__.replace("_", "-")] = Attack(run, run.__doc__, options, **rest)
        return run

    return register


def misuse(count: int, upgrading: bytes | Callable[[], bytes] = UPGRADING, **options: object):
    """Register an attack of a number of connections, from what it does with each. The options are those of `hold`."""

    def register(treat: Callable[["Connection"], Awaitable[object]]):
        @functools.wraps(treat)
        async def run(attacker: Attacker) -> None:
            await attacker.hold(count, treat, upgrading, **options)

        return attack()(run)

    return register


def mix(names: str, *options: str) -> Attack:
    """Return an attack that consists of several registered ones."""
    runs = [ATTACKS[name].run for name in names.split()]
    return Attack(lambda attacker: asyncio.gather(*(run(attacker) for run in runs)), f"Together: {names}.", options)


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


class Connection:
    """A connection that an attack misuses."""

    def __init__(self, attacker: "Attacker", connected: socket.socket) -> None:
        self._attacker, self._socket, self._received = attacker, connected, b""

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self._attacker.loop.sock_sendall(self._socket, data)

    async def paced(self, data: bytes, requests: int = 1) -> None:
        """Send data with a number of requests as soon as the rate limit of an address allows."""
        await self._attacker.pace.take(requests)
        await self.send(data)

    async def swallow(self, for_s: float = HOLD_S, most: int | None = None) -> None:
        """Read and discard data until the connection is closed, or for some time, or only once and `most` bytes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                while await self._attacker.loop.sock_recv_into(self._socket, BUFFER[:most]) and most is None:
                    pass

    async def flood(self, data: bytes, end: Awaitable[None]) -> None:
        """Send the same as fast as possible, until another coroutine has read to the end."""
        reading = asyncio.ensure_future(end)
        try:
            while not reading.done():
                with contextlib.suppress(ConnectionError):
                    await self.send(data)
                await asyncio.sleep(0)
            await reading
        finally:
            reading.cancel()

    # WebSockets

    async def upgrade(self, upgrading: bytes) -> None:
        await self.paced(upgrading)
        async with asyncio.timeout(PATIENCE_S):
            while b"\r\n\r\n" not in self._received:
                await self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionRefusedError(head.split(b"\r\n")[0])

    async def ask(self, data: bytes, requests: int = 1) -> bytes:
        """Send frames with a number of requests, and return the next text."""
        await self.paced(data, requests)
        async with asyncio.timeout(PATIENCE_S):
            while (taken := await self._frame())[0] != TEXT:
                if taken[0] == CLOSE:
                    raise ConnectionAbortedError
        return taken[1]

    async def closed(self, *codes: int | None) -> None:
        """Read to the end and count the close code, or None without a close frame."""
        code = None
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE_S):
                while code is None:
                    kind, payload = await self._frame()
                    code = int.from_bytes(payload[:2]) if kind == CLOSE else None
        self._attacker.answers[f"{'closed' if code in codes else 'wrong: closed'} {code}"] += 1

    async def _frame(self) -> tuple[int, bytes]:
        while not (taken := take_frame(self._received)):
            await self._read()
        kind, payload, self._received = taken
        return kind, payload

    async def _read(self) -> None:
        data = await self._attacker.loop.sock_recv(self._socket, 65536)
        if not data:
            raise ConnectionResetError("the end")
        self._received += data


class Attacker:
    def __init__(self, place: Place, seconds: float) -> None:
        self.place = place
        self.seconds = seconds
        self.pace = Pace(RATE, BURST)
        self.answers: Counter[str] = Counter()  # number of responses by status, or by error
        self.loop = asyncio.get_running_loop()
        self.begin()

    def begin(self) -> None:
        """Forget all responses from before the attack."""
        self.begun_s = time.monotonic()
        self.end_s = self.begun_s + self.seconds
        self.answers.clear()

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

    async def must(self, raw: bytes) -> dict:
        with contextlib.closing(self.client()) as client:
            for _ in range(100):
                if (body := await self.ask(client, raw)) is not None:
                    return json.loads(body)
                await asyncio.sleep(0.1)
        raise AssertionError(f"never a 200: {self.answers}")

    async def publish(self, topic: str, text: str = "o", **fields: object) -> str:
        """Publish an offer, and return its code."""
        return (await self.must(offer(topic, text, **fields)))["code"]

    def client(self, address: str = ATTACKER) -> Client:
        return Client(self.place, address, ORIGIN)

    async def often(self, times: int, once: Callable[[Client], Awaitable[object]]) -> None:
        """Repeat an action on parallel connections."""

        async def go_on() -> None:
            client = self.client()
            while True:
                await once(client)

        await asyncio.gather(*(go_on() for _ in range(times)))

    async def repeat(self, times: int, *raws: bytes, pause_s: float = 0) -> None:
        """Send any of these requests on parallel connections, each after a pause."""

        async def once(client: Client) -> None:
            await asyncio.sleep(pause_s)
            await self.ask(client, random.choice(raws))

        await self.often(times, once)

    async def prepare(self, count: int, one: Callable[[Client, int], Awaitable[object]], until_s: float = 0) -> None:
        """Do in seconds what an address has minutes for. Then the attack begins, at `until_s`."""
        self.end_s = float("inf")
        numbers = iter(range(count))

        async def some() -> None:
            with contextlib.closing(self.client(PREPARER)) as client:
                for number in numbers:
                    await one(client, number)

        await asyncio.gather(*(some() for _ in range(20)))
        await asyncio.sleep(until_s - time.monotonic())
        self.begin()

    async def publish_big(self) -> None:
        """Fill a topic whose listing is long."""
        await asyncio.gather(*(self.ask(self.client(), offer("big", BIG)) for _ in range(60)))

    async def publish_and_withdraw(self, client: Client, topic: str) -> None:
        if body := await self.exchange(client, offer(topic)):
            await self.exchange(client, post("/withdraw", code=json.loads(body)["code"], side="offerer"))

    # Misuse of connections

    async def hold(
        self,
        count: int,
        treat: Callable[[Connection], Awaitable[object]],
        upgrading: bytes | Callable[[], bytes] = b"",
        *,
        room: int | None = None,
        for_s: float | None = None,
    ) -> None:
        """Keep a number of connections open, each misused in this way, for a limited time if given, and then reopened.

        `upgrading` opens a WebSocket. `room` is the size of the receive buffer.
        """

        async def once() -> None:
            made = make_socket(ATTACKER, room)
            try:
                made.setblocking(False)
                async with asyncio.timeout(PATIENCE_S):
                    await self.loop.sock_connect(made, ("127.0.0.1", self.place.port))
                opened = Connection(self, made)
                if upgrading:
                    await opened.upgrade(upgrading() if callable(upgrading) else upgrading)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(for_s):
                        await treat(opened)
                self.answers["treated"] += 1
            finally:
                reset(made)

        async def go_on() -> None:
            while True:
                try:
                    await once()
                except OSError as error:
                    self.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(go_on() for _ in range(count)))

    async def swarm(self, count, *raws: bytes, paced=True, read_s=0, most=None, rest_s=0, room=None) -> None:
        """Send one of these data by turns on each of a number of connections, repeatedly.

        Each connection then reads for a time, or only once and `most` bytes, rests, and closes.
        """
        turns = itertools.cycle(raws)

        async def treat(opened: Connection) -> None:
            if paced:
                await self.pace.take()
            await opened.send(next(turns))
            if read_s:
                await opened.swallow(read_s, most)
            await asyncio.sleep(rest_s)

        await self.hold(count, treat, room=room)


# Requests


def get(path: str, headers: str = "") -> bytes:
    return request("GET", path, origin=ORIGIN, headers=headers)


def post(path: str, **fields: object) -> bytes:
    return request("POST", path, fields, origin=ORIGIN)


def offer(topic: str, text: str = "o", **fields: object) -> bytes:
    return post(f"/{topic}/offer", info="i", offer=text, **fields)
