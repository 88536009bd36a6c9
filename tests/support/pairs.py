"""Peers that meet while the server is restarted, or those behind a proxy are replaced.

As a program, `python -m support.pairs PORT` in `tests/`, they also come with new connections all the time. It prints
"ready" when all have met. When standard input ends, it prints the results as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import sys
import time

from .service import Connection, request
from .sse import open_stream

BOUND_S = 30
PAUSE_S = 0.1  # between two meetings of the same peers, to leave CPU time for the servers
LIFE_S = 60  # of the sessions in the listener's topic
LISTED_S = 50  # how long each is certainly found after a reset
LATE_S = 0.1  # between a new connection and its only request, as on a slow network


class Refused(Exception):
    """A response other than 200, or no response."""


class Peer:
    """A client that never retries. It keeps its connection open, or opens one for each request."""

    def __init__(self, load, keeps=True):
        self._load, self._keeps, self._connection = load, keeps, None

    async def ask(self, method, target, **body):
        async with asyncio.timeout(BOUND_S):
            connection, self._connection = self._connection or await self._load.connect(), None
            response = None
            try:
                await asyncio.sleep(0 if self._keeps else LATE_S)
                await connection.send(request(method, target, body or None))
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    response = await connection.receive()
                if self._keeps and response is not None and response.headers.get("Connection") != "close":
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
    """Pairs of peers that meet repeatedly, each pair in its own topic, and a listener to another topic.

    With `fresh`, as many more pairs open a connection for each request.
    """

    def __init__(self, port, tls=None, number=6, fresh=0):
        self._port, self._tls = port, tls
        self.answered, self.failures = 0, []  # number of 200 responses, and failed requests with their responses
        self.met = 0  # number of completed meetings
        self.peers = 2 * (number + fresh) + 1  # maximum number of concurrent requests
        self.published = {}  # codes of the sessions in the listener's topic, with the times of their requests
        self.heard, self.streams = [], 0  # the listener's events as (name, code), and the number of its streams
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._meet(at, at < number)) for at in range(number + fresh)]
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
        goal = self.met + number
        await self.until(lambda: self.met >= goal)

    async def cancel(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def end(self):
        """Finish the current meetings, and wait until the listener has received every published session."""
        self._over.set()
        *others, listener = self._tasks
        await asyncio.gather(*others)
        await self.until(lambda: {code for _, code in self.heard} >= self.published.keys())
        listener.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listener

    async def _meet(self, at, keeps):
        with contextlib.closing(Peer(self, keeps)) as one, contextlib.closing(Peer(self, keeps)) as other:
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
            sessions = (await other.ask("GET", f"/{topic}/sessions"))["sessions"]
            assert [session["code"] for session in sessions if session["offer"] == text] == [code], (text, sessions)
            side = {"code": code, "side": "answerer"}
            await other.ask("POST", "/answer", **side, candidates=[text, text[::-1]])
            await other.ask("POST", "/answer", **side, answer=f"to {text}")
            assert await answering == (f"to {text}", [text, text[::-1]])
        finally:
            answering.cancel()
            with contextlib.suppress(Refused, asyncio.CancelledError):
                await answering

    async def _answer(self, one, code):
        """Wait for the answer. Return it with the candidates in order."""
        candidates, cursor = [], {}
        while True:
            update = await one.ask("POST", "/poll", code=code, side="offerer", wait=20, **cursor)
            candidates += update["answerCandidates"]
            cursor = {"since": update["cursor"]}
            if update["answer"] is not None:
                return update["answer"], candidates

    async def _publish(self):
        with contextlib.closing(Peer(self)) as peer:
            while not self._over.is_set():
                asked_s = time.monotonic()
                with contextlib.suppress(Refused):
                    session = await peer.ask("POST", "/news/offer", info="i", offer="o", ttl=1000 * LIFE_S)
                    self.published[session["code"]] = asked_s
                await asyncio.sleep(0.05)

    async def _listen(self):
        """Read events as an EventSource does, and reconnect whenever the stream ends."""
        last, pause_s = None, 0.0
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                async with open_stream(self._port, "/news/events", last=last, tls=self._tls) as stream:
                    assert stream.status == 200
                    self.streams += 1
                    taken = 0
                    while await stream.next():
                        for event in stream.events[taken:]:
                            if event.name == "reset":  # a listing follows, of what has not expired meanwhile
                                self.heard.clear()
                                for code, asked_s in list(self.published.items()):
                                    if time.monotonic() > asked_s + LISTED_S:
                                        del self.published[code]
                            else:
                                self.heard.append((event.name, event.data["code"]))
                        taken, last = len(stream.events), stream.last or last
                        pause_s = (stream.retry_ms or 0) / 1000
                    assert 0.5 <= pause_s <= 5, "the server has ended the stream without a time to come back"
            await asyncio.sleep(pause_s)


async def main(port):
    pairs = Pairs(port, fresh=20)
    await pairs.more()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await pairs.more()
    await pairs.end()
    print(json.dumps({"met": pairs.met, "streams": pairs.streams, "failures": pairs.failures}, default=str))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
