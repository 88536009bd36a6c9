"""The store: every operation, to the millisecond, alone and at once with others, and what is left on the disk."""

import asyncio
import os
import shutil
import uuid
from contextlib import suppress

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS, HandClock, Under, sweep

from tornado_signal.errors import AlreadyAnswered, DatabaseError, SessionNotFound, Unavailable
from tornado_signal.session import Answer, ListedSession, News, Reason, Session, Side, content_code
from tornado_signal.stores.leveldb import access as gates
from tornado_signal.stores.leveldb import layout, records
from tornado_signal.stores.leveldb import store as store_module
from tornado_signal.stores.leveldb.binding import plyvel

ORIGIN, OTHER = "https://one.example", "https://two.example"
OFFERER, ANSWERER = Side.OFFERER, Side.ANSWERER
# Each begins others, or sorts next to them, or looks like a part of a key.
AWKWARD = ["", "\x00", "\x00\x00", "\x00\xff", "a", "a\x00", "a\x00b", "a\xff", "a/b", "b", "\U0010ffff" * 256]


async def gone(*operations):
    """Whether all of these end as what does not exist does."""
    results = await asyncio.gather(*operations, return_exceptions=True)
    return all(type(result) is SessionNotFound for result in results)


def everything(one, code):
    """Each operation that needs a session, and leaves it there."""
    yield from (one.answer(code), one.add(code, OFFERER, "c"), one.add(code, ANSWERER, "c"))
    yield from (one.read(code, OFFERER), one.read(code, ANSWERER), one.refresh(code), one.refresh(code, ANSWERER))


async def said(one, code, side):
    """What one side has sent, without the numbers."""
    news = await one.read(code, side)
    return news.description, [text for _, text in news.candidates]


def tables(store):
    """To which tables the keys belong that a store holds."""
    return {key[:1] for key in store._db.view.iterator(include_value=False)}


async def test_a_session_from_offer_to_answer(store, under, clock):
    """What is published is listed as it is, what is sent is read, what is answered is listed no more."""
    one = under(store)
    code = await one.create("topic", "info", "offer")
    assert uuid.UUID(bytes=code).version == 4
    session = Session(code, "topic", "info", BEGIN_MS, BEGIN_MS + TIMEOUT_MS, TIMEOUT_MS, 1)
    assert await one.sessions() == [ListedSession(session, "offer", [])]
    assert await one.topics() == ([("topic", 1)], 1)
    await one.add(code, OFFERER, "o1")
    clock.ms += 1
    await one.add(code, ANSWERER, "a1", "a2")
    await one.add(code, OFFERER, "o2")
    assert await one.sessions() == [ListedSession(session, "offer", ["o1", "o2"])]
    end = session.expires_ms
    assert await one.read(code, OFFERER) == News("offer", 1, [(2, "o1"), (3, "o2")], end, 1)
    assert await one.read(code, ANSWERER) == News(None, 0, [(1, "a1"), (2, "a2")], end, 1)
    await one.answer(code, "ånswer")
    assert await one.read(code, ANSWERER) == News("ånswer", 3, [(1, "a1"), (2, "a2")], end, 1)
    await one.add(code, ANSWERER, "a3")
    assert await one.read(code, ANSWERER) == News("ånswer", 3, [(1, "a1"), (2, "a2"), (4, "a3")], end, 1)
    assert (await one.sessions(), await one.topics()) == ([], ([], 0))


async def test_the_first_answer_stands(store, under):
    """The same answer again is a retry, another one comes too late, also much later (contract B9)."""
    one = under(store)
    code = await one.create()
    for _ in range(2):
        await one.answer(code, "first")
        with pytest.raises(AlreadyAnswered):
            await one.answer(code, "second")
    assert (await one.read(code, ANSWERER)).description == "first"


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("swept", [False, True])
async def test_expiry_to_the_millisecond(store, under, clock, answered, swept):
    """Live one millisecond before its expiry in every respect, gone at it in every respect (contract B10)."""
    one = under(store)
    code = await one.create()
    if answered:
        await one.answer(code)
    clock.ms += TIMEOUT_MS - 1
    assert await sweep(store, clock.ms) == []
    *doing, staying, staying_too = everything(one, code)
    await asyncio.gather(*doing)
    staying.close()
    staying_too.close()
    fresh = await one.create("fresh")
    assert await one.codes() == []  # it is answered by now
    clock.ms += 1
    if swept:
        assert await sweep(store, clock.ms) != []
    assert await gone(*everything(one, code))
    assert (await one.sessions(), await one.topics()) == ([], ([("fresh", 1)], 1))
    assert await one.codes("fresh") == [fresh]


async def test_listing_and_counts_without_any_sweep(store, under, clock):
    """Listing, counts and totals are exact at each instant, whatever has expired unswept."""
    one = under(store)
    for number in range(20):
        await one.create(f"topic {number % 4}")
        clock.ms += 100
    for _ in range(12):
        live = [number for number in range(20) if clock.ms < BEGIN_MS + 100 * number + TIMEOUT_MS]
        counts = {f"topic {number}": len([each for each in live if each % 4 == number]) for number in range(4)}
        expected = [(topic, count) for topic, count in counts.items() if count]
        assert await one.topics() == (expected, len(expected))
        for topic, count in counts.items():
            assert len(await one.sessions(topic)) == count
        clock.ms += 99
    assert (await one.topics(), clock.ms > BEGIN_MS + 3000) == (([], 0), True)


async def test_newest_first(store, under, clock):
    """By creation time, within one millisecond the later-created first (contract B11)."""
    one = under(store)
    codes = []
    for _ in range(5):
        codes += [await one.create(), await one.create()]
        codes += await asyncio.gather(one.create(), one.create())
        clock.ms += 1
    assert await one.codes() == codes[::-1]
    created = [listed.session.created_ms for listed in await one.sessions()]
    assert created == [BEGIN_MS + each // 4 for each in reversed(range(20))]


async def test_creation_never_goes_backwards(open_store, under, clock):
    """A clock that is put back, also across a restart, makes nothing older than what there was (contract B11)."""
    store = open_store()
    one = under(store)
    codes = [await one.create()]
    clock.ms -= 500
    codes.append(await one.create())
    assert store.created_ms == BEGIN_MS
    await store.close()
    store = open_store()
    assert store.created_ms == BEGIN_MS
    one = under(store)
    clock.ms -= 100_000
    codes.append(await one.create())
    found = await one.sessions()
    assert [listed.session.code for listed in found] == codes[::-1]
    assert {(each.session.created_ms, each.session.expires_ms) for each in found} == {(BEGIN_MS, BEGIN_MS + TIMEOUT_MS)}


async def test_an_origin_sees_and_reaches_only_its_own(store, under):
    """The same topics under other origins are other topics, and a code is worth nothing elsewhere."""
    origins = [ORIGIN, OTHER, "null", ORIGIN + "\x00", ORIGIN + "\xff", "https://one.exampl", ""]
    codes = {}
    for origin in origins:
        for topic in AWKWARD:
            codes[origin, topic] = await under(store, origin).create(topic, origin)
    for origin in origins:
        one = under(store, origin)
        assert await one.topics() == ([(topic, 1) for topic in sorted(AWKWARD)], len(AWKWARD))
        for topic in AWKWARD:
            assert await one.codes(topic) == [codes[origin, topic]]
        for other in origins:
            if other != origin:
                assert await gone(*everything(one, codes[other, "a"]))
    await under(store).answer(codes[ORIGIN, "a"])
    assert len((await under(store).topics())[0]) == len(AWKWARD) - 1
    assert len((await under(store, OTHER).topics())[0]) == len(AWKWARD)


@pytest.mark.parametrize("codes", ["random", "content"])
async def test_what_does_not_exist(open_store, under, codes):
    """A code that nobody has is not found, and nothing is left behind by asking."""
    store = open_store(codes=codes)
    one = under(store)
    assert await gone(*everything(one, uuid.uuid4().bytes), *everything(one, bytes(16)), *everything(one, b"\xff" * 16))
    assert await one.sessions("nowhere") == []
    assert list(store._db.view.iterator(include_value=False)) == [layout.FORMAT_KEY, layout.IDENTITY_KEY]


async def test_pages_of_topics(store, under):
    """Alphabetical by code point, any page of it, with the total of all (contract B12)."""
    one = under(store)
    names = ["é", "e\u0301", "z", "Z", "a", "aa", "\uffff", "\U0001f600", "10", "9", "\x00"]
    for number, name in enumerate(names):
        await asyncio.gather(*[one.create(name) for _ in range(number + 1)])
    expected = [(name, names.index(name) + 1) for name in sorted(names)]
    for limit in (1, 3, 100):
        for offset in (0, 1, 9, 10, 11, 2**53 * 1000):
            assert await one.topics(offset, limit) == (expected[offset : offset + limit], len(names))


async def test_a_listing_of_many_steps(store, under, clock):
    """A listing longer than one turn of the loop comes whole and in order, the expired ones in between left out."""
    one = under(store)
    length = 4 * records.LISTING_STEP + 1
    codes = [await one.create() for _ in range(length)]
    for code in codes[::3]:
        await one.answer(code)
    expected = [code for code in codes if code not in codes[::3]][::-1]
    steps = [step async for step in store.sessions(ORIGIN, "topic", clock.ms)]
    assert [listed.session.code for step in steps for listed in step] == expected
    assert all(0 < len(step) <= records.LISTING_STEP for step in steps)
    clock.ms += 1
    fresh = [await one.create() for _ in range(records.LISTING_STEP)]
    clock.ms += TIMEOUT_MS - 1
    assert await one.codes() == fresh[::-1]


async def test_a_listing_passes_over_the_expired_in_turns(store, under, clock, monkeypatch):
    """Thousands of expired entries, unswept, before and between the live ones, do not hold the loop in one turn."""
    monkeypatch.setattr(records, "PASSING_STEP", 10)
    one = under(store)
    for _ in range(3):
        await asyncio.gather(*[one.create() for _ in range(35)])
    clock.ms += TIMEOUT_MS
    assert await one.sessions() == []
    turns = 0
    listing = asyncio.create_task(one.sessions())
    while not listing.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10


async def test_a_listing_while_it_changes(store, under):
    """What is answered, added or published during a long listing does no harm: nothing twice, nothing torn."""
    one = under(store)
    codes = [await one.create(info=str(number)) for number in range(3 * records.LISTING_STEP)]
    seen = []
    async for step in store.sessions(ORIGIN, "topic", BEGIN_MS):
        seen += [listed.session.code for listed in step]
        await one.create()
        for code in codes[::7]:
            with suppress(AlreadyAnswered):
                await one.answer(code, str(len(seen)))
    assert len(seen) == len(set(seen))
    assert set(codes) - set(codes[::7]) <= set(seen) <= set(codes)


@pytest.mark.parametrize("codes", ["random", "content"])
@pytest.mark.parametrize("waiting", [False, True])
async def test_two_answers_at_once_have_one_winner(open_store, under, codes, waiting):
    """Of many answers at one moment the first wins, its repetitions succeed and all others are told."""
    one = under(open_store(codes=codes))
    code = await one.create()
    before = asyncio.create_task(one.add(code, OFFERER, "c")) if waiting else one.read(code, OFFERER)
    await asyncio.sleep(0)
    answers = ["a", "b", "a", "c"] * 5
    results = await asyncio.gather(*[one.answer(code, answer) for answer in answers], return_exceptions=True)
    await before
    assert [type(result) for result in results] == [type(None) if each == "a" else AlreadyAnswered for each in answers]
    assert (await one.read(code, ANSWERER)).description == "a"


async def test_many_candidates_at_once_are_all_kept(store, under):
    """Candidates of both sides at one moment, with an answer among them, are all kept, each side's in its order."""
    one = under(store)
    code = await one.create()
    sides = {OFFERER: [f"o{number}" for number in range(300)], ANSWERER: [f"a{number}" for number in range(300)]}
    pairs = zip(*sides.values(), strict=True)
    changes = [one.add(code, side, text) for pair in pairs for side, text in zip(sides, pair, strict=True)]
    changes.insert(100, one.answer(code))
    await asyncio.gather(*changes)
    assert [await said(one, code, side) for side in sides] == [("offer", sides[OFFERER]), ("answer", sides[ANSWERER])]
    news = await one.read(code, ANSWERER)
    assert sorted([news.description_number, *(number for number, _ in news.candidates)]) == list(range(1, 302))


async def test_gates_are_not_kept_for_ever(store, under, monkeypatch):
    """What is kept of sessions in memory is bounded and goes with them; when it is read again it is the same."""
    monkeypatch.setattr(gates, "KEPT", 10)
    one = under(store)
    codes = [await one.create() for _ in range(20)]
    for text in "abc":
        for code in codes:
            await asyncio.gather(one.add(code, OFFERER, text), one.add(code, ANSWERER, text))
            assert len(store._gates) <= 11
            store.check(now_ms=0)
    for code in codes:
        await one.answer(code)
        for side in (OFFERER, ANSWERER):
            news = await one.read(code, side)
            assert sorted([news.description_number, *(number for number, _ in news.candidates)]) == [1, 2, 3, 4]
    for code in codes:
        await one.withdraw(code)
    assert store._gates == {}


async def test_an_answer_comes_through_a_stream_of_candidates(store, under):
    """While candidates of a session never stop coming, its answer is taken all the same."""
    one = under(store)
    code = await one.create()
    answered = asyncio.Event()

    async def trickle(delay):
        for _ in range(delay):
            await asyncio.sleep(0)
        while not answered.is_set():
            await one.add(code, OFFERER, "c")

    streams = [asyncio.create_task(trickle(delay)) for delay in range(10)]
    await one.add(code, OFFERER, "c")
    try:
        await asyncio.wait_for(one.answer(code), 10)
    finally:
        answered.set()
        await asyncio.gather(*streams)
    assert (await one.read(code, ANSWERER)).description == "answer"


async def test_several_candidates_are_one_change(store, under):
    """Candidates that come together stand together, whoever else sends at that moment."""
    one = under(store)
    code = await one.create()
    groups = [[f"{group}.{number}" for number in range(5)] for group in range(20)]
    await asyncio.gather(*[one.add(code, OFFERER, *group) for group in groups])
    assert await said(one, code, OFFERER) == ("offer", [text for group in groups for text in group])


async def test_a_candidate_at_the_moment_of_the_end(store, under, clock):
    """A change that had to wait for its turn is decided by the request's own time, and a sweep takes it all."""
    one = under(store)
    code = await one.create()
    clock.ms += TIMEOUT_MS - 1
    early = [one.add(code, OFFERER, "c"), one.answer(code), one.add(code, ANSWERER, "c")]
    tasks = [asyncio.create_task(each) for each in early]
    await asyncio.sleep(0)
    clock.ms += 1
    while not all(task.done() for task in tasks):
        await store.sweep(clock.ms)
        await asyncio.sleep(0)
    await sweep(store, clock.ms)
    assert await gone(*everything(one, code))
    assert not tables(store) & {b"S", b"L"}


# Contract B16.


async def test_content_codes(open_store, under):
    """The same offer and topic under one origin is one session, whatever the info; anything else is another one."""
    store = open_store(codes="content")
    one, other = under(store), under(store, OTHER)
    code = await one.create("topic", "first", "offer")
    assert code == content_code(ORIGIN, ["topic"], "offer") == await one.create("topic", "second", "offer")
    (listed,) = await one.sessions()
    assert listed.session.info == "first"
    assert await one.topics() == ([("topic", 1)], 1)
    others = [await one.create("topic", "first", "offer2"), await one.create("topic2", "first", "offer")]
    others.append(await other.create("topic", "first", "offer"))
    assert len({code, *others}) == 4


@pytest.mark.parametrize("passed_ms", [0, 1, TIMEOUT_MS - 1])
async def test_an_unanswered_content_is_refreshed(open_store, under, clock, passed_ms):
    """Published again before its end: a new expiry; code, place, creation, info and candidates stay."""
    store = open_store(codes="content")
    one = under(store)
    code = await one.create()
    await one.add(code, OFFERER, "c")
    after = await one.create("topic", "info", "a later one")
    clock.ms += passed_ms
    assert await one.create("topic", "other info", "offer") == code
    clock.ms = BEGIN_MS + TIMEOUT_MS - 1
    assert await one.codes() == [after, code]
    listed = (await one.sessions())[1]
    assert (listed.offer, listed.candidates, listed.session.info) == ("offer", ["c"], "info")
    assert (listed.session.created_ms, listed.session.expires_ms) == (BEGIN_MS, BEGIN_MS + passed_ms + TIMEOUT_MS)
    clock.ms = BEGIN_MS + passed_ms + TIMEOUT_MS - 1
    await sweep(store, clock.ms)
    assert code in await one.codes()
    clock.ms += 1
    assert (await one.codes(), await one.topics()) == ([], ([], 0))
    assert await gone(*everything(one, code))


async def test_an_answered_content_is_left_as_it_is(open_store, under, clock):
    """Published again when it has been answered: the same code, nothing else."""
    store = open_store(codes="content")
    one = under(store)
    code = await one.create()
    await one.answer(code)
    clock.ms += TIMEOUT_MS - 1
    assert await one.create() == code
    assert await said(one, code, ANSWERER) == ("answer", [])
    assert (await one.codes(), await one.topics()) == ([], ([], 0))
    clock.ms += 1
    assert await gone(*everything(one, code))


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("swept", [False, True])
async def test_an_expired_content_begins_anew(open_store, under, clock, answered, swept):
    """Published again after its end: a new session with the same code and nothing of the old one."""
    store = open_store(codes="content")
    one = under(store)
    code = await one.create()
    await one.add(code, OFFERER, *map(str, range(500)))
    await one.add(code, ANSWERER, "c")
    if answered:
        await one.answer(code)
    clock.ms += TIMEOUT_MS
    if swept:
        await store.sweep(clock.ms)  # one step: it is half gone
    assert await one.create("topic", "new info", "offer") == code
    await sweep(store, clock.ms)
    (listed,) = await one.sessions()
    expected = Session(code, "topic", "new info", clock.ms, clock.ms + TIMEOUT_MS, TIMEOUT_MS, listed.session.serial)
    assert listed == ListedSession(expected, "offer", [])
    assert await said(one, code, ANSWERER) == (None, [])
    assert await one.topics() == ([("topic", 1)], 1)


async def test_content_published_many_times_at_once(open_store, under):
    """However many publish the same at one moment, with an answer among them, it is one session."""
    one = under(open_store(codes="content"))
    codes = await asyncio.gather(*[one.create(info=str(number)) for number in range(50)])
    assert len(set(codes)) == 1
    (listed,) = await one.sessions()
    assert listed.session.info == "0"
    await asyncio.gather(*[one.create() for _ in range(10)], one.answer(codes[0]), *[one.create() for _ in range(10)])
    assert (await one.codes(), await one.topics()) == ([], ([], 0))
    assert (await one.read(codes[0], ANSWERER)).description == "answer"


# The sweep.


async def test_a_sweep_goes_in_bounded_steps(store, under, clock):
    """However much has expired, also of one session, a step deletes a bounded number of keys, and in the end all."""
    one = under(store)
    big = await one.create()
    await one.add(big, OFFERER, *map(str, range(3000)))
    await one.answer(big)
    await one.add(big, ANSWERER, *map(str, range(2000)))
    await asyncio.gather(*[one.create(f"topic {number % 7}") for number in range(400)])
    clock.ms += 1
    fresh = await one.create()
    clock.ms += TIMEOUT_MS - 1
    steps = await sweep(store, clock.ms)
    # The answered one had left the listing, and that is forgotten; the others have left it before they are swept.
    assert sum(steps) == 5000 + 4 + 2 + 3 * 400
    assert max(steps) < 2 * store_module.SWEEP_STEP
    assert await one.codes() == [fresh]
    assert len([key for key in store._db.view.iterator(include_value=False) if key[:1] in b"SL"]) == 3
    assert await store.sweep(clock.ms) == 0
    clock.ms += TIMEOUT_MS
    assert sum(await sweep(store, clock.ms)) == 3 + 2 * 400
    clock.ms += TIMEOUT_MS
    assert await sweep(store, clock.ms) == [2]
    assert tables(store) == {b"F", b"I", b"M"}


async def test_a_sweep_takes_nothing_too_early(store, under, clock):
    """A sweep at any time changes nothing that a request could see."""
    one = under(store)
    for number in range(30):
        code = await one.create(f"topic {number % 3}")
        if number % 4 == 0:
            await one.answer(code)
        clock.ms += 70
        before = [await one.sessions(f"topic {each}") for each in range(3)], await one.topics()
        await sweep(store, clock.ms)
        assert ([await one.sessions(f"topic {each}") for each in range(3)], await one.topics()) == before


async def test_a_listing_that_began_before_the_end_of_a_session(store, under, clock):
    """A long listing goes on as of its own time while the sweep takes what it lists, and finds nothing torn."""
    one = under(store)
    big = await one.create(info="big")
    await one.add(big, OFFERER, *map(str, range(5 * store_module.SWEEP_STEP)))
    clock.ms += TIMEOUT_MS - 1
    fresh = [await one.create() for _ in range(records.LISTING_STEP)]
    listing = store.sessions(ORIGIN, "topic", clock.ms)
    seen = await anext(listing)
    clock.ms += 1
    assert await store.sweep(clock.ms) > 0
    seen += [listed async for step in listing for listed in step]
    assert {listed.offer for listed in seen} == {"offer"}
    assert set(fresh) <= {listed.session.code for listed in seen} <= {big, *fresh}
    assert (await one.codes()) == fresh[::-1]


async def test_a_sweep_among_requests(open_store, under, clock):
    """While all kinds of requests go on, and time with them, a sweep without end takes only what has expired."""
    store = open_store(codes="content")
    sweeping = True

    async def sweeper():
        while sweeping:
            await store.sweep(clock.ms)
            await asyncio.sleep(0)

    async def peer(number):
        one = under(store, ORIGIN if number % 2 else OTHER)
        for turn in range(30):
            code = await one.create(f"topic {number % 3}", "info", f"{number} {turn % 5}")
            try:
                await one.add(code, OFFERER, "c")
                if turn % 3 == 0:
                    await one.answer(code)
                clock.ms += 3
                news = await one.read(code, OFFERER)
                assert news.description == f"{number} {turn % 5}"
                assert news.candidates
            except SessionNotFound:
                listed = await one.codes(f"topic {number % 3}")
                assert code not in listed
            await one.topics()

    tasks = [asyncio.create_task(sweeper()) for _ in range(2)]
    await asyncio.gather(*map(peer, range(10)))
    sweeping = False
    await asyncio.gather(*tasks)
    store.check(clock.ms)
    for _ in range(2):  # first all sessions, then that they were there
        clock.ms += TIMEOUT_MS
        await sweep(store, clock.ms)
    assert tables(store) == {b"F", b"I", b"M"}


async def test_a_sweep_finds_what_expires_earlier_than_what_it_swept(open_store, under, clock):
    """Also what comes in before the place that the sweep has come to is swept: a clock put back, a shorter timeout."""
    store = open_store(codes="content")
    one = under(store)
    for number in range(30):
        await one.create(offer=f"swept {number}")
    refreshed = await one.create(offer="refreshed")
    clock.ms += 200
    assert await one.create(offer="refreshed") == refreshed
    clock.ms = BEGIN_MS + TIMEOUT_MS
    assert await sweep(store, clock.ms) != []
    clock.ms = BEGIN_MS - 500
    await one.create(offer="refreshed")  # expires now before what is gone
    for number in range(30):
        await one.create(offer=f"new {number}")  # as early as the sweep was, with smaller and greater codes
    clock.ms = BEGIN_MS + 2 * TIMEOUT_MS
    await sweep(store, clock.ms)
    await store.close()
    store = open_store(codes="content", timeout_ms=TIMEOUT_MS // 2)
    assert not tables(store) & {b"S", b"L"}


async def test_compaction_gives_the_space_back(store, under, clock):
    """What was swept takes no space after a compaction, and requests go on during it."""
    one = under(store)
    await asyncio.gather(*[one.create(offer=os.urandom(4000).hex()) for _ in range(3000)])
    clock.ms += 1
    kept = await one.create()
    full = store.size_bytes()
    clock.ms += TIMEOUT_MS - 1
    await sweep(store, clock.ms)
    compaction = asyncio.create_task(store.compact())
    for number in range(50):
        assert await said(one, kept, OFFERER) == ("offer", ["c"] * number)
        await one.add(kept, OFFERER, "c")
    await compaction
    assert full > 20_000_000
    assert store.size_bytes() < full / 100


# The disk.


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("codes", ["random", "content"])
async def test_everything_is_there_after_a_restart(open_store, under, clock, durability, codes):
    """Closed and opened again, a store answers every question as before, and goes on counting where it was."""
    options = {"durability": durability, "codes": codes}
    store = open_store(**options)

    async def answers():
        one, other = under(store), under(store, OTHER)
        listings = [await each.sessions(topic) for each in (one, other) for topic in AWKWARD]
        reads = [await one.read(code, side) for code in published for side in Side]
        return listings, reads, await one.topics(), await other.topics(), store.created_ms

    published = [await under(store).create(topic, "info", f"offer {topic}") for topic in AWKWARD]
    for number, code in enumerate(published):
        await under(store).add(code, OFFERER, *map(str, range(number)))
        if number % 2:
            await under(store).answer(code)
    await under(store, OTHER).create("a")
    clock.ms += 1
    await under(store).create("a", "later", "later")
    before = await answers()
    await store.close()
    store = open_store(**options)
    assert await answers() == before
    await under(store).add(published[2], OFFERER, "after")
    assert (await under(store).read(published[2], OFFERER)).candidates == [(2, "0"), (3, "1"), (4, "after")]


async def test_what_expired_while_it_was_closed(open_store, under, clock):
    """A store that was closed over the end of its sessions opens with none of them, and sweeps them."""
    store = open_store()
    for number in range(100):
        code = await under(store).create(f"topic {number % 3}")
        if number % 2:
            await under(store).answer(code)
    await store.close()
    clock.ms += TIMEOUT_MS
    store = open_store()
    assert await under(store).topics() == ([], 0)
    assert await gone(*everything(under(store), code))
    assert sum(await sweep(store, clock.ms)) == 50 * 3 + 50 * 6


async def test_another_timeout_after_a_restart(open_store, under, clock):
    """A session keeps the timeout that it was made with, also when it is refreshed; new ones have the new one."""
    store = open_store(codes="content")
    old = await under(store).create(offer="old")
    await store.close()
    store = open_store(codes="content", timeout_ms=TIMEOUT_MS // 4)
    clock.ms += 100
    new = await under(store).create(offer="new")
    assert await under(store).create(offer="old") == old
    expiries = {listed.session.code: listed.session.expires_ms for listed in await under(store).sessions()}
    assert expiries == {old: clock.ms + TIMEOUT_MS, new: clock.ms + TIMEOUT_MS // 4}
    clock.ms += TIMEOUT_MS // 4
    assert await under(store).codes() == [old]


async def test_after_the_closing_everything_is_unavailable(open_store, under):
    """A closed store refuses every operation in the same words, and can be closed again."""
    store = open_store()
    one = under(store)
    code = await one.create()
    await asyncio.gather(store.close(), store.close())
    operations = [one.create(), *everything(one, code), one.sessions(), one.topics(), store.sweep(0), store.probe()]
    results = await asyncio.gather(*operations, return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    await store.close()


async def test_what_was_asked_for_before_the_closing_is_done(open_store, under):
    """Changes on their way when the store is closed are committed, or refused; none is acknowledged and lost."""
    store = open_store()
    one = under(store)
    code = await one.create()
    changes = [asyncio.create_task(one.add(code, OFFERER, str(number))) for number in range(10)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(one.answer(code))  # for its turn, which comes after the closing
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*changes)
    result = (await asyncio.gather(waiting, return_exceptions=True))[0]
    again = under(open_store())
    assert await said(again, code, OFFERER) == ("offer", [str(number) for number in range(10)])
    assert ((await again.read(code, ANSWERER)).description == "answer") == (result is None)
    assert result is None or type(result) is Unavailable


async def test_probing_changes_nothing(store, under):
    """The readiness probe writes and reads, and no request sees a difference."""
    one = under(store)
    code = await one.create()
    before = list(store._db.view.iterator())
    await store.probe()
    assert list(store._db.view.iterator()) == before
    assert await one.codes() == [code]


async def test_a_directory_that_cannot_be_used(open_store, tmp_path):
    """A store says like its database why it does not open."""
    (tmp_path / "data").write_text("a file")
    path = tmp_path / "data"
    with pytest.raises(DatabaseError, match=str(path)):
        store_module.Store(path, timeout_ms=TIMEOUT_MS)


# Damage: whatever has become of a directory, it is refused, or nothing is missing.


def turn_around(file, start):
    """Turn eight bytes of a file around."""
    data = bytearray(file.read_bytes())
    data[start : start + 8] = bytes(byte ^ 0xFF for byte in data[start : start + 8])
    file.write_bytes(data)


async def fill(store, count):
    """Sessions of all kinds, in tables."""
    one = Under(store, HandClock(), ORIGIN)
    codes = await asyncio.gather(*[one.create(f"topic {number % 7}", offer=f"{number}") for number in range(count)])
    await asyncio.gather(*[one.add(code, OFFERER, "a", "b") for code in codes])
    await asyncio.gather(*[one.answer(code) for code in codes[::3]])
    await store.compact()
    await one.create("in no table")


@pytest.mark.parametrize("count", [1, 20, 2000])
async def test_damage_of_a_table_is_noticed(io_loop, tmp_path, count):
    """Wherever eight bytes of a table are wrong, the store does not open, and says why; or it holds all it held."""
    options = {"timeout_ms": TIMEOUT_MS, "durability": "os"}
    store = store_module.Store(tmp_path / "sound", **options)
    await fill(store, count)
    held = list(store._db.view.iterator())
    await store.close()
    (table,) = (tmp_path / "sound").glob("*.ldb")
    size = table.stat().st_size
    refusals = []
    for start in (*range(0, size - 56, size // 60), *range(size - 56, size)):  # the footer byte by byte
        path = tmp_path / str(start)
        shutil.copytree(tmp_path / "sound", path)
        turn_around(path / table.name, start)
        try:
            store = store_module.Store(path, **options)
        except DatabaseError as error:
            refusals.append((str(path), str(error)))
        else:
            assert list(store._db.view.iterator()) == held
            await store.close()
    assert len(refusals) > 30
    for path, said in refusals:
        assert (path in said, "\n" in said, "'" in said) == (True, False, False)
        assert f"{path} is damaged (" in said or f"{table.name}: Invalid argument" in said


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("compacted", [False, True])
async def test_a_directory_without_its_current_file(io_loop, tmp_path, count, compacted):
    """Where the file is missing that names all others, LevelDB would begin anew and delete them; that is refused."""
    path = tmp_path / "data"
    store = store_module.Store(path, timeout_ms=TIMEOUT_MS)
    one = Under(store, HandClock(), ORIGIN)
    await asyncio.gather(*[one.create() for _ in range(count)])
    if compacted:
        await store.compact()
    await store.close()
    current = (path / "CURRENT").read_bytes()
    (path / "CURRENT").unlink()
    with pytest.raises(
        DatabaseError, match=r"is damaged \(there are tables or logs, but no CURRENT\); .*tornado-signal repair"
    ):
        store_module.Store(path, timeout_ms=TIMEOUT_MS)
    (path / "CURRENT").write_bytes(current)
    store = store_module.Store(path, timeout_ms=TIMEOUT_MS)
    assert len(await Under(store, HandClock(), ORIGIN).codes()) == count
    await store.close()


@pytest.mark.parametrize("listed", [0, 1, 3, 2**40])
async def test_listings_that_are_not_as_long_as_they_were(io_loop, tmp_path, listed):
    """A store that does not list as many sessions as it did when it was closed is refused, with both numbers."""
    path = tmp_path / "data"
    store = store_module.Store(path, timeout_ms=TIMEOUT_MS)
    one = Under(store, HandClock(), ORIGIN)
    codes = [await one.create() for _ in range(3)]
    await one.answer(codes[1])
    await store.close()
    with plyvel.DB(str(path)) as db:
        change_mark(db, listed=listed)
    with pytest.raises(DatabaseError, match=rf"damaged \(2 sessions are listed, there should be {listed}\); stop"):
        store_module.Store(path, timeout_ms=TIMEOUT_MS)


# That a check finds what it is there to find.


def change_mark(db, **fields):
    db.put(layout.MARK_KEY, layout.pack_mark(layout.unpack_mark(db.get(layout.MARK_KEY))._replace(**fields)))


def harm_listing(db, key, session):
    db.delete(layout.pack_listing_key(ORIGIN, session))
    change_mark(db, listed=1)


def harm_head(db, key, session):
    db.delete(key + layout.HEAD)


def harm_offer(db, key, session):
    db.delete(key + layout.OFFER)


def harm_answer(db, key, session):
    db.put(key + layout.ANSWER, layout.pack_answer(Answer("not by the rules", 1)))


def harm_expiry(db, key, session):
    db.delete(layout.pack_expiry_key(session.expires_ms, key))


def harm_another_expiry(db, key, session):
    db.put(layout.pack_expiry_key(5, key), b"")


def harm_another_listing(db, key, session):
    db.put(layout.pack_listing_prefix(ORIGIN, "elsewhere") + bytes(16), layout.pack_listing_value(session))
    change_mark(db, listed=3)


def harm_mark(db, key, session):
    change_mark(db, created_ms=session.created_ms - 1)


def harm_serial(db, key, session):
    change_mark(db, serial=0)


def harm_candidate(db, key, session):
    db.put(key + layout.ANSWER_CANDIDATE + layout.pack_number(1), b"the same number")
    harm_answer(db, key, session)
    db.delete(layout.pack_listing_key(ORIGIN, session))
    change_mark(db, listed=1)


def harm_leaver(db, key, session):
    db.put(layout.pack_gone_prefix(ORIGIN, "topic", expired=False) + layout.pack_number(1), bytes(24) + b"\x01")


def harm_forgetting(db, key, session):
    db.put(
        layout.pack_expiry_key(5, layout.pack_gone_prefix(ORIGIN, "topic", expired=False) + layout.pack_number(1)), b""
    )


def harm_order_of_leaving(db, key, session):
    gone = layout.pack_gone_prefix(ORIGIN, "topic", expired=False) + layout.pack_number(session.serial - 1)
    db.put(gone, layout.pack_gone_value(session, Reason.ANSWERED))
    db.put(layout.pack_expiry_key(2**60, gone), b"")


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (harm_listing, "must be either listed or answered"),
        (harm_head, "has no session like it"),
        (harm_head, "has parts but no head"),
        (harm_offer, "has no offer"),
        (harm_answer, "must be either listed or answered"),
        (harm_expiry, "the order of expiry is not that of the sessions"),
        (harm_another_expiry, "the order of expiry is not that of the sessions"),
        (harm_another_listing, "is listed twice"),
        (harm_mark, "a session is newer than the mark"),
        (harm_serial, "serials are not distinct or are beyond the mark"),
        (harm_candidate, "has two parts with number 1"),
        (harm_leaver, "not every leaver will be forgotten once"),
        (harm_forgetting, "not every leaver will be forgotten once"),
        (harm_order_of_leaving, "left before it came"),
    ],
)
async def test_a_check_finds_what_does_not_agree(io_loop, tmp_path, clock, under, harm, found):
    """Each kind of disagreement between the tables fails the check by its name; a sound store passes it."""
    store = store_module.Store(tmp_path / "data", timeout_ms=TIMEOUT_MS)
    await under(store).create("another")
    code = await under(store).create()
    store.check(clock.ms)
    (listed,) = await under(store).sessions()
    await store.close()
    with plyvel.DB(str(tmp_path / "data")) as db:
        harm(db, layout.pack_session_prefix(ORIGIN, code), listed.session)
    store = store_module.Store(tmp_path / "data", timeout_ms=TIMEOUT_MS)
    with pytest.raises(AssertionError, match=found):
        store.check(clock.ms)
    await store.close()


async def test_a_check_finds_counts_that_are_off(io_loop, tmp_path, clock, under):
    """A count in memory that the listing does not bear out fails the check."""
    store = store_module.Store(tmp_path / "data", timeout_ms=TIMEOUT_MS)
    await under(store).create()
    store._index.add(ORIGIN, "topic", clock.ms + 1)
    with pytest.raises(AssertionError, match="counts of"):
        store.check(clock.ms)
    await store.close()
