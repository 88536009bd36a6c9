"""HTTP clients with one request at a time for each connection, and latencies."""

import asyncio
import gc
from contextlib import contextmanager
from urllib.parse import urlsplit

import orjson
from hostile import wire

from .processes import BenchError
from .sockets import ORIGIN

PATIENCE_S = 120.0
# Text of the sizes that browsers send, without JSON escapes, that no store compresses away.
NOISE = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(125))
OFFER = {"info": "i" * 36, "offer": NOISE[:500]}


class Connection(wire.Client):
    """A connection to a server on this machine, from one of its addresses."""

    abort = wire.Client.close

    def __init__(self, base: str, address: str = "127.0.0.1") -> None:
        super().__init__(wire.Place(urlsplit(base).port), address, ORIGIN)

    async def must(self, data: bytes) -> dict:
        """Send a request and return the JSON of its response, which must be a success."""
        try:
            status, body = await self.exchange(data)
        except wire.BROKEN as error:
            status, body = repr(error), b""
        if status not in (200, 204):
            raise BenchError(f"{data[:50]!r} was answered with {status} {body[:200]!r}")
        return orjson.loads(body or b"{}")


@contextmanager
def quiet():
    """Disable garbage collection, which would pause this process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def offer(topic: str) -> bytes:
    return wire.request("POST", f"/{topic}/offer", OFFER, origin=ORIGIN)


async def create(base: str, topics: list[str]) -> list[str]:
    """Publish one offer in each of the topics, and return the codes."""
    connections = [Connection(base) for _ in range(min(len(topics), 32))]
    waiting = list(enumerate(topics))
    codes = [""] * len(topics)

    async def work(connection: Connection) -> None:
        while waiting:
            at, topic = waiting.pop()
            codes[at] = (await connection.must(offer(topic)))["code"]
        connection.close()

    await asyncio.wait_for(asyncio.gather(*map(work, connections)), PATIENCE_S)
    return codes


def percentile(latencies_s: list[float], share: float) -> float:
    """Return the latency, in ms, that a share of the requests did not exceed."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
