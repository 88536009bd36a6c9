"""Peers that meet through a proxy while the servers behind it come and go."""

import asyncio
import contextlib
import itertools

from .service import Connection, request
from .sse import open_stream

BOUND_S = 30
PAUSE_S = 0.1  # between two pairs of the same two peers: leaves the processor to the servers


class Refused(Exception):
    """A response other than 200, or none."""


class Peer:
    """A client that keeps its connection open between its requests, and tries nothing twice."""

    def __init__(self, load):
        self._load, self._connection = load, None

    async def ask(self, method, target, **body):
        async with asyncio.timeout(BOUND_S):
            connection, self._connection = self._connection or await self._load.connect(), None
            response = None
            try:
                await connection.send(request(method, target, body or None))
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    response = await connection.receive()
                if response is not None and response.headers.get("Connection") != "close":
                    self._connection = connection
            finally:
                if self._connection is None:
                    connection.writer.transport.abort()
        if response is None or response.status != 200:
            self._load.failures.append((method, target, response and (response.status, response.body)))
            raise Refused
        self._load.answered += 1
        return response.json

    def close(self):
        if self._connection is not None:
            self._connection.writer.transport.abort()


class Pairs:
    """Pairs of peers that meet again and again, each pair in its own topic, and a listener to one more topic."""

    def __init__(self, port, tls, number=6):
        self._port, self._tls = port, tls
        self.answered, self.failures = 0, []  # requests answered with 200, and the others, with their responses
        self.met = 0  # the number of pairs that have met
        self.peers = 2 * number + 1  # the greatest number of requests at a time
        self.published = []  # the codes of sessions in the topic of the listener
        self.heard, self.streams = [], 0  # its events, as pairs of name and code, and the number of its streams
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._meet(at)) for at in range(number)]
        self._tasks += [asyncio.create_task(self._publish()), asyncio.create_task(self._listen())]

    async def connect(self):
        return Connection(*await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls))

    async def until(self, reached):
        async with asyncio.timeout(BOUND_S):
            while not reached():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def more(self, number=40):
        wanted = self.met + number
        await self.until(lambda: self.met >= wanted)

    async def cancel(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self):
        """Let the last pairs meet, and wait until the listener has heard of everything."""
        self._over.set()
        *others, listener = self._tasks
        await asyncio.gather(*others)
        await self.until(lambda: {code for _, code in self.heard} >= set(self.published))
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener

    async def _meet(self, at):
        with contextlib.closing(Peer(self)) as one, contextlib.closing(Peer(self)) as other:
            for turn in itertools.count():
                if self._over.is_set():
                    break
                with contextlib.suppress(Refused):
                    await self._pair(one, other, f"topic{at}", f"{at}-{turn} {id(self)}")
                    self.met += 1
                await asyncio.sleep(PAUSE_S)

    async def _pair(self, one, other, topic, text):
        code = (await one.ask("POST", f"/{topic}/offer", info="i", offer=text))["code"]
        answering = asyncio.create_task(self._answer(one, code))
        try:
            found = (await other.ask("GET", f"/{topic}/sessions"))["sessions"]
            assert [each["code"] for each in found if each["offer"] == text] == [code], (text, found)
            side = {"code": code, "side": "answerer"}
            await other.ask("POST", "/answer", **side, candidates=[text, text[::-1]])
            await other.ask("POST", "/answer", **side, answer=f"to {text}")
            assert await answering == (f"to {text}", [text, text[::-1]])
        finally:
            answering.cancel()
            with contextlib.suppress(Refused, asyncio.CancelledError):
                await answering

    async def _answer(self, one, code):
        """Wait for the answer; return it, and the candidates in their order."""
        candidates, cursor = [], {}
        while True:
            found = await one.ask("POST", "/poll", code=code, side="offerer", wait=20, **cursor)
            candidates += found["answerCandidates"]
            cursor = {"since": found["cursor"]}
            if found["answer"] is not None:
                return found["answer"], candidates

    async def _publish(self):
        with contextlib.closing(Peer(self)) as peer:
            while not self._over.is_set():
                with contextlib.suppress(Refused):
                    found = await peer.ask("POST", "/news/offer", info="i", offer="o", ttl=60_000)
                    self.published.append(found["code"])
                await asyncio.sleep(0.05)

    async def _listen(self):
        """Listen as an EventSource: come back after every end."""
        last, pause_s = None, 0.0
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                async with open_stream(self._port, "/news/events", last=last, tls=self._tls) as stream:
                    assert stream.status == 200
                    self.streams += 1
                    taken = 0
                    while await stream.next():
                        self.heard += [(event.name, event.data["code"]) for event in stream.events[taken:]]
                        taken, last = len(stream.events), stream.last or last
                        pause_s = (stream.retry_ms or 0) / 1000
            await asyncio.sleep(pause_s)
