"""Servers on a shared Redis, and clients."""

import functools
import http.client
import itertools
import json
import queue
import threading
import time
import urllib.request
import uuid
from collections import Counter

import pytest

from tornado_signal.stores.redis.partitions import Partitions

from .command import BOUND_S, ORIGIN
from .redis_servers import RedisServer
from .waiting import end_all, until

WAIT_S = 60
PARTITIONS = Partitions("tornado-signal:", 16)


@pytest.fixture
def redis_server():
    with end_all(lambda *options, kind="redis", **more: RedisServer(kind, *options, **more), RedisServer.kill) as start:
        yield start


@pytest.fixture
def share(redis, start, tmp_path):
    """A function that starts servers with an admin listener on one Redis, with a prefix of the test's own."""
    flags = ("--admin-port", "0", "--durability", "os", "--redis-prefix", f"{tmp_path.name}:")
    return functools.partial(start, *flags, redis=redis)


@pytest.fixture
def publish():
    with end_all(Publishers, Publishers.stop) as start:
        yield start


def in_background(call):
    results = queue.Queue()
    threading.Thread(target=lambda: results.put(call()), daemon=True).start()
    return lambda: results.get(timeout=BOUND_S)


def lasting(wait):
    """Repeat in the background what waits its whole minute in vain, because a test can take longer. Return as above."""

    def waiting():
        while True:
            began_s = time.monotonic()
            result = wait()
            if time.monotonic() - began_s < WAIT_S / 2:  # servers shorten waits, each time a little differently
                return result

    return in_background(waiting)


def ready(server):
    status, response = server.call("/readyz", base=server.admin_url)
    return status, response.get("reason", "")


def events(server, topic):
    """Yield the name and data of each event. At the end of a listing the name is empty."""
    request = urllib.request.Request(f"{server.url}/{topic}/events", headers={"Origin": ORIGIN})
    with urllib.request.urlopen(request, timeout=BOUND_S) as response:
        fields = {}
        for line in response:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            fields[name] = value
            if not name:
                if "id" in fields:
                    yield fields.get("event", ""), json.loads(fields.get("data", "{}"))
                fields = {}


class Follower:
    """A reader of a topic's events.

    `announced` are the codes of all announced sessions. `known` are those that exist according to the events.
    """

    def __init__(self, server, topic):
        self._events, self._unlisted = events(server, topic), set()
        self.known, self.announced = set(), set()

    def next(self):
        """Read one event, and return its name and data."""
        kind, data = next(self._events)
        if kind == "reset":
            self._unlisted = set(self.known)
        elif kind == "session":
            assert data["code"] not in self.known - self._unlisted
            self._unlisted.discard(data["code"])
            self.known.add(data["code"])
            self.announced.add(data["code"])
        elif kind == "gone":
            self.known.remove(data["code"])
            self._unlisted.discard(data["code"])
        else:
            self.known -= self._unlisted
            self._unlisted = set()
        return kind, data

    def read_until(self, condition):
        """Read until a condition is true. Return the last event."""
        event = None
        while not condition():
            event = self.next()
        return event

    def close(self):
        self._events.close()


class Waiters:
    """A poll, a listing and a stream that wait at one server for a change through another server."""

    def __init__(self, server, topic, code):
        self.code = code
        self._stream = Follower(server, topic)
        self._stream.read_until(lambda: code in self._stream.known)
        poll = {"code": code, "side": "offerer"}
        cursor = server.call("/poll", poll | {"wait": 0})[1]["cursor"]
        self._poll = lasting(lambda: server.call("/poll", poll | {"wait": WAIT_S, "since": cursor}))
        since = server.call(f"/{topic}/sessions?wait=0")[1]["cursor"]
        self._listing = lasting(lambda: server.call(f"/{topic}/sessions?wait={WAIT_S}&since={since}"))

    def end(self, server):
        """Answer the session at a server, and check that all waiters receive the change once."""
        answer = {"code": self.code, "side": "answerer", "answer": "at last"}
        until(lambda: server.call("/answer", answer)[0] == 200)
        assert self._poll()[1]["answer"] == "at last"
        assert self._listing()[1]["sessions"] == []
        last = self._stream.read_until(lambda: self.code not in self._stream.known)
        # After a failover it can read the listing before it notices the change.
        assert last in (("gone", {"code": self.code, "reason": "answered"}), ("", {}))
        self._stream.close()


def slot_of(code):
    return PARTITIONS.of_code(ORIGIN, uuid.UUID(code).bytes).slot


def topic_in(slots, names=None):
    """Return the first name whose topic belongs to one of the slots."""
    names = names or (f"topic-{number}" for number in itertools.count())
    return next(name for name in names if PARTITIONS.of_topic(ORIGIN, name).slot in slots)


class Publishers:
    """Threads that publish, send a candidate and answer, each time at another server, in topics of given slots."""

    numbers = itertools.count()

    def __init__(self, servers, number=4, slots=range(16_384)):
        self._number, self._slots = next(self.numbers), slots
        self.acknowledged = {}  # the acknowledged texts of each session, by code
        self.writes = []  # time and slot of each acknowledged write
        self.statuses, self.times_s = Counter(), []  # of all requests
        self._servers, self._ended = servers, threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(at,)) for at in range(number)]
        for thread in self._threads:
            thread.start()

    def _work(self, at):
        first = at % len(self._servers)
        servers = itertools.cycle(self._servers[first:] + self._servers[:first])
        texts = (f"{self._number}-{at}-{turn}" for turn in itertools.count())
        while not self._ended.is_set():
            text = topic_in(self._slots, texts)
            if (response := self._ask(servers, f"/{text}/offer", info=text, offer=text)) is None:
                continue
            code = response["code"]
            sent = self.acknowledged[code] = {"text": text, "candidate": None, "answer": None}
            self.writes.append((time.monotonic(), slot_of(code)))
            for name in ("candidate", "answer"):
                if self._ask(servers, "/answer", code=code, side="answerer", **{name: text}) is not None:
                    sent[name] = text
                    self.writes.append((time.monotonic(), slot_of(code)))

    def _ask(self, servers, path, **body):
        time.sleep(0.01)  # leaves CPU time for the servers
        began_s = time.monotonic()
        try:
            status, response = next(servers).call(path, body)
        except (OSError, http.client.HTTPException):
            status, response = 0, None
        self.times_s.append(time.monotonic() - began_s)
        self.statuses[status] += 1
        return response if status == 200 else None

    def wait_for(self, more, slots=None):
        def written():
            return sum(slots is None or slot in slots for _, slot in self.writes)

        goal = written() + more
        until(lambda: written() >= goal)

    def wait_for_refusal(self):
        goal = self.statuses[503] + 1
        until(lambda: self.statuses[503] >= goal)

    def longest_gap_s(self, slots=None):
        times_s = sorted(time_s for time_s, slot in self.writes if slots is None or slot in slots)
        return max(after - before for before, after in itertools.pairwise(times_s))

    def stop(self):
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wrong(self):
        """Stop. Return the sessions of which an acknowledged text is not stored, or stored twice."""
        self.stop()
        wrong, server = [], self._servers[0]
        for code, sent in self.acknowledged.items():
            poll = {"code": code, "side": "offerer"}
            status, response = until(lambda poll=poll: (found := server.call("/poll", poll))[0] != 503 and found)
            answer, candidate = sent["answer"], sent["candidate"]
            # A request refused with 503 may have been carried out, once.
            answers = (sent["text"], *[None] * (answer is None))
            candidates = ([sent["text"]], *[[]] * (candidate is None))
            if status != 200 or (response["answer"] not in answers or response["answerCandidates"] not in candidates):
                wrong.append((code, sent, response))
            if answer is None and server.codes(sent["text"]) not in ([], [code]):
                wrong.append((code, sent, "published twice"))
        return wrong

    def end(self):
        """Stop. Check that each acknowledged text is stored once. All failures must be 503."""
        assert self.wrong() == []
        assert set(self.statuses) <= {200, 503}, self.statuses
        assert max(self.times_s) < BOUND_S / 2
