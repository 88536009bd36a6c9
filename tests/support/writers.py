"""Writers that record sent and acknowledged data, for tests that kill servers and fill disks."""

import asyncio
import contextlib
import http.client
import json
import random
import threading
import time
import uuid
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

from tornado_signal.errors import SessionNotFound
from tornado_signal.session import Side

from .command import BOUND_S
from .stores import HandClock, check_memory, open_leveldb

ORIGINS = ["https://one.example", "https://two.example"]
TOPICS = ["a", "b"]
NO_LIMIT_MS = 300_000


@dataclass
class Sent:
    origin: str
    topic: str
    info: str
    offer: str
    sent_ms: int
    code: bytes | None = None
    asked: dict = field(default_factory=lambda: {side: [] for side in Side})  # candidates, sent
    acknowledged: dict = field(default_factory=lambda: {side: [] for side in Side})  # candidates, acknowledged
    answer: str | None = None
    answered: bool = False


class Writers(contextlib.AbstractContextManager):
    """Threads that publish, answer and send candidates, each for its own sessions. Padding fills a disk faster."""

    numbers = count()

    def __init__(self, url, seed, *, number=8, padding=""):
        self.sessions, self.wrong = [], []  # all sent sessions, and descriptions of wrong responses
        # Released once for each 200 or 503. Acquire them to wait for responses.
        self.acknowledgements, self.refusals = threading.Semaphore(0), threading.Semaphore(0)
        self._address, self._padding, self._stopping = urlsplit(url).netloc, padding, threading.Event()
        choices = [random.Random(f"{seed} {n}") for n in range(number)]
        self._threads = [threading.Thread(target=self._write, args=(rng,)) for rng in choices]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join(BOUND_S)
        assert not any(thread.is_alive() for thread in self._threads)

    def _write(self, rng):
        connection = http.client.HTTPConnection(self._address, timeout=BOUND_S)
        try:
            while not self._stopping.is_set():
                self._write_session(connection, rng)
        except (ConnectionError, http.client.HTTPException):
            pass  # the server was killed
        except Exception as error:
            self.wrong.append(f"{error!r}")
        finally:
            connection.close()

    def _write_session(self, connection, rng):
        number = str(next(self.numbers))
        text = f"{number} {self._padding}"
        session = Sent(rng.choice(ORIGINS), rng.choice(TOPICS), number, text, time.time_ns() // 1_000_000)
        self.sessions.append(session)
        response = self._post(connection, session.origin, f"/{session.topic}/offer", {"info": number, "offer": text})
        if response is None:
            return
        session.code = uuid.UUID(response["code"]).bytes
        for turn in range(rng.randrange(6)):
            side, candidate = rng.choice(list(Side)), f"{turn} {self._padding}"
            body = {"code": response["code"], "side": side.value, "candidate": candidate}
            session.asked[side].append(candidate)
            if self._post(connection, session.origin, "/answer", body):
                session.acknowledged[side].append(candidate)
        if rng.random() < 0.5:
            session.answer = "answer " + text
            body = {"code": response["code"], "side": "answerer", "answer": session.answer}
            session.answered = self._post(connection, session.origin, "/answer", body) is not None

    def _post(self, connection, origin, path, body):
        connection.request("POST", path, json.dumps(body), {"Origin": origin})
        response = connection.getresponse()
        content = json.loads(response.read())
        if response.status == 200:
            self.acknowledgements.release()
            return content
        headers = (response.headers[name] for name in ("Access-Control-Allow-Origin", "Content-Type"))
        reply = (response.status, content, *headers)
        if reply != (503, {"error": "Service unavailable"}, origin, "application/json"):
            self.wrong.append(f"{path}: {reply}")
        if not (response.headers["Retry-After"] or "").isdigit():
            self.wrong.append(f"{path}: Retry-After is {response.headers['Retry-After']!r}")
        self.refusals.release()
        return None


def subsequence(some, all_of_them):
    rest = iter(all_of_them)
    return all(each in rest for each in some)


async def compare(path, sessions, timeout_ms=NO_LIMIT_MS):
    """Check that the store has all acknowledged sessions, and none in part. Return their number and that of others."""
    # Time stands still, so that no session expires between two reads.
    store = await open_leveldb(path, HandClock(time.time_ns() // 1_000_000), session_timeout_ms=timeout_ms)
    try:
        check_memory(store)
        listed = {}
        for origin in ORIGINS:
            counts, total = await store.topics(origin, 0, 1000)
            assert total == len(counts)
            for topic in TOPICS:
                entries = [each async for step in store.sessions(origin, topic) for each in step]
                listed |= {(origin, topic, each.session.code): each for each in entries}
                assert dict(counts).get(topic, 0) == len(entries)
        by_code = {session.code: session for session in sessions if session.code}
        for session in by_code.values():
            try:
                answerer, offerer = [await store.read(session.origin, session.code, side) for side in Side]
            except SessionNotFound:
                assert session.sent_ms + timeout_ms <= store.now_ms(), f"lost: {session}"
                continue
            assert offerer.description == session.offer
            assert answerer.description in ({session.answer} if session.answered else {session.answer, None}), session
            candidates = {}
            for side, news in ((Side.OFFERER, offerer), (Side.ANSWERER, answerer)):
                candidates[side] = [text for _, text in news.candidates]
                assert subsequence(session.acknowledged[side], candidates[side]), (session, news)
                assert subsequence(candidates[side], session.asked[side]), (session, news)
            entry = listed.pop((session.origin, session.topic, session.code), None)
            assert (entry is None) == (answerer.description is not None), session
            if entry:
                assert (entry.offer, entry.candidates) == (session.offer, candidates[Side.OFFERER])
                assert (entry.session.info, entry.session.topic) == (session.info, session.topic)
        # Sessions without an acknowledgement are complete or absent.
        asked = {(each.origin, each.topic, each.info, each.offer) for each in sessions if not each.code}
        for (origin, topic, _), entry in listed.items():
            assert (origin, topic, entry.session.info, entry.offer) in asked
            assert entry.candidates == []
        return len(by_code), len(listed)
    finally:
        await store.close()


def compare_stopped(path, sessions, timeout_ms=NO_LIMIT_MS):
    return asyncio.run(compare(path, sessions, timeout_ms))
