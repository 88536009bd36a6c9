"""Clients of every kind that never pause and never retry: `python -m support.load PORT` in `tests/`.

They print "ready" when all streams are open. When standard input ends, they stop and print their results as JSON.
"""

import asyncio
import collections
import itertools
import json
import sys

from .service import connected, request
from .sse import open_stream

PATIENCE_S = 30
PAUSE_S = 0.005  # between two new connections
LATE_S = 0.1  # between connecting and sending the request, as on a slow network
WAITERS = 40
KEEPERS = 10
LISTENERS = 10
OFFER = {"info": "i", "offer": "o"}


class Failure(Exception):
    """A wrong response."""


class Load:
    def __init__(self, port):
        self._port, self._over, self._listening = port, asyncio.Event(), 0
        self.answered, self.failures = collections.Counter(), []  # successful requests by kind, and error texts
        self.codes = []  # acknowledged sessions

    async def run(self, over):
        async with asyncio.TaskGroup() as group:
            for kind in [self._wait] * WAITERS + [self._keep] * KEEPERS:
                group.create_task(self._repeat(kind))
            listening = [group.create_task(self._repeat(self._listen)) for _ in range(LISTENERS)]
            group.create_task(self._come_and_go(group))
            await over
            self._over.set()
            for task in listening:  # their streams would never end
                task.cancel()

    async def _repeat(self, kind):
        while not self._over.is_set():
            await self._tried(kind)

    async def _tried(self, kind):
        try:
            await kind()
        except (Failure, OSError, asyncio.IncompleteReadError, ValueError, AssertionError) as error:
            self.failures.append(f"{kind.__name__}: {error!r}")
            await asyncio.sleep(0.1)

    async def _come_and_go(self, group):
        """Open connections at a steady rate, each for one request."""
        for kind in itertools.cycle((self._offer, self._look, self._late)):
            if self._over.is_set():
                return
            group.create_task(self._tried(kind))
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, connection, data, kind):
        await connection.send(data)
        response = await connection.receive()
        if response is None or response.status != 200:
            raise Failure(response and (response.status, response.body))
        self.answered[kind] += 1
        return response

    async def _alone(self, kind, method, target, body=None, pause_s=0):
        async with asyncio.timeout(PATIENCE_S), connected(self._port) as connection:
            await asyncio.sleep(pause_s)
            return (await self._ask(connection, request(method, target, body), kind)).json

    async def _offer(self, topic="load"):
        code = (await self._alone("offers", "POST", f"/{topic}/offer", OFFER))["code"]
        self.codes.append(code)
        return code

    async def _look(self):
        await self._alone("looks", "GET", "/topics")

    async def _late(self):
        await self._alone("late looks", "GET", "/load/sessions?limit=1", pause_s=LATE_S)

    async def _wait(self):
        code = await self._offer("waits")
        await self._alone("waits", "POST", "/poll", {"code": code, "side": "offerer", "wait": 5})

    async def _keep(self):
        """Send requests over one connection until the server announces `Connection: close`."""
        async with connected(self._port) as connection:
            while not self._over.is_set():
                async with asyncio.timeout(PATIENCE_S):
                    response = await self._ask(connection, request("GET", "/topics"), "kept")
                if response.headers.get("Connection") == "close":
                    return
                await asyncio.sleep(0.05)

    async def _listen(self):
        """Read a stream, which the server has to end properly and with a `retry` value."""
        async with open_stream(self._port, "/quiet/events") as stream:
            if stream.status != 200:
                raise Failure(stream.status)
            self._listening += 1
            if self._listening == LISTENERS:
                print("ready", flush=True)
            while await stream.next():
                pass
            if stream.retry_ms is None or not 500 <= stream.retry_ms <= 5000:
                raise Failure(f"retry {stream.retry_ms}")
            self.answered["streams"] += 1


async def main(port):
    load = Load(port)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await load.run(over)
    print(json.dumps({"answered": load.answered, "failures": load.failures, "codes": load.codes}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
