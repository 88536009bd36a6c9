"""Clients of every kind that never pause, for restarts under load: `python -m support.load PORT` in `tests/`.

They say "ready" when all streams are open, and go on until the standard input ends; what they have seen is then printed
as one JSON object. No client tries anything twice: whatever is not answered in order, with 200, is a failure.
"""

import asyncio
import collections
import itertools
import json
import sys

from .service import ORIGIN, Connection, head, with_origin
from .sse import Stream

PATIENCE_S = 30
PAUSE_S = 0.005  # between two new connections, whatever became of those before
LATE_S = 0.1  # between a connection and its request, of those whose network is slow
WAITERS = 40
KEEPERS = 10
LISTENERS = 10


class Failure(Exception):
    """A request that was not answered as it should be."""


def posting(path, body):
    """A POST as bytes."""
    data = json.dumps(body).encode()
    return head("POST", path, with_origin(ORIGIN, [("Content-Length", str(len(data)))])) + data


class Load:
    """The clients.

    Attributes:
        answered: how many requests of each kind were answered.
        failures: what went wrong, as texts.
        codes: of the sessions that the server said it has.
    """

    def __init__(self, port):
        self._port = port
        self._over = asyncio.Event()
        self._listening = 0
        self.answered = collections.Counter()
        self.failures = []
        self.codes = []

    async def run(self, over):
        """Ask for everything until something is over, then end everything in order."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WAITERS):
                group.create_task(self._repeat(self._wait))
            for _ in range(KEEPERS):
                group.create_task(self._repeat(self._keep))
            listening = [group.create_task(self._repeat(self._listen)) for _ in range(LISTENERS)]
            group.create_task(self._come_and_go(group))
            await over
            self._over.set()
            for each in listening:  # their streams would go on for ever
                each.cancel()

    async def _repeat(self, kind):
        while not self._over.is_set():
            await self._tried(kind)

    async def _tried(self, kind):
        try:
            await kind()
        except (Failure, OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, AssertionError) as error:
            self.failures.append(f"{kind.__name__}: {error!r}")
            await asyncio.sleep(0.1)

    async def _come_and_go(self, group):
        """New connections at a steady rate, each for one request."""
        for number in itertools.count():
            if self._over.is_set():
                return
            group.create_task(self._tried((self._offer, self._look, self._late)[number % 3]))
            await asyncio.sleep(PAUSE_S)

    async def _connect(self):
        return Connection(*await asyncio.open_connection("127.0.0.1", self._port))

    async def _ask(self, connection, data, kind):
        await connection.send(data)
        response = await connection.receive()
        if response is None or response.status != 200:
            raise Failure(response and (response.status, response.body))
        self.answered[kind] += 1
        return response

    async def _alone(self, data, kind, pause_s=0):
        async with asyncio.timeout(PATIENCE_S):
            connection = await self._connect()
            try:
                await asyncio.sleep(pause_s)
                return (await self._ask(connection, data, kind)).json
            finally:
                connection.close()

    async def _offer(self):
        """A request that changes something."""
        self.codes.append((await self._alone(posting("/load/offer", {"info": "i", "offer": "o"}), "offers"))["code"])

    async def _look(self):
        """A request that changes nothing."""
        await self._alone(head("GET", "/topics", with_origin(ORIGIN)), "looks")

    async def _late(self):
        """A connection that is there for a while before its request comes."""
        await self._alone(head("GET", "/load/sessions?limit=1", with_origin(ORIGIN)), "late looks", LATE_S)

    async def _wait(self):
        """A long poll, ended by the clients' offers or by the server's end."""
        code = (await self._alone(posting("/waits/offer", {"info": "i", "offer": "o"}), "offers"))["code"]
        self.codes.append(code)
        await self._alone(posting("/poll", {"code": code, "side": "offerer", "wait": 5}), "waits")

    async def _keep(self):
        """Requests on one connection, until the server says that the last one was."""
        connection = await self._connect()
        try:
            while not self._over.is_set():
                async with asyncio.timeout(PATIENCE_S):
                    response = await self._ask(connection, head("GET", "/health", with_origin(ORIGIN)), "kept")
                if response.headers.get("Connection") == "close":
                    return
                await asyncio.sleep(0.05)
        finally:
            connection.close()

    async def _listen(self):
        """A stream, which the server has to end in order, with a time to come back after."""
        connection = await self._connect()
        try:
            await connection.send(head("GET", "/quiet/events", with_origin(ORIGIN)))
            stream = await Stream(connection).begin()
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
        finally:
            connection.close()


async def main(port):
    """Run until the standard input ends."""
    load = Load(port)
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await load.run(over)
    print(json.dumps({"answered": load.answered, "failures": load.failures, "codes": load.codes}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
