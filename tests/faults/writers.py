"""Peers that publish offers and send candidates as fast as possible, and record what was acknowledged."""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from urllib.parse import urlsplit

from support.command import ORIGIN
from support.redis_traffic import topic_in
from support.waiting import until

WRITERS = 20
PAUSE_S = 0.01
BOUND_S = 30


class Connection:
    """A keep-alive HTTP connection, which is reopened after an error."""

    def __init__(self, url):
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._streams = None

    async def post(self, path, **body):
        """Return the status and the response, or 0 and an empty response if the connection fails."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nOrigin: {ORIGIN}\r\nContent-Length: {len(data)}\r\n\r\n"
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._host, self._port)
            reader, writer = self._streams
            writer.write(head.encode() + data)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
            return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, None

    def close(self):
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Writers:
    """Peers in a thread, each using one of the servers and a topic in given slots."""

    def __init__(self, servers, slots):
        self._urls = [server.url for server in servers]
        self._slots = slots
        self.sessions = {}  # codes of acknowledged offers, with whether the candidate was acknowledged
        self.times_s = []  # times of the acknowledged writes
        self.refused = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self):
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(self._write(number))

    async def _write(self, number):
        names = (f"faults-{number}-{again}" for again in itertools.count())
        topic = topic_in(self._slots, names)
        connection = Connection(self._urls[number % len(self._urls)])
        while not self._ended.is_set():
            status, response = await connection.post(f"/{topic}/offer", info="i", offer="o" * 100)
            self._note(status)
            if status == 200:
                code = response["code"]
                self.sessions[code] = False
                status, _ = await connection.post("/answer", code=code, side="answerer", candidate="c" * 100)
                self.sessions[code] = self._note(status)
            await asyncio.sleep(PAUSE_S)
        connection.close()

    def _note(self, status):
        if status == 200:
            self.times_s.append(time.monotonic())
        else:
            self.refused += 1
        return status == 200

    @property
    def acknowledged(self):
        return len(self.times_s)

    def wait_for(self, more):
        goal = self.acknowledged + more
        until(lambda: self.acknowledged >= goal, BOUND_S)

    def longest_gap_s(self):
        return max(after - before for before, after in itertools.pairwise(self.times_s))

    def stop(self):
        self._ended.set()
        self._thread.join()

    def lost(self):
        """Stop. Return the codes of lost offers, and of sessions that have lost their candidate."""
        self.stop()
        return asyncio.run(self._find_lost())

    async def _find_lost(self):
        lost = []
        left = iter(list(self.sessions.items()))

        async def look():
            with contextlib.closing(Connection(self._urls[0])) as connection:
                for code, candidate in left:
                    status = 503
                    while status in (0, 503):
                        status, response = await connection.post("/poll", code=code, side="offerer")
                    if status != 200 or (candidate and not response["answerCandidates"]):
                        lost.append((code, status))

        await asyncio.gather(*(look() for _ in range(WRITERS)))
        return lost
