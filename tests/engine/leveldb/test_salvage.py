"""What is saved of a database that has lost entries: every whole session, and only those."""

import asyncio
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import BEGIN_MS, TIMEOUT_MS, HandClock, open_leveldb

from tornado_signal.maintenance import recovery
from tornado_signal.maintenance.salvage import Salvage
from tornado_signal.session import Reason, Session, Side
from tornado_signal.stores.leveldb import check, directory, layout, records
from tornado_signal.stores.leveldb.binding import plyvel

ORIGINS = ["https://a.example", "https://b.example"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """All entries of a store that has seen sessions come, be answered, withdrawn, and talked in."""
    path = tmp_path_factory.mktemp("salvage") / "data"
    asyncio.run(fill(path))
    with plyvel.DB(str(path)) as db:
        return without_identity(db)


def without_identity(db):
    return {key: value for key, value in db.iterator() if key != layout.IDENTITY_KEY}


async def fill(path):
    clock = HandClock()
    store = await open_leveldb(path, clock, durability="os")
    rng = random.Random(1)
    for number in range(40):
        clock.ms = BEGIN_MS + number
        origin = rng.choice(ORIGINS)
        code, _ = await store.create(origin, rng.choice("xyz"), f"info {number}", f"offer {number}")
        for side in rng.choices(list(Side), k=rng.randrange(4)):
            await store.add_candidates(origin, code, side, ["c", "d"])
        if number % 4 == 1:
            await store.answer(origin, code, "answer")
        elif number % 4 == 2:
            await store.withdraw(origin, code, Side.OFFERER)
    store.check()
    await store.close()


def saved_of(path, entries):
    """Salvage entries; what was said, and what there is then, which is sound."""
    with plyvel.DB(str(path / "damaged"), create_if_missing=True) as damaged:
        for key, value in entries.items():
            damaged.put(key, value)
        db = directory.open_leveldb(path / "new")
        try:
            salvage = Salvage(damaged)
            recovery.fill(db, salvage)
            loaded = records.load(db)
            assert check.problems(db, loaded.topics, BEGIN_MS + 40) == []
            return (salvage.sessions, salvage.incomplete), without_identity(db)
        finally:
            db.close()


def sessions(entries):
    found = {}
    for key, value in entries.items():
        if key.startswith(layout.SESSIONS):
            origin, code, part = layout.unpack_session_key(key)
            found.setdefault((origin, code), {})[part] = value
    return found


def test_a_sound_database_is_taken_over_to_the_byte(sound, tmp_path):
    said, saved = saved_of(tmp_path, sound)
    assert saved == sound
    assert said == (30, 0)
    assert len(sessions(sound)) == 30


def test_derived_entries_are_rebuilt(sound, tmp_path):
    lost = {
        key
        for key in sound
        if key.startswith((layout.LISTING, layout.COUNTERS_KEY, layout.EXPIRY))
        and not (key.startswith(layout.EXPIRY) and layout.unpack_expiry_key(key)[1].startswith(layout.DEPARTURES))
    }
    assert len(lost) == 1 + 20 + 30
    said, saved = saved_of(tmp_path, {key: value for key, value in sound.items() if key not in lost})
    assert said == (30, 0)
    assert {key: value for key, value in saved.items() if key != layout.COUNTERS_KEY} == {
        key: value for key, value in sound.items() if key != layout.COUNTERS_KEY
    }
    before, after = (layout.unpack_counters(each[layout.COUNTERS_KEY]) for each in (sound, saved))
    assert after.listed == before.listed == 20
    assert after.serial == before.serial


@given(lost=st.data())
def test_incomplete_sessions_are_left_out(sound, tmp_path_factory, lost):
    keys = lost.draw(st.sets(st.sampled_from(sorted(sound)), max_size=len(sound)))
    left = {key: value for key, value in sound.items() if key not in keys}
    path = tmp_path_factory.mktemp("half")
    said, saved = saved_of(path, left)
    shutil.rmtree(path)
    originally, there, kept = sessions(sound), sessions(left), sessions(saved)
    leavers = {
        layout.unpack_departure_value(value)[0]
        for key, value in left.items()
        if key.startswith(layout.DEPARTURES)
        and any(each.startswith(layout.EXPIRY) and layout.unpack_expiry_key(each)[1] == key for each in left)
    }
    for name, parts in there.items():
        whole = layout.HEAD in parts and layout.OFFER in parts
        lost_answer = layout.ANSWER in originally[name] and layout.ANSWER not in parts and name[1] in leavers
        assert (name in kept) == (whole and not lost_answer)
        assert kept.get(name, parts) == parts
    assert said == (len(kept), len(there) - len(kept))


def test_withdrawn_sessions_do_not_come_back(sound, tmp_path):
    withdrawn = [
        (key, *layout.unpack_departure_value(value))
        for key, value in sound.items()
        if key.startswith(layout.DEPARTURES) and layout.unpack_departure_value(value)[2] is Reason.WITHDRAWN
    ]
    assert len(withdrawn) == 10
    key, code, serial, _ = withdrawn[0]
    origin, topic = layout.unpack_listing_prefix(key[:-8])
    head = Session(code, topic, "info", BEGIN_MS, BEGIN_MS + TIMEOUT_MS, TIMEOUT_MS, serial)
    prefix = layout.pack_session_prefix(origin, code)
    risen = {prefix + layout.HEAD: layout.pack_head(head), prefix + layout.OFFER: b"offer"}
    said, saved = saved_of(tmp_path, sound | risen)
    assert said == (30, 1)
    assert saved == sound
