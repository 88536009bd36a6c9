"""All operations of every store: exact times, concurrency and restarts."""

import asyncio
import itertools
import uuid
from contextlib import suppress

import pytest
from support.stores import TIMEOUT_MS, covers, on_every_engine

from tornado_signal.errors import AlreadyAnswered, SessionNotFound, Unavailable
from tornado_signal.session import Side, TopicRange

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
    news = await one.read(code, side)
    return news.description, [text for _, text in news.candidates]


async def test_origin_reaches_only_its_own_sessions(store, under):
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
async def test_unknown_codes_are_not_found_and_store_nothing(opened, codes, engine):
    store, one = await opened(codes=codes)
    assert await gone(*everything(one, uuid.uuid4().bytes), *everything(one, bytes(16)), *everything(one, b"\xff" * 16))
    assert await one.sessions("nowhere") == []
    await engine.holds_nothing(store)


async def test_topic_of_a_session_is_found_by_its_code(store, one, clock):
    topics = [topic for topic in AWKWARD if topic]
    codes = {await one.create(topic, offer=topic): topic for topic in topics}
    for code, topic in codes.items():
        assert await store.find_topic(one.origin, code) == topic
        assert await gone(store.find_topic(OTHER, code))
    answered, withdrawn, *_ = codes
    await one.answer(answered)
    assert await store.find_topic(one.origin, answered) == codes[answered]
    await one.withdraw(withdrawn)
    assert await gone(store.find_topic(one.origin, withdrawn), store.find_topic(one.origin, b"x" * 16))
    clock.ms += TIMEOUT_MS
    assert await gone(*(store.find_topic(one.origin, code) for code in codes))


async def test_pages_of_topics_are_alphabetical(one):
    names = ["é", "e\u0301", "z", "Z", "a", "aa", "\uffff", "\U0001f600", "10", "9", "\x00"]
    for number, name in enumerate(names):
        await asyncio.gather(*[one.create(name) for _ in range(number + 1)])
    expected = [(name, names.index(name) + 1) for name in sorted(names)]
    single = [TopicRange(name, False) for name in sorted(["missing", "\ud83d", *names[::2]])]
    prefixes = [TopicRange(name, True) for name in ("", "a", "e", "é", "\ud83d", "\U0001f600")]
    for limit, offset in itertools.product((1, 3, 100), (0, 1, 9, 10, 11, 2**53 * 1000)):
        assert await one.topics(offset, limit) == (expected[offset : offset + limit], len(names))
        for ranges in (single, prefixes[:1], prefixes[1:], single[:3] + prefixes[3:]):
            covered = [each for each in expected if covers(ranges, each[0])]
            assert await one.topics(offset, limit, ranges) == (covered[offset : offset + limit], len(covered))


async def test_concurrent_changes_do_not_tear_a_listing(store, one):
    codes = [await one.create(info=str(number)) for number in range(150)]
    seen = []
    async for step in store.sessions(ORIGIN, "topic"):
        seen += [listed.session.code for listed in step]
        await one.create()
        for code in codes[::7]:
            with suppress(AlreadyAnswered):
                await one.answer(code, str(len(seen)))
    assert len(seen) == len(set(seen))
    assert set(codes) - set(codes[::7]) <= set(seen) <= set(codes)


@on_every_engine
async def test_one_of_two_simultaneous_answers_is_accepted(one, engine):
    code = await one.create()
    before = asyncio.create_task(one.add(code, OFFERER, "c"))
    await asyncio.sleep(0)
    answers = ["a", "b", "a", "c"] * 5
    results = await asyncio.gather(*[one.answer(code, answer) for answer in answers], return_exceptions=True)
    await before
    winner = (await one.read(code, ANSWERER)).description
    assert winner == "a" or not engine.in_order
    assert [type(result) for result in results] == [
        type(None) if each == winner else AlreadyAnswered for each in answers
    ]


@on_every_engine
async def test_simultaneous_candidates_are_all_stored(one, engine):
    code = await one.create()
    sides = {OFFERER: [f"o{number}" for number in range(300)], ANSWERER: [f"a{number}" for number in range(300)]}
    pairs = zip(*sides.values(), strict=True)
    changes = [one.add(code, side, text) for pair in pairs for side, text in zip(sides, pair, strict=True)]
    changes.insert(100, one.answer(code))
    await asyncio.gather(*changes)
    kept = [await said(one, code, side) for side in sides]
    if not engine.in_order:
        kept = [(description, sorted(texts, key=lambda text: int(text[1:]))) for description, texts in kept]
    assert kept == [("offer", sides[OFFERER]), ("answer", sides[ANSWERER])]
    news = await one.read(code, ANSWERER)
    assert sorted([news.description_number, *(number for number, _ in news.candidates)]) == list(range(1, 302))


async def test_same_content_is_one_session(open_store, under, engine):
    store = await open_store(codes="content")
    one, other = under(store), under(store, OTHER)
    code = await one.create("topic", "first", "offer")
    assert code == engine.code(ORIGIN, "topic", "offer") == await one.create("topic", "second", "offer")
    (listed,) = await one.sessions()
    assert listed.session.info == "first"
    assert await one.topics() == ([("topic", 1)], 1)
    others = [await one.create("topic", "first", "offer2"), await one.create("topic2", "first", "offer")]
    others.append(await other.create("topic", "first", "offer"))
    others.append(await one.create("topico", "first", "ffer"))
    assert len({code, *others}) == 5
    assert {uuid.UUID(bytes=each).version for each in (code, *others)} == {8}


@on_every_engine
async def test_content_published_simultaneously_is_one_session(opened, engine):
    _, one = await opened(codes="content")
    codes = await asyncio.gather(*[one.create(info=str(number)) for number in range(50)])
    assert len(set(codes)) == 1
    (listed,) = await one.sessions()
    assert listed.session.info == "0" or not engine.in_order
    await asyncio.gather(*[one.create() for _ in range(10)], one.answer(codes[0]), *[one.create() for _ in range(10)])
    assert (await one.codes(), await one.topics()) == ([], ([], 0))
    assert (await one.read(codes[0], ANSWERER)).description == "answer"


async def test_secret_of_a_store_lasts(open_store, restarted):
    store = await open_store()
    secret = store.secret
    store, _ = await restarted(store)
    assert store.secret == secret
    assert len(secret) == 32


async def test_closed_store_is_unavailable(opened):
    store, one = await opened()
    code = await one.create()
    await asyncio.gather(store.close(), store.close())
    operations = [one.create(), *everything(one, code), one.sessions(), one.topics(), store.probe()]
    results = await asyncio.gather(*operations, return_exceptions=True)
    assert {type(result) for result in results} == {Unavailable}
    await store.close()


@on_every_engine
async def test_changes_before_the_closing_are_committed_or_refused(opened, open_store, under, engine):
    store, one = await opened()
    code = await one.create()
    changes = [asyncio.create_task(one.add(code, OFFERER, str(number))) for number in range(10)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(one.answer(code))  # for its turn, which comes after the closing
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*changes)
    result = (await asyncio.gather(waiting, return_exceptions=True))[0]
    again = under(await open_store())
    _, kept = await said(again, code, OFFERER)
    assert (kept if engine.in_order else sorted(kept)) == [str(number) for number in range(10)]
    assert ((await again.read(code, ANSWERER)).description == "answer") == (result is None)
    assert result is None or type(result) is Unavailable
