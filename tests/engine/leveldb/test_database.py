"""One LevelDB directory: groups that share a write, failures that all hear of, and every way not to open."""

import asyncio
import os
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from tornado_signal.errors import DatabaseError, Unavailable
from tornado_signal.stores.leveldb import database, layout
from tornado_signal.stores.leveldb.binding import plyvel
from tornado_signal.stores.leveldb.database import Change, Database, Group
from tornado_signal.stores.leveldb.space import Space

OWN = [layout.FORMAT_KEY, layout.IDENTITY_KEY]


class Disk:
    """A fake disk under LevelDB: it counts and delays writes, and makes writes or the opening fail."""

    open_leveldb, write_group = plyvel.DB, Group.write

    def __init__(self):
        self.begun = self.ended = 0
        self.failing = self.unopenable = False
        self.refused = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()

    def open(self, *arguments, **options):
        if self.unopenable:
            self.refused.release()
            raise plyvel.IOError(b"No space left on device")
        return Disk.open_leveldb(*arguments, **options)

    def write(self, group):
        self.begun += 1
        self.go.wait()
        self.ended += 1
        if self.failing:
            raise plyvel.IOError(b"No space left on device")
        Disk.write_group(group)


@pytest.fixture
def disk(monkeypatch):
    """Return the disk under every database of the test, without pauses before writes and attempts."""
    made = Disk()
    monkeypatch.setattr(database, "GATHER_S", 0)
    monkeypatch.setattr(plyvel, "DB", made.open)
    monkeypatch.setattr(Group, "write", lambda group: made.write(group))
    monkeypatch.setattr(database, "REOPEN_PAUSE_S", 0.001)
    yield made
    made.go.set()


class Held:
    """A database with a copy of all its keys in memory and a record of all callbacks."""

    def __init__(self, path, **options):
        self.settled = []
        self.loads = []
        self.opened = asyncio.Event()
        options = {"load": lambda db: dict(db.iterator()), "sync": False, "start_empty": False} | options
        self.db = Database(path, loaded=self.loaded, space=Space(path), **options)
        self.metrics = self.db.metrics

    @classmethod
    async def open(cls, path, **options):
        made = cls(path, **options)
        await made.db.open()
        return made

    def loaded(self, found):
        self.loads.append(found)
        self.opened.set()

    def put(self, *keys, value=b"value"):
        return self.db.commit(Change([(key, value) for key in keys], []), lambda ok: self.settled.append((keys[0], ok)))

    def keys(self):
        return [key for key in self.db.snapshot.iterator(include_value=False) if key not in OWN]


@pytest.fixture
def held(io_loop, tmp_path, disk):
    """A database that is closed in the end, which has to work."""
    made = io_loop.run_sync(lambda: Held.open(tmp_path / "data"))
    yield made
    disk.failing = disk.unopenable = False
    disk.go.set()
    io_loop.run_sync(made.db.close, timeout=60)


async def stored(path):
    """The keys of a database that is closed, which can be opened."""
    held = await Held.open(path)
    keys = held.keys()
    await held.db.close()
    return keys


async def outcomes(*waiters):
    """For each waiter whether its change is committed."""
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(result is None or type(result) is Unavailable for result in results), results
    return [result is None for result in results]


@contextmanager
def held_up(disk):
    """While in here, no write gets any further."""
    disk.go.clear()
    yield
    disk.go.set()


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_changes_of_one_turn_or_during_a_write_share_one_write(held, disk):
    waiters = [held.put(b"a", value=b"%d" % number) for number in range(50)] + [held.put(b"b")]
    assert all(await outcomes(*waiters))
    assert disk.ended == 1
    assert held.db.snapshot.get(b"a") == b"49"
    with held_up(disk):
        waiters = [held.put(b"first")]
        await turns(3)
        for number in range(50):
            await asyncio.sleep(0)
            waiters.append(held.put(b"%d" % number))
    assert all(await outcomes(*waiters))
    assert disk.ended == sum(held.metrics.changes.counts) == 3
    assert held.metrics.changes.sum == len(waiters) + 51
    assert len(held.keys()) == 53


async def test_writes_of_waiting_changes_are_spaced(held, disk, monkeypatch):
    monkeypatch.setattr(database, "GATHER_S", 1.0)  # a busy machine pauses the test for less
    began_s = time.monotonic()
    with held_up(disk):
        first = held.put(b"first")
        while not disk.begun:  # noqa: ASYNC110 (another thread's)
            await asyncio.sleep(0.001)
        second = held.put(b"second")
    await first
    assert all(await outcomes(second, held.put(b"third")))
    assert time.monotonic() - began_s >= 0.9 * database.GATHER_S  # uvloop counts milliseconds
    assert disk.ended == 2


async def test_large_group_is_written_immediately(held, disk, monkeypatch):
    monkeypatch.setattr(database, "GATHER_S", 3600)
    await held.put(b"first")
    assert all(await outcomes(*[held.put(b"%d" % number) for number in range(database.GATHER_CHANGES)]))
    late = [held.put(b"late")]
    await turns(3)
    assert disk.ended == 2
    late += [held.put(b"%d" % number) for number in range(database.GATHER_CHANGES)]
    assert all(await outcomes(*late))
    assert disk.ended == 3


async def test_successive_single_changes_are_hardly_delayed(held, disk, monkeypatch):
    for number in range(database.GATHER_ALONE):
        await held.put(b"%d" % number)
    monkeypatch.setattr(database, "GATHER_S", 3600)
    for number in range(database.GATHER_ALONE, database.GATHER_AGAIN):
        await held.put(b"%d" % number)
    last = held.put(b"last")
    await turns(3)
    assert disk.ended == database.GATHER_AGAIN
    assert not last.done()
    for number in range(database.GATHER_CHANGES):
        held.put(b"%d" % number)
    await last


@pytest.mark.parametrize("sync", [True, False])
async def test_every_write_uses_the_configured_durability(io_loop, tmp_path, disk, monkeypatch, sync):
    batches = []

    def group(db, sync):
        noting = SimpleNamespace(write_batch=lambda **options: batches.append(options) or db.write_batch(**options))
        return Group(noting, sync)

    monkeypatch.setattr(database, "Group", group)
    held = await Held.open(tmp_path / "data", sync=sync)
    for key in (b"a", b"b"):
        await held.put(key)
    await held.db.close()
    assert disk.ended == 2
    assert [options for options in batches if options] == [{"sync": sync}] * 3  # the last one was not written


async def test_change_is_seen_once_committed_even_if_its_waiter_is_cancelled(held, disk):
    with held_up(disk):
        waiters = [held.put(b"a"), held.put(b"b")]
        waiters[0].cancel()
        await turns(3)
        assert (held.keys(), held.settled) == ([], [])
    await waiters[1]
    assert held.keys() == [b"a", b"b"]
    assert held.settled == [(b"a", True), (b"b", True)]


async def test_deletes_come_before_puts_and_settled_before_the_waiter(held):
    await held.put(b"a", b"b")
    order = []
    waiter = held.db.commit(Change([(b"a", b"new")], [b"a", b"b"]), lambda ok: order.append(("settled", ok)))
    waiter.add_done_callback(lambda _: order.append("waiter"))
    await waiter
    await asyncio.sleep(0)
    assert order == [("settled", True), "waiter"]
    assert (held.keys(), held.db.snapshot.get(b"a")) == ([b"a"], b"new")


@pytest.mark.parametrize(
    "wrong", [Change([(b"x", "text")], []), Change([(b"x", b"y"), (b"z", None)], [b"good"]), Change([], [7])]
)
async def test_refused_change_affects_no_other(held, disk, wrong):
    settled = []
    with held_up(disk):
        before = held.put(b"good")
        with pytest.raises(TypeError):
            held.db.commit(wrong, settled.append)
        after = held.put(b"fine")
    assert await outcomes(before, after) == [True, True]
    assert held.keys() == [b"fine", b"good"]
    assert settled == [False]


async def test_failed_write_refuses_everything_until_reopened(held, disk, caplog):
    await held.put(b"before")
    held.opened.clear()
    disk.unopenable = True
    with held_up(disk):
        disk.failing = True
        waiters = [held.put(b"%d" % number) for number in range(3)]
        await turns(3)
        waiters += [held.put(b"%d" % number) for number in range(3, 6)]
    assert await outcomes(*waiters) == [False] * 6
    assert sorted(held.settled[1:]) == [(b"%d" % number, False) for number in range(6)]
    with pytest.raises(Unavailable):
        _ = held.db.snapshot
    assert await outcomes(held.put(b"during")) == [False]
    for _ in range(3):
        disk.refused.acquire()
    disk.failing = disk.unopenable = False
    await held.opened.wait()
    assert held.keys() == [b"before"]
    assert held.loads[-1].keys() == {b"before", *OWN}
    assert await outcomes(held.put(b"after")) == [True]
    assert held.settled[-2:] == [(b"during", False), (b"after", True)]
    said = [record.levelname for record in caplog.records if record.name == database.__name__]
    assert said == ["ERROR", "ERROR", "WARNING"]  # it failed, it cannot be opened (said once), it is open again
    assert "still refusing requests: " in caplog.text
    assert "No space left" in caplog.text
    assert (held.metrics.failed, held.metrics.reopened) == (1, 1)
    assert held.metrics.changes.sum == sum(held.metrics.changes.counts) == 2  # what failed is not among them
    assert str(held.db._path) in caplog.text


@pytest.mark.parametrize("writing", [True, False])
async def test_callback_that_raises_stops_no_other_change(writing, held, disk, caplog):
    """The state in memory, which such a callback updates, is loaded again."""

    def fail(ok):
        raise ZeroDivisionError

    held.opened.clear()
    disk.failing = not writing
    waiters = [held.put(b"a"), held.db.commit(Change([(b"b", b"")], []), fail), held.put(b"c")]
    assert await asyncio.wait_for(outcomes(*waiters), 60) == [writing] * 3
    assert held.settled == [(b"a", writing), (b"c", writing)]
    disk.failing = False
    await asyncio.wait_for(held.opened.wait(), 60)
    assert await outcomes(held.put(b"d")) == [True]
    assert held.keys() == [b"a", b"b", b"c", b"d"] if writing else [b"d"]
    assert "ZeroDivisionError" in caplog.text


async def test_error_of_a_measurement_does_not_stop_the_writer(held, monkeypatch, caplog):
    monkeypatch.setattr(held.db.space, "measure", lambda: 1 // 0)
    monkeypatch.setattr(Space, "stale", True)
    for _ in range(2):
        assert await asyncio.wait_for(outcomes(held.put(b"a")), 60) == [True]
    assert "ZeroDivisionError" in caplog.text


def damaged_block():
    return plyvel.CorruptionError(b"Corruption: block checksum mismatch")


@pytest.mark.parametrize("during", ["nothing", "a write", "a write that fails", "a group on its way"])
async def test_failed_read_refuses_everything_until_reopened(during, held, disk, caplog):
    await held.put(b"before")
    held.opened.clear()
    disk.unopenable = True
    waiters = []
    with held_up(disk):
        if during != "nothing":
            waiters.append(held.put(b"during"))
        if during.startswith("a write"):
            await turns(3)
            waiters.append(held.put(b"late"))
        disk.failing = during == "a write that fails"
        for _ in range(3):
            assert type(held.db.failed(damaged_block())) is Unavailable
        with pytest.raises(Unavailable):
            _ = held.db.snapshot
        assert await outcomes(held.put(b"refused")) == [False]
    written = {"nothing": [], "a write": [True, False], "a write that fails": [False, False]}
    assert await outcomes(*waiters) == written.get(during, [True])
    for _ in range(3):
        disk.refused.acquire()
    with pytest.raises(Unavailable):
        _ = held.db.snapshot
    disk.failing = disk.unopenable = False
    await held.opened.wait()
    expected = [b"before", b"during"] if during in ("a write", "a group on its way") else [b"before"]
    assert held.keys() == expected
    assert held.loads[-1].keys() == {*expected, *OWN}
    assert await outcomes(held.put(b"x")) == [True]
    said = [record.getMessage() for record in caplog.records if record.name == database.__name__]
    assert [line.split()[1] for line in said if line.startswith("a ")][:1] == ["read"]
    assert sum("block checksum mismatch" in line for line in said) == 1


@pytest.mark.parametrize(
    ("failed", "written"),
    [("read", []), ("read during a write", [True]), ("write", [False]), ("write and reopening", [False])],
)
async def test_closing_after_a_failure(failed, written, held, tmp_path, disk):
    await held.put(b"kept")
    with held_up(disk):
        waiters = [held.put(b"a") for _ in written]
        await turns(3)
        if failed.startswith("read"):
            assert type(held.db.failed(damaged_block())) is Unavailable
        else:
            disk.failing, disk.unopenable = True, "reopening" in failed
        closing = asyncio.create_task(held.db.close())
        await asyncio.sleep(0)
    assert await outcomes(*waiters) == written
    await asyncio.wait_for(closing, 60)
    assert type(held.db.failed(damaged_block())) is Unavailable
    disk.failing = disk.unopenable = False
    assert await stored(tmp_path / "data") == [b"a"] * (written == [True]) + [b"kept"]


async def test_database_that_was_never_opened_refuses_everything(io_loop, tmp_path):
    held = Held(tmp_path / "data")
    assert await outcomes(held.put(b"a")) == [False]
    with pytest.raises(Unavailable):
        _ = held.db.snapshot
    assert (held.db.available, held.db.size_bytes(), held.db.cache_bytes()) == (False, 0, 0)
    await held.db.close()
    assert not (tmp_path / "data").exists()


async def test_damage_found_on_reopening_can_start_empty(io_loop, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(database, "REOPEN_PAUSE_S", 0.001)
    path = tmp_path / "data"
    held = await Held.open(path, start_empty=True)
    await held.put(b"old")
    held.opened.clear()
    (path / "CURRENT").write_bytes(b"nonsense")
    assert type(held.db.failed(damaged_block())) is Unavailable
    await held.opened.wait()
    assert held.keys() == []
    assert await outcomes(held.put(b"new")) == [True]
    await held.db.close()
    (kept,) = [each for each in tmp_path.iterdir() if each != path]
    assert (kept / "CURRENT").read_bytes() == b"nonsense"
    assert any(record.levelname == "ERROR" and str(kept) in record.getMessage() for record in caplog.records)


async def test_closing_writes_pending_changes(held, tmp_path, disk):
    with held_up(disk):
        before = [held.put(b"a")]
        await turns(3)
        before.append(held.put(b"b"))
        closings = [asyncio.create_task(held.db.close()) for _ in range(3)]
        await asyncio.sleep(0)
        late = held.put(b"late")
    while not all(each.done() for each in closings):
        await asyncio.sleep(0)
        with suppress(Unavailable):  # a read of a database that is being closed once ended the process
            held.keys()
    assert await outcomes(*before, late) == [True, True, False]
    await held.db.close()
    assert await outcomes(held.put(b"later")) == [False]
    assert sorted(held.settled) == [(b"a", True), (b"b", True), (b"late", False), (b"later", False)]
    with pytest.raises(Unavailable):
        _ = held.db.snapshot
    assert await stored(tmp_path / "data") == [b"a", b"b"]


async def test_closing_while_it_cannot_be_opened(held, disk, monkeypatch):
    monkeypatch.setattr(database, "REOPEN_PAUSE_S", 3600)
    disk.failing = disk.unopenable = True
    assert await outcomes(held.put(b"lost")) == [False]
    await asyncio.wait_for(held.db.close(), 60)


@pytest.mark.parametrize("first", ["compact", "close", "fail"])
async def test_closing_and_failing_during_a_compaction(held, disk, first):
    await asyncio.gather(*[held.put(b"%d" % number, value=bytes(1000)) for number in range(1000)])
    held.opened.clear()
    others = {"compact": [held.db.close], "close": [held.db.compact], "fail": []}[first]
    running = [asyncio.create_task((held.db.close if first == "close" else held.db.compact)())]
    running += [asyncio.create_task(other()) for other in others]
    if first == "fail":
        disk.failing = True
        assert await outcomes(held.put(b"lost")) == [False]
        disk.failing = False
        await held.opened.wait()
        assert len(held.keys()) == 1000
    await outcomes(*running)
    await held.db.close()
    with pytest.raises(Unavailable):
        await held.db.compact()


async def test_closing_interrupts_a_compaction_between_two_slices(held, monkeypatch):
    monkeypatch.setattr(database, "SLICE_BYTES", 100_000)
    for number in range(4):
        keys = [b"https://one.example/%d %d" % (number, each) for each in range(1000)]
        await asyncio.gather(*[held.put(key, value=os.urandom(1000)) for key in keys])
    await held.db.compact()
    compacted = []
    compact = held.db._compact

    def noting(start, stop):
        compacted.append((start, stop))
        compact(start, stop)

    monkeypatch.setattr(held.db, "_compact", noting)
    slices = held.db._slices()
    assert (slices[0][0], slices[-1][1]) == (layout.BEFORE_ALL, layout.AFTER_ALL)
    assert [stop for _, stop in slices[:-1]] == [start for start, _ in slices[1:]]
    compaction = asyncio.create_task(held.db.compact())
    while len(compacted) < 3:  # noqa: ASYNC110 (another thread's)
        await asyncio.sleep(0)
    await held.db.close()
    with pytest.raises(Unavailable):
        await compaction
    assert len(compacted) < len(slices) / 2
    assert len(slices) >= 20


@pytest.mark.parametrize("tables", [1, 3])
async def test_compaction_frees_space_during_changes(held, tables):
    await held.put(b"kept")
    for number in range(tables):
        keys = [b"%d %d" % (number, each) for each in range(1000)]
        await asyncio.gather(*[held.put(key, value=os.urandom(4000)) for key in keys])
        if tables > 1:
            await held.db.compact()
    full = held.db.size_bytes()
    assert full > 4_000_000 * tables
    deleted = held.keys()
    deleted.remove(b"kept")
    await held.db.commit(Change([], deleted), lambda ok: None)
    compaction = asyncio.create_task(held.db.compact())
    for number in range(20):
        assert held.keys() == [b"kept", *(b"kept %02d" % each for each in range(number))]
        await held.put(b"kept %02d" % number)
    await compaction
    assert held.db.size_bytes() < 100_000


async def test_reads_cache_few_blocks(held):
    keys = [b"%d" % number for number in range(1000)]
    await asyncio.gather(*[held.put(key, value=os.urandom(4000) + bytes(12_000)) for key in keys])
    await held.db.compact()
    assert len(held.keys()) == len(keys)
    assert held.db.cache_bytes() < 6_000_000


async def test_size_is_zero_while_the_directory_is_moved_aside(held, tmp_path):
    await held.put(b"a", value=os.urandom(100_000))
    assert 100_000 < held.db.size_bytes() < 200_000
    (tmp_path / "data").rename(tmp_path / "aside")
    assert held.db.size_bytes() == 0
    (tmp_path / "aside").rename(tmp_path / "data")
    assert held.db.size_bytes() > 100_000


# How not to open: what is done to a directory that holds a database, and what is said then.


def only(path, pattern):
    (found,) = [file for file in path.glob(pattern) if file.stat().st_size]
    return found


def spoil(file, at=0.5):
    """Turn some bytes of a file around."""
    data = bytearray(file.read_bytes())
    start = int(len(data) * at)
    data[start : start + 8] = bytes(byte ^ 0xFF for byte in data[start : start + 8])
    file.write_bytes(data)


def foreign(path):
    for file in path.iterdir():
        file.unlink()
    with plyvel.DB(str(path), create_if_missing=True) as db:
        db.put(b"someone", b"else's")


def newer(path):
    with plyvel.DB(str(path)) as db:
        db.put(layout.FORMAT_KEY, layout.pack_number(layout.FORMAT + 1))


def a_file(path):
    path.rename(path.with_name("moved away"))
    path.write_text("I am no directory")


OTHER_DIR = "choose another --data-dir"
AWAY = "move the directory away, or serve with --start-empty-if-damaged"


@pytest.mark.parametrize(
    ("harm", "said", "advice"),
    [
        (foreign, "holds a LevelDB database that is not tornado-signal's", OTHER_DIR),
        (newer, f"format {layout.FORMAT + 1}", OTHER_DIR),
        (a_file, "a file is in the way", "name a directory with --data-dir"),
        (lambda path: a_file(path.parent), "a file is in the way", "name a directory with --data-dir"),
        (lambda path: (path / "CURRENT").unlink(), "tables or logs, but no CURRENT", AWAY),
        (lambda path: (path / "CURRENT").write_bytes(b"nonsense"), "damaged", AWAY),
        (lambda path: (path / "CURRENT").write_bytes(b""), "damaged", AWAY),
        (lambda path: (path / "CURRENT").write_bytes(b"MANIFEST-999999\n"), "MANIFEST-999999", AWAY),
        (lambda path: only(path, "MANIFEST-*").unlink(), "No such file", AWAY),
        (lambda path: only(path, "MANIFEST-*").write_bytes(b""), "damaged", AWAY),
        (lambda path: spoil(only(path, "MANIFEST-*")), "damaged", AWAY),
        (lambda path: spoil(only(path, "*.log"), 0.1), "damaged", AWAY),
        (lambda path: spoil(only(path, "*.log"), 0.9), "damaged", AWAY),
        (lambda path: only(path, "*.ldb").unlink(), "missing files", AWAY),
        (lambda path: only(path, "*.ldb").write_bytes(b""), "Invalid argument", AWAY),
        (lambda path: spoil(only(path, "*.ldb"), 0.99), "damaged", AWAY),
        (lambda path: spoil(only(path, "*.ldb"), 0.1), "damaged", AWAY),
    ],
)
async def test_unusable_directories_are_refused_with_advice(io_loop, tmp_path, harm, said, advice):
    path = tmp_path / "parent" / "data"
    held = await Held.open(path)
    await asyncio.gather(*[held.put(b"%d" % number, value=os.urandom(40)) for number in range(200)])
    await held.db.compact()
    await asyncio.gather(*[held.put(b"more %d" % number, value=os.urandom(40)) for number in range(50)])
    await held.db.close()
    harm(path)
    files = {file: file.read_bytes() for file in path.glob("*.l*")}
    with pytest.raises(DatabaseError) as refused:
        await Held.open(path)
    if "no CURRENT" in said:  # LevelDB would begin again and delete them
        assert {file: file.read_bytes() for file in path.glob("*.l*")} == files
    message = str(refused.value)
    assert (str(path) in message, said in message, advice in message) == (True, True, True), message
    assert "\n" not in message
    assert "b'" not in message


async def test_missing_permissions_are_reported(io_loop, tmp_path):
    path = tmp_path / "data"
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write everywhere
    try:
        with pytest.raises(DatabaseError, match=r"Permission denied.*choose another --data-dir") as refused:
            await Held.open(path)
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("left", ["*", "MANIFEST*"])
async def test_first_start_that_was_killed_is_completed(io_loop, tmp_path, left):
    path = tmp_path / "data"
    plyvel.DB(str(path), create_if_missing=True).close()
    for file in {*path.iterdir()} - {*path.glob(left)}:
        file.unlink()
    held = await Held.open(path)
    assert held.keys() == []
    await held.put(b"a")
    await held.db.close()
    assert await stored(path) == [b"a"]


async def test_load_that_fails_leaves_nothing_behind(io_loop, tmp_path):
    def load(db):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Held.open(tmp_path / "data", load=load)
    assert await stored(tmp_path / "data") == []
