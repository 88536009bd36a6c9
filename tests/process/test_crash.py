"""What was acknowledged is never lost and nothing is half done, however often the server is killed while it works."""

import http.client
import json
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
import uvloop
from support import writers
from support.command import BOUND_S, ORIGIN, Server
from support.stores import open_leveldb
from support.writers import NO_LIMIT_MS

from tornado_signal.session import Side

pytestmark = pytest.mark.slow

ROUNDS = 6
WRITERS = 6


class Writer:
    """One peer after the other, as fast as the server answers, until it does not; remembers what was acknowledged.

    Attributes:
        offers: code -> offer.
        answers: code -> answer.
        candidates: (code, side) -> candidates, in their order.
        asked: what was sent without an acknowledgement: it may or may not be found.
    """

    def __init__(self, number):
        self.number = number
        self.offers, self.answers, self.candidates, self.asked = {}, {}, {}, set()

    def work(self, url):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=10)
        try:
            while True:
                self.one_session(connection)
        except (OSError, http.client.HTTPException):
            pass  # killed
        finally:
            connection.close()

    def one_session(self, connection):
        offer = f"offer {self.number}.{len(self.offers)}.{random.random()}"
        code = self.post(connection, f"/topic{self.number}/offer", {"info": "i", "offer": offer}, offer)["code"]
        self.offers[code] = offer
        for count in range(4):
            for side in ("offerer", "answerer"):
                candidate = f"{code} {side} {count}"
                self.post(connection, "/answer", {"code": code, "side": side, "candidate": candidate}, candidate)
                self.candidates.setdefault((code, side), []).append(candidate)
        if len(self.offers) % 2:
            answer = f"answer to {code}"
            self.post(connection, "/answer", {"code": code, "side": "answerer", "answer": answer}, answer)
            self.answers[code] = answer

    def post(self, connection, path, body, unsure):
        self.asked.add(unsure)
        connection.request("POST", path, json.dumps(body), {"Origin": ORIGIN})
        response = connection.getresponse()
        found = json.load(response)
        assert response.status == 200, found
        self.asked.discard(unsure)
        return found

    def check(self, server):
        """Find everything acknowledged, and of the rest all or nothing."""
        listed = {each["code"]: each for each in server.call(f"/topic{self.number}/sessions")[1]["sessions"]}
        for code, session in listed.items():
            assert session["offer"] == self.offers.get(code, session["offer"])
            assert code in self.offers or session["offer"] in self.asked
        for code, offer in self.offers.items():
            status, sent = server.call("/poll", {"code": code, "side": "answerer"})
            assert (status, sent["offer"]) == (200, offer)
            self.check_candidates(code, "offerer", sent["offerCandidates"])
            _, sent = server.call("/poll", {"code": code, "side": "offerer"})
            self.check_candidates(code, "answerer", sent["answerCandidates"])
            assert sent["answer"] in (self.answers.get(code), *self.asked)
            assert (sent["answer"] is None) == (code in listed)

    def check_candidates(self, code, side, found):
        kept = self.candidates.get((code, side), [])
        assert found[: len(kept)] == kept
        assert set(found[len(kept) :]) <= self.asked


@pytest.mark.timeout(120)
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_killed_again_and_again(durability, tmp_path):
    """Six times: six writers, SIGKILL at any moment, a check of the directory itself; at the end, of every word."""
    seed = time.time_ns()
    print("seed", seed)
    moment = random.Random(seed)
    peers = [Writer(number) for number in range(WRITERS)]
    arguments = ("--data-dir", str(tmp_path), "--durability", durability, "--session-timeout-ms", "3600000")
    for _ in range(ROUNDS):
        server = Server(*arguments)
        try:
            with ThreadPoolExecutor(WRITERS) as threads:
                working = [threads.submit(writer.work, server.url) for writer in peers]
                threading.Event().wait(moment.uniform(0.05, 0.6))
                server.stop(signal.SIGKILL)
                for each in working:
                    each.result()
        finally:
            server.end()
        uvloop.run(check_directory(tmp_path))
    server = Server(*arguments)
    try:
        for writer in peers:
            writer.check(server)
        assert sum(len(writer.offers) for writer in peers) > ROUNDS
        assert server.stop() == 0
    finally:
        server.end()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("timeout_ms", [2000, NO_LIMIT_MS])
def test_killed_among_sweeps_and_merges(timeout_ms, tmp_path):
    """Eight times more, with texts so long that LevelDB changes logs and merges tables, with and without a sweep."""
    seed = time.time_ns()
    print("seed", seed)
    moment = random.Random(seed)
    sessions = []
    flags = ("--session-timeout-ms", timeout_ms, "--sweep-interval-ms", 10)
    for turn in range(8):
        server = Server("--data-dir", tmp_path, *flags)
        try:
            working = writers.Writers(server.url, f"{seed} {turn}", padding="x" * moment.choice([0, 0, 30_000]))
            for _ in range(moment.randrange(1, 500)):
                assert working.acknowledgements.acquire(timeout=BOUND_S), working.wrong
            server.stop(signal.SIGKILL)
            working.stop()
        finally:
            server.end()
        assert working.wrong == []
        sessions += working.sessions
        known, _ = writers.compare_stopped(tmp_path, sessions, timeout_ms)
        assert known > 0


async def check_directory(path):
    """Open what a killed server left behind, as it will be opened next, and prove that its tables agree."""
    store = await open_leveldb(path, timeout_ms=3_600_000)
    store.check()
    await store.close()


COMPACTING = """
import asyncio, itertools, os, sys
from pathlib import Path
from tornado_signal.session import Side
from tornado_signal.stores.leveldb.store import LevelDBStore
from tornado_signal.system.clock import Clock

begin = int(sys.argv[2])

async def write(store, numbers):
    # Every second session is taken back at once, so that there is always something to compact.
    for number in numbers:
        offer = f"{number} {os.urandom(4000).hex()}"
        code = await store.create("o", "t", str(number), offer)
        if number % 2:
            await store.withdraw("o", code, Side.OFFERER)
        else:
            print("kept", code.hex(), offer[:40], flush=True)

async def main():
    store = LevelDBStore(Path(sys.argv[1]), Clock(), timeout_ms=1_000_000)
    await store.open()
    numbers = itertools.count(begin)
    writing = [asyncio.create_task(write(store, numbers)) for _ in range(8)]
    while True:
        print("compacting", flush=True)
        await store.compact()
        print("compacted", flush=True)
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_killed_in_the_middle_of_a_compaction(tmp_path):
    """Eight times SIGKILL while it compacts and writes: it opens, is sound, and holds all that was acknowledged."""
    turns = 8
    seed = time.time_ns()
    print("seed", seed)
    moment = random.Random(seed)
    kept, in_the_middle = {}, 0
    for turn in range(turns):
        command = [sys.executable, "-c", COMPACTING, str(tmp_path / "data"), str(turn * 1_000_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            compactions = moment.randrange(1, 5)
            lines = []
            while compactions:
                line = process.stdout.readline()
                assert line, "it ended by itself"
                lines.append(line)
                compactions -= line == "compacting\n"
            threading.Event().wait(moment.uniform(0, 0.3))
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        assert process.returncode == -signal.SIGKILL
        in_the_middle += [line for line in lines if line.startswith("compact")][-1] == "compacting\n"
        for line in lines:
            if line.startswith("kept ") and line.endswith("\n"):
                _, code, number, begun = line.split()
                kept[bytes.fromhex(code)] = f"{number} {begun}"
        uvloop.run(find_all(tmp_path / "data", kept))
    print("in the middle of a compaction", in_the_middle, "acknowledged", len(kept))
    assert in_the_middle > turns / 3
    assert len(kept) > turns


async def find_all(path, kept):
    """Open, check, and find everything that was acknowledged."""
    store = await open_leveldb(path, timeout_ms=1_000_000)
    try:
        store.check()
        for code, begun in kept.items():
            news = await store.read("o", code, Side.ANSWERER)
            assert news.description.startswith(begun), (code, begun)
    finally:
        await store.close()
