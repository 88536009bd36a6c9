"""Data directories for maintenance commands, and helpers that check how a command exits."""

import asyncio
import random
import re
import time

from tornado_signal.session import Side
from tornado_signal.stores.leveldb import directory

from .command import ORIGIN, call
from .stores import HandClock, open_leveldb

OTHER = "https://other.example"
LONG_MS = 3_600_000
# Texts of the peers. No command may print them.
SECRETS = {"info": "their info", "offer": "their offer", "candidate": "their candidate", "answer": "their answer"}


def run_ok(*arguments, **options):
    process = call(*arguments, **options)
    assert (process.returncode, process.stderr) == (0, ""), process
    return process.stdout


def run_refused(*arguments, **options):
    """Run a command that must fail with one sentence, and return the sentence."""
    process = call(*arguments, **options)
    match = re.fullmatch("tornado-signal: (.*)\n", process.stderr)
    assert (process.returncode, match is None) == (1, False), process
    return match[1]


def fill(path, sessions, *, offer=lambda: "their offer"):
    """Create a data directory with sessions, some answered, some with candidates. Return pairs of origin and code."""

    async def filling():
        clock = HandClock(time.time_ns() // 1_000_000)
        store = await open_leveldb(path, clock, session_timeout_ms=LONG_MS, durability="os")
        rng = random.Random(1)
        codes = []
        for number in range(sessions):
            origin = rng.choice([ORIGIN, OTHER])
            code, _ = await store.create(origin, f"topic {number % 50}", SECRETS["info"], offer())
            codes.append((origin, code))
            if number % 2:
                await store.add_candidates(origin, code, Side.OFFERER, [SECRETS["candidate"]] * 2)
            if number % 3 == 0:
                await store.answer(origin, code, SECRETS["answer"])
        await store.close()
        return codes

    return asyncio.run(filling())


def write_tables(path):
    """Move all data from the logs of a directory into tables."""
    with directory.opened(path) as db:
        db.compact_range(start=b"\x00", stop=b"\xff")


def names(path):
    return sorted(each.name for each in path.iterdir())
