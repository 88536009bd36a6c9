"""The LevelDB engine: steps, the sweep, limits of memory, damage, and what a check finds."""

import asyncio
import shutil

import pytest
from support.stores import TIMEOUT_MS, Under, check_memory, open_leveldb, sweep

from tornado_signal.errors import DatabaseError, Unavailable
from tornado_signal.session import Answer, Position, Side
from tornado_signal.stores.leveldb import layout, memory, records
from tornado_signal.stores.leveldb.binding import plyvel
from tornado_signal.stores.leveldb.check import flaws

ORIGIN = "https://one.example"
OFFERER, ANSWERER = Side.OFFERER, Side.ANSWERER


async def test_reading_stops_at_the_last_entry(store, one):
    code = await one.create()
    await one.add(code, OFFERER, "a", "b")
    await one.add(code, ANSWERER, "c")
    steps = []

    class Counted:
        def __init__(self, real):
            self.seek, self.valid, self.item, self.close = real.seek, real.valid, real.item, real.close
            self.next = lambda: (steps.append(1), real.next())

    def counted():
        store.database.snapshot.raw_iterator = lambda: Counted(store.database._db.raw_iterator())
        steps.clear()

    counted()
    assert await one.codes() == [code]
    assert len(steps) == 3  # head, offer and two candidates
    await one.answer(code)
    counted()
    assert len((await one.read(code, ANSWERER)).candidates) == 1
    assert len(steps) == 1  # the answer and a candidate
    await one.withdraw(code)  # which replaces the snapshot


async def test_sessions_in_memory_count_against_the_limit_of_the_store(open_store, under, tmp_path, clock):
    store = await open_store(max_store_bytes=10 * memory.SESSION_BYTES)
    one = under(store)
    created = await asyncio.gather(*[one.create(offer="o") for _ in range(10)])
    with pytest.raises(Unavailable):
        await one.create(offer="o")
    assert store.database.size_bytes() < store.space.max_bytes
    assert store.full == "store"
    await one.answer(created[0])  # it grows little
    clock.ms += TIMEOUT_MS
    await sweep(store)
    clock.ms += TIMEOUT_MS
    await sweep(store)
    await one.create()


async def test_sweep_runs_in_bounded_steps(store, one, clock):
    big = await one.create()
    await one.add(big, OFFERER, *map(str, range(3000)))
    await one.answer(big)
    await one.add(big, ANSWERER, *map(str, range(2000)))
    await asyncio.gather(*[one.create(f"topic {number % 7}") for number in range(400)])
    clock.ms += 1
    fresh = await one.create()
    clock.ms += TIMEOUT_MS - 1
    steps = await sweep(store)
    assert sum(steps) == 5000 + 3 + 3 * 400
    assert max(steps) < 2000
    assert await one.codes() == [fresh]
    assert len([key for key in store.database.snapshot.iterator(include_value=False) if key[:1] in b"SL"]) == 3
    assert await store.sweep(clock.ms) == 0
    clock.ms += TIMEOUT_MS
    assert await sweep(store) == [3]
    assert store.metrics.swept == 402
    assert {key[:1] for key in store.database.snapshot.iterator(include_value=False)} == {b"F", b"I", b"M"}


def turn_around(file, start):
    data = bytearray(file.read_bytes())
    data[start : start + 8] = bytes(byte ^ 0xFF for byte in data[start : start + 8])
    file.write_bytes(data)


async def fill(store, count):
    one = Under(store, ORIGIN)
    codes = await asyncio.gather(*[one.create(f"topic {number % 7}", offer=f"{number}") for number in range(count)])
    await asyncio.gather(*[one.add(code, OFFERER, "a", "b") for code in codes])
    await asyncio.gather(*[one.answer(code) for code in codes[::3]])
    await store.database.compact()
    await one.create("in no table")


@pytest.mark.parametrize("count", [1, 400])
async def test_damage_anywhere_in_a_table_is_refused_or_harmless(io_loop, tmp_path, clock, count):
    options = {"durability": "os"}
    store = await open_leveldb(tmp_path / "sound", clock, **options)
    await fill(store, count)
    held = list(store.database.snapshot.iterator())
    await store.close()
    (table,) = (tmp_path / "sound").glob("*.ldb")
    size = table.stat().st_size
    refusals = []
    for start in (*range(0, size - 56, size // 60), *range(size - 56, size)):  # the footer byte by byte
        path = tmp_path / str(start)
        shutil.copytree(tmp_path / "sound", path)
        turn_around(path / table.name, start)
        try:
            store = await open_leveldb(path, clock, **options)
        except DatabaseError as error:
            refusals.append((str(path), str(error)))
        else:
            assert list(store.database.snapshot.iterator()) == held
            await store.close()
    assert len(refusals) > 30
    for path, said in refusals:
        assert (path in said, "\n" in said, "'" in said) == (True, False, False)
        assert f"{path} is damaged (" in said or f"{table.name}: Invalid argument" in said


def change_counters(db, **fields):
    latest_ms, serial = layout.unpack_counters(db.get(layout.COUNTERS_KEY))
    counters = {"latest_ms": latest_ms, "serial": serial, **fields}
    db.put(layout.COUNTERS_KEY, layout.pack_counters(counters["latest_ms"], counters["serial"]))


def harm_listing(db, key, session):
    db.delete(layout.pack_listing_key(ORIGIN, session.topic, session.created_ms, session.serial))


def harm_answer(db, key, session):
    db.put(key + layout.ANSWER, layout.pack_answer(Answer("not by the rules", 1)))


def harm_another_listing(db, key, session):
    db.put(layout.pack_listing_key(ORIGIN, "elsewhere", session.created_ms, session.serial), session.code)


def harm_topic(db, key, session):
    harm_another_listing(db, key, session)
    harm_listing(db, key, session)


def harm_leases(db, key, session):
    harm_answer(db, key, session)
    harm_listing(db, key, session)
    db.put(key + layout.LEASES, b"l" * 12)


def harm_candidate(db, key, session):
    db.put(key + layout.ANSWER_CANDIDATE + layout.pack_number(1), b"the same number")
    harm_answer(db, key, session)
    harm_listing(db, key, session)


REFUSED = [
    (lambda db, key, _: db.delete(key + layout.HEAD), "a session has parts but no head"),
    (lambda db, key, _: (db.delete(key + layout.HEAD), db.delete(key + layout.OFFER)), "matches no session"),
    (harm_another_listing, "matches no session"),
    (harm_listing, "must be either listed or answered"),
    (harm_answer, "must be either listed or answered"),
]
FOUND = [
    (lambda db, key, _: db.delete(key + layout.OFFER), "has no offer"),
    (harm_topic, "is listed in another topic"),
    (harm_leases, "is held and not listed"),
    (lambda db, _, session: change_counters(db, latest_ms=session.created_ms - 1), "newer than the counters"),
    (lambda db, *_: change_counters(db, serial=0), "serials are not distinct or are beyond the counters"),
    (harm_candidate, "has two parts with number 1"),
]


@pytest.mark.parametrize(("harm", "message"), [*REFUSED, *FOUND])
async def test_missing_part_is_refused_and_a_check_finds_each_disagreement(
    io_loop, tmp_path, clock, under, harm, message
):
    path = tmp_path / "data"
    store = await open_leveldb(path, clock)
    await under(store).create("another")
    code = await under(store).create()
    check_memory(store)
    (listed,) = await under(store).sessions()
    await store.close()
    with plyvel.DB(str(path)) as db:
        harm(db, layout.pack_session_prefix(ORIGIN, code), listed.session)
        found = [*flaws(db)]
    if (harm, message) in REFUSED:
        assert len(found) == 1
        with pytest.raises(DatabaseError, match=message):
            await open_leveldb(path, clock)
        return
    store = await open_leveldb(path, clock)
    with pytest.raises(AssertionError, match=message):
        check_memory(store)
    await store.close()


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda its, record: its.refresh(record, record.expires_ms + 1), "in memory differs from the records"),
        (lambda its, record: record.topic.sessions.clear(), "is not in order"),
        (lambda its, record: setattr(its, "listed", 2), "the counts in memory are wrong"),
        (lambda its, record: its.sessions.pop(record.key), "in memory differs from the records"),
    ],
)
async def test_check_finds_a_wrong_memory(io_loop, tmp_path, clock, wrong, found):
    store = await open_leveldb(tmp_path / "data", clock)
    await Under(store, ORIGIN).create()
    (record,) = store.memory.sessions.values()
    check_memory(store)
    wrong(store.memory, record)
    with pytest.raises(AssertionError, match=found):
        check_memory(store)
    await store.close()


async def test_step_is_bounded_in_bytes(store, one, clock):
    codes = [await one.create(offer="o" * 50_000) for _ in range(12)]
    for code in codes:
        await one.add(code, OFFERER, "c" * 50_000)
    newest_first = [len(step) async for step in store.sessions(ORIGIN, "topic")]
    assert newest_first == [3, 3, 3, 3]
    assert [len(step) async for step in one.steps(await one.begin()) if step] == [3, 3, 3, 3]
    position = await one.knowing()
    clock.ms += 1
    for code in codes:
        await one.refresh(code)
    assert [len(step) async for step in one.steps(position) if step] == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "error", [plyvel.CorruptionError(b"bad block"), ZeroDivisionError()], ids=["leveldb", "defect"]
)
@pytest.mark.parametrize("question", ["read", "sessions", "events", "answer"])
async def test_leveldb_errors_are_unavailable_and_defects_propagate(
    store, one, monkeypatch, caplog, question, error, until
):
    code = await one.create()
    position = await one.begin()

    def failing(*arguments, **options):
        raise error

    with monkeypatch.context() as patch:
        for name in ("news", "listing_step", "find_answer"):
            patch.setattr(records, name, failing)
        asked = {
            "read": lambda: one.read(code, OFFERER),
            "sessions": one.sessions,
            "events": lambda: one.events(position),
            "answer": lambda: one.answer(code),
        }[question]
        with pytest.raises((Unavailable, ZeroDivisionError)) as raised:
            await asked()
    defect = isinstance(error, ZeroDivisionError)
    assert raised.value is error if defect else raised.value.reason == "the database failed"
    assert store.available == defect
    await until(lambda: store.available)
    await asked()
    assert sum("bad block" in record.getMessage() for record in caplog.records) == (not defect)


async def test_future_or_forgotten_position_is_refused(store, one, monkeypatch):
    monkeypatch.setattr(memory, "MAX_REMOVALS", 3)
    await asyncio.gather(*[one.create() for _ in range(8)])
    for code in (await one.codes())[:4]:
        await one.withdraw(code)
    for event, listed in [(4, 8), (4, 3), (3, 8), (5, 8), (5, 3), (4, 9)]:
        known = event == 4 and listed <= 8
        position = Position(store.memory.generation, event, listed)
        begun = await store.begin_topic("https://one.example", "topic", position)
        assert begun == ((position, True) if known else (Position(store.memory.generation, 4, 0), False))
