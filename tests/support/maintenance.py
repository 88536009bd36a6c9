"""Directories for the operator's commands, and commands that succeed or are refused."""

import asyncio
import random
import re
import time

from support.stores import HandClock, open_leveldb
from tornado_signal.session import Side

from .command import ORIGIN, run

OTHER = "https://other.example"
LONG_MS = 3_600_000
# Texts of the peers; nothing may ever print them.
SECRETS = {"info": "their info", "offer": "their offer", "candidate": "their candidate", "answer": "their answer"}


def run_ok(*arguments, **options):
    ended = run(*arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


def run_refused(*arguments, **options):
    """Run a command that must fail with one sentence, and return that."""
    ended = run(*arguments, **options)
    found = re.fullmatch("tornado-signal: (.*)\n", ended.stderr)
    assert (ended.returncode, found is None) == (1, False), ended
    return found[1]


def fill(path, sessions, *, offer="their offer", seed=1, timeout_ms=LONG_MS):
    """Make a directory with sessions, some answered, some with candidates; return pairs of origin and code."""

    async def filling():
        store = await open_leveldb(path, HandClock(time.time_ns() // 1_000_000), timeout_ms=timeout_ms, durability="os")
        rng = random.Random(seed)
        codes = []
        for number in range(sessions):
            origin = rng.choice([ORIGIN, OTHER])
            text = offer() if callable(offer) else offer
            code, _ = await store.create(origin, f"topic {number % 50}", SECRETS["info"], text)
            codes.append((origin, code))
            if number % 2:
                await store.add_candidates(origin, code, Side.OFFERER, [SECRETS["candidate"]] * 2)
            if number % 3 == 0:
                await store.answer(origin, code, SECRETS["answer"])
        await store.close()
        return codes

    return asyncio.run(filling())


def noise(size):
    """Return a function that makes texts of a size that cannot be compressed."""
    rng = random.Random(size)
    return lambda: rng.randbytes(size // 2).hex()


def names(path):
    return sorted(each.name for each in path.iterdir())
