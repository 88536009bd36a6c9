"""What the tests of the operator's commands share: directories, and commands that work or are refused."""

import asyncio
import contextlib
import random
import time

from support.stores import HandClock, open_leveldb
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import directory, layout

from .command import ORIGIN, Server, run

OTHER = "https://other.example"
LONG_MS = 3_600_000
# What the peers say to each other; none of it may ever be printed.
SECRETS = {"info": "their info", "offer": "their offer", "candidate": "their candidate", "answer": "their answer"}


@contextlib.contextmanager
def servers():
    """A function that starts a server with an admin listener; none of them outlives the block."""
    started = []

    def starting(*arguments, **options):
        started.append(Server(*arguments, "--admin-port", 0, **options))
        return started[-1]

    try:
        yield starting
    finally:
        for server in started:
            server.end()


def done(*arguments, **options):
    """Run a command that must succeed without a complaint; what it prints."""
    ended = run(*arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout


def refused(*arguments, **options):
    """Run a command that must fail with one sentence that the operator can use; that sentence."""
    ended = run(*arguments, **options)
    assert ended.returncode == 1, ended
    assert ended.stderr.startswith("tornado-signal: "), ended.stderr
    assert ended.stderr.count("\n") == 1
    return ended.stderr.removeprefix("tornado-signal: ").rstrip("\n")


def fill(path, sessions, *, offer="their offer", seed=1, timeout_ms=LONG_MS):
    """Make a directory with so many sessions, in parts answered and with candidates; their codes by origin."""

    async def filling():
        store = await open_leveldb(path, HandClock(time.time_ns() // 1_000_000), timeout_ms=timeout_ms, durability="os")
        rng = random.Random(seed)
        codes = []
        for number in range(sessions):
            origin = rng.choice([ORIGIN, OTHER])
            text = offer() if callable(offer) else offer
            code = await store.create(origin, f"topic {number % 50}", SECRETS["info"], text)
            codes.append((origin, code))
            if number % 2:
                await store.add_candidates(origin, code, Side.OFFERER, [SECRETS["candidate"]] * 2)
            if number % 3 == 0:
                await store.answer(origin, code, SECRETS["answer"])
        await store.close()
        return codes

    return asyncio.run(filling())


def noise(size):
    """A function that makes texts of this size that cannot be compressed."""
    rng = random.Random(size)
    return lambda: rng.randbytes(size // 2).hex()


def entries(path):
    """All that a stopped directory holds but the mark and its identity."""
    with directory.opened(path) as db:
        return {key: value for key, value in db.iterator() if key not in (layout.COUNTERS_KEY, layout.IDENTITY_KEY)}


def names(path):
    """What is in a directory."""
    return sorted(each.name for each in path.iterdir())


def data_files(path):
    """The files of a directory that hold data, with their content: all but LevelDB's diary."""
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.startswith("LOG")}
