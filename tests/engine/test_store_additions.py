"""What the store adds for contract C: numbers to read on from, events, ownership, leaving and staying."""

import asyncio
from itertools import pairwise

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS, sweep

from tornado_signal.errors import AlreadyAnswered, SessionNotFound, TooMany
from tornado_signal.session import News, Reason, Side, TopicPosition, hash_secret
from tornado_signal.stores.leveldb import records
from tornado_signal.stores.quotas import Quotas

ORIGIN, OTHER = "https://one.example", "https://two.example"
OFFERER, ANSWERER = Side.OFFERER, Side.ANSWERER
MINE, THEIRS = hash_secret("a secret of mine"), hash_secret("a secret of theirs")


async def refused(*operations):
    """Whether all of these end as what does not exist does."""
    results = await asyncio.gather(*operations, return_exceptions=True)
    return {type(result) for result in results} == {SessionNotFound}


# Numbers to read on from (C1).


@pytest.mark.parametrize("answered_after", [0, 1, 3])
@pytest.mark.parametrize("reopened", [False, True])
async def test_reading_on_from_every_number(open_store, under, answered_after, reopened):
    """From each number on: the candidates after it, in order, and always the answer; a restart changes nothing."""
    store = open_store()
    one = under(store)
    code = await one.create()
    texts = ["a", "b", "c"]
    for text in texts[:answered_after]:
        await one.add(code, ANSWERER, text)
    await one.answer(code)
    if reopened:
        await store.close()
        store = open_store()
        one = under(store)
    await one.add(code, ANSWERER, *texts[answered_after:])
    numbered = [(at + 1 + (at >= answered_after), text) for at, text in enumerate(texts)]
    for since in range(7):
        later = [(number, text) for number, text in numbered if number > since]
        expected = News("answer", answered_after + 1, later, BEGIN_MS + TIMEOUT_MS, serial=1)
        assert await one.read(code, ANSWERER, since=since) == expected
    assert (await one.read(code, ANSWERER)).last == 4


async def test_nobody_misses_what_is_sent_while_they_read(store, under):
    """Whoever always reads on from the last number gets each thing once, in order, while both sides send at once."""
    one = under(store)
    code = await one.create()
    texts = [str(number) for number in range(200)]
    sending = asyncio.gather(*[one.add(code, ANSWERER, text) for text in texts], one.answer(code))
    since, got, numbers = 0, [], []
    while len(got) < len(texts) or not sending.done():
        news = await one.read(code, ANSWERER, since=since)
        got += [text for _, text in news.candidates]
        numbers += [number for number, _ in news.candidates]
        since = max(since, news.last)
        await asyncio.sleep(0)
    assert got == texts
    assert numbers == sorted(set(numbers))
    assert since == len(texts) + 1


async def test_candidates_are_all_or_none(store, under):
    """Of a batch either everything is read or nothing."""
    one = under(store)
    code = await one.create()
    batches = [[f"{batch}.{number}" for number in range(100)] for batch in range(5)]
    sending = asyncio.gather(*[one.add(code, ANSWERER, *batch) for batch in batches])
    while not sending.done():
        assert len((await one.read(code, ANSWERER)).candidates) % 100 == 0
        await asyncio.sleep(0)
    assert [text for _, text in (await one.read(code, ANSWERER)).candidates] == [
        text for batch in batches for text in batch
    ]


# Ownership (C5).


def as_offerer(one, code, secret_hash):
    """Everything that is done as the offerer."""
    yield one.add(code, OFFERER, "c", secret_hash=secret_hash)
    yield one.read(code, ANSWERER, secret_hash=secret_hash)
    yield one.refresh(code, OFFERER, secret_hash=secret_hash)
    yield one.withdraw(code, OFFERER, secret_hash=secret_hash)


def as_answerer(one, code, secret_hash):
    """Everything that is done as the answerer."""
    yield one.add(code, ANSWERER, "c", secret_hash=secret_hash)
    yield one.answer(code, secret_hash=secret_hash)
    yield one.read(code, OFFERER, secret_hash=secret_hash)
    yield one.refresh(code, ANSWERER, secret_hash=secret_hash)
    yield one.withdraw(code, ANSWERER, secret_hash=secret_hash)


@pytest.mark.parametrize("wrong", [b"", THEIRS, MINE[:-1], MINE + b"\x00"])
@pytest.mark.parametrize("reopened", [False, True])
async def test_a_side_with_a_secret_must_show_it(open_store, under, wrong, reopened):
    """Whatever is done without the right secret ends like what does not exist, and changes nothing."""
    store = open_store()
    one = under(store)
    code = await one.create(secret_hash=MINE)
    await one.answer(code, secret_hash=THEIRS)
    if reopened:
        await store.close()
        store = open_store()
        one = under(store)
    before = list(store._db.view.iterator())
    assert await refused(*as_offerer(one, code, wrong))
    if wrong != THEIRS:
        assert await refused(*as_answerer(one, code, wrong))
    assert await refused(*as_answerer(one, code, MINE))
    assert list(store._db.view.iterator()) == before
    *answering, leaving = as_answerer(one, code, THEIRS)
    for operation in (*answering, *as_offerer(one, code, MINE)):
        await operation
    assert await refused(leaving)  # it could have, but the offerer has withdrawn it already


async def test_a_side_without_a_secret_is_free(store, under):
    """Who showed no secret at first may show any later; none of them counts from then on."""
    one = under(store)
    code = await one.create()
    await one.add(code, OFFERER, "c", secret_hash=MINE)
    await one.add(code, ANSWERER, "c", secret_hash=MINE)  # before its answer: nothing is kept
    await one.answer(code)
    for secret_hash in (b"", THEIRS, MINE):
        await one.add(code, ANSWERER, "c", secret_hash=secret_hash)
        await one.answer(code, secret_hash=secret_hash)
        await one.read(code, ANSWERER, secret_hash=secret_hash)
        await one.refresh(code, OFFERER, secret_hash=secret_hash)


async def test_who_answers_first_owns_the_answer(store, under):
    """Of two answers with different secrets the first stands; its retry needs its secret, another answer too."""
    one = under(store)
    code = await one.create()
    await one.answer(code, "mine", secret_hash=MINE)
    await one.answer(code, "mine", secret_hash=MINE)
    with pytest.raises(AlreadyAnswered):
        await one.answer(code, "other", secret_hash=MINE)
    assert await refused(one.answer(code, "mine"), one.answer(code, "theirs", secret_hash=THEIRS))
    assert (await one.read(code, ANSWERER)).description == "mine"


@pytest.mark.parametrize("answered", [False, True])
async def test_content_with_a_secret(open_store, under, clock, answered):
    """The same content is refreshed only by who owns it; when it has expired it is anybody's (B16, C5)."""
    one = under(open_store(codes="content"))
    code = await one.create(secret_hash=MINE)
    if answered:
        await one.answer(code)
    clock.ms += TIMEOUT_MS - 1
    assert await refused(one.create(), one.create(secret_hash=THEIRS))
    assert await one.create(secret_hash=MINE) == code
    clock.ms += TIMEOUT_MS
    assert await one.create(secret_hash=THEIRS) == code
    assert await refused(one.refresh(code, secret_hash=MINE))


# Leaving and staying (C6).


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("answered", [False, True])
async def test_a_session_is_withdrawn(store, under, side, answered):
    """Either side ends it at once, in every respect; nothing of it stays but that it left."""
    one = under(store)
    code, other = await one.create(), await one.create()
    await one.add(code, OFFERER, *map(str, range(500)))
    if answered:
        await one.answer(code)
    assert await refused(under(store, OTHER).withdraw(code, side))
    await one.withdraw(code, side)
    assert await refused(one.withdraw(code, side), one.refresh(code), one.read(code, OFFERER), one.answer(code))
    assert (await one.codes(), await one.topics()) == ([other], ([("topic", 1)], 1))
    reason = Reason.ANSWERED if answered else Reason.WITHDRAWN
    assert await one.events(at(2)) == [(TopicPosition(3, 2), code, reason)]


async def test_a_withdrawal_among_others(store, under):
    """Of answers, candidates and withdrawals at one moment each succeeds or finds nothing, and it is gone."""
    one = under(store)
    for number in range(10):
        code = await one.create()
        operations = [one.add(code, OFFERER, "c"), one.answer(code), one.add(code, ANSWERER, "c"), one.refresh(code)]
        operations.insert(number % 5, one.withdraw(code))
        operations.append(one.withdraw(code, ANSWERER))
        results = await asyncio.gather(*operations, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), int, SessionNotFound}
        assert await refused(one.read(code, OFFERER))
    assert (await one.codes(), await one.topics()) == ([], ([], 0))


async def test_withdrawn_content_begins_anew(open_store, under):
    """The same content published after a withdrawal is a new session, listed again, without its old candidates."""
    one = under(open_store(codes="content"))
    code = await one.create(info="first")
    await one.add(code, OFFERER, "c")
    await one.withdraw(code)
    assert await one.create(info="second") == code
    (listed,) = await one.sessions()
    assert (listed.session.info, listed.candidates) == ("second", [])


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("passed_ms", [0, 1, TIMEOUT_MS - 1])
async def test_a_session_is_refreshed(store, under, clock, side, answered, passed_ms):
    """It lives its timeout from now on, listed where it was, counted once, and swept in time."""
    one = under(store)
    code = await one.create()
    other = await one.create()
    if answered:
        await one.answer(code)
    clock.ms += passed_ms
    assert await one.refresh(code, side) == clock.ms + TIMEOUT_MS
    assert await one.codes() == ([other] if answered else [other, code])
    clock.ms += TIMEOUT_MS - 1
    await sweep(store, clock.ms)
    assert (await one.read(code, OFFERER)).expires_ms == clock.ms + 1
    live = [other] * (passed_ms == 0) + [code] * (not answered)
    assert await one.codes() == live
    clock.ms += 1
    assert await refused(one.read(code, OFFERER), one.refresh(code))
    assert (await one.codes(), await one.topics()) == ([], ([], 0))


async def test_an_expired_session_is_not_refreshed(store, under, clock):
    """At its expiry it is too late, swept or not."""
    one = under(store)
    code = await one.create()
    clock.ms += TIMEOUT_MS
    assert await refused(one.refresh(code), one.refresh(code, ANSWERER), one.withdraw(code))
    await sweep(store, clock.ms)
    assert await refused(one.refresh(code), one.refresh(code, ANSWERER), one.withdraw(code))


@pytest.mark.parametrize("codes", ["random", "content"])
async def test_a_lifetime_of_its_own(open_store, under, clock, codes):
    """An offer lives as long as it asked for, also from each refresh on; the others as long as configured."""
    store = open_store(codes=codes)
    one = under(store)
    usual, short = await one.create(offer="usual"), await one.create(offer="short", ttl_ms=10)
    clock.ms += 9
    assert await one.refresh(short) == clock.ms + 10
    clock.ms += 9
    assert await one.codes() == [short, usual]
    if codes == "content":
        assert await one.create(offer="short", ttl_ms=500) == short  # keeps the lifetime it was made with
        clock.ms += 9
        assert await one.codes() == [short, usual]
    clock.ms += 1
    assert await one.codes() == [usual]
    assert await refused(one.read(short, OFFERER))


# What has happened to a listing (C2, C3).


def at(serial):
    """The position of a reader that knows all up to a serial."""
    return TopicPosition(serial, serial)


async def test_the_events_of_a_topic(store, under, clock):
    """What has left and why, then what has come; not what did both since, nor what has come and has expired."""
    one = under(store)
    codes = [await one.create() for _ in range(4)]
    begun = await one.events(await one.begin())
    assert begun == [(TopicPosition(4, number), code, None) for number, code in enumerate(codes, 1)]
    await one.answer(codes[1])
    await one.withdraw(codes[2])
    answered, withdrawn = (codes[1], Reason.ANSWERED), (codes[2], Reason.WITHDRAWN)
    there = [(codes[0], None), (codes[3], None)]
    assert await one.news(await one.begin()) == there
    assert await one.news(at(1)) == there[1:]
    assert await one.events(at(2)) == [(TopicPosition(5, 2), *answered), (TopicPosition(6, 4), *there[1])]
    assert await one.news(at(4)) == [answered, withdrawn]
    assert await one.news(at(5)) == [withdrawn]
    assert await one.news(at(6)) == []
    clock.ms += TIMEOUT_MS
    expired = await one.events(at(6))
    assert {event[1:] for event in expired} == {(codes[n], Reason.EXPIRED) for n in (0, 3)}
    assert [position for position, *_ in expired] == [TopicPosition(7, 6), TopicPosition(8, 6)]
    assert await one.news(await one.begin()) == []
    assert await one.news(at(1)) == [event[1:] for event in expired if event[1] == codes[0]]
    assert await one.news(at(7)) == [expired[1][1:]]


async def test_what_was_never_announced_does_not_leave(store, under, clock):
    """A reader is told that a session has gone if it has been told of it, wherever it was cut off in the listing."""
    one = under(store)
    codes = [await one.create() for _ in range(6)]
    await one.answer(codes[0])  # before the reader begins
    told = await one.events(await one.begin())
    assert [code for _, code, _ in told] == codes[1:]
    for code in codes[1::2]:
        await one.withdraw(code)
    for cut in range(6):
        position = told[cut - 1][0] if cut else await one.begin()
        known = {code for _, code, _ in told[:cut]}
        for _, code, reason in await one.events(position):
            assert (code in known) == (reason is not None)
            known ^= {code}
        assert known == set(codes[2::2])


async def test_what_has_expired_leaves_before_anything_is_told(store, under, clock):
    """A reader that begins after the end of a session, swept or not, is told nothing of it."""
    one = under(store)
    await one.create()
    clock.ms += TIMEOUT_MS
    position = await one.begin()
    await sweep(store, clock.ms)
    assert await one.news(position) == []


async def test_a_refresh_that_crosses_the_old_expiry(store, under, clock):
    """A reader that begins between the old expiry and the end of the refresh is told of the session."""
    one = under(store)
    code = await one.create()
    clock.ms += TIMEOUT_MS - 1
    refreshing = asyncio.create_task(one.refresh(code))
    await asyncio.sleep(0)
    clock.ms += 1
    assert await one.news(await one.begin()) == [(code, None)]
    await refreshing


async def test_the_events_of_other_topics_and_origins(store, under):
    """Nothing of another topic or origin is told, also if its name begins or is begun."""
    names = ["", "a", "a\x00", "a\x00\xff", "ab", "b"]
    under_origins = [under(store, origin) for origin in (ORIGIN, OTHER, ORIGIN + "\x00")]
    expected = {}
    for one in under_origins:
        for name in names:
            code, leaver = await one.create(name), await one.create(name)
            position = await one.begin()
            await one.answer(leaver)
            expected[one.origin, name] = [code, leaver, TopicPosition(position.serial, position.serial)]
    for one in under_origins:
        for name in names:
            code, leaver, position = expected[one.origin, name]
            assert await one.news(await one.begin(), name) == [(code, None)]
            assert await one.news(position, name) == [(leaver, Reason.ANSWERED)]


@pytest.mark.parametrize("swept", [False, True])
async def test_content_that_begins_anew_leaves_before_it_comes(open_store, under, clock, swept):
    """A reader of the events keeps the new session: it comes after the old one with its code has gone."""
    store = open_store(codes="content")
    one = under(store)
    code = await one.create()
    clock.ms += TIMEOUT_MS
    if swept:
        await sweep(store, clock.ms)
    assert await one.create() == code
    assert await one.news(at(1)) == [(code, Reason.EXPIRED), (code, None)]


async def test_departures_are_forgotten_in_time(store, under, clock):
    """What has left is told for as long as a session lives, then forgotten, and the serials go on."""
    one = under(store)
    code = await one.create()
    await one.answer(code)
    await one.withdraw(code)
    clock.ms += TIMEOUT_MS - 1
    await sweep(store, clock.ms)
    assert await one.news(at(1)) == [(code, Reason.ANSWERED)]
    clock.ms += 1
    await sweep(store, clock.ms)
    assert await one.news(at(1)) == []
    serial = (await one.begin()).serial
    await one.create()
    assert (await one.begin()).serial == serial + 1


async def test_events_survive_a_restart(open_store, under):
    """From every serial on the same is told after a restart, and nothing new takes an old serial."""
    store = open_store()
    one = under(store)
    codes = [await one.create() for _ in range(5)]
    await one.answer(codes[0])
    await one.withdraw(codes[4])
    before = [await one.events(at(since)) for since in range(8)]
    identity = store.identity
    await store.close()
    store = open_store()
    one = under(store)
    assert store.identity == identity
    assert [await one.events(at(since)) for since in range(8)] == before
    new = await one.create()
    assert await one.events(at(7)) == [(TopicPosition(8, 8), new, None)]
    assert store.knows(at(8))
    assert not store.knows(at(9))
    assert not store.knows(TopicPosition(3, 4))


async def test_a_long_absence_is_told_in_steps(store, under, clock, monkeypatch):
    """However much has happened, others get their turn while it is read, and all of it comes, in order, once."""
    one = under(store)
    codes = [await one.create() for _ in range(60)]
    for code in codes[:20]:
        await one.answer(code)
    for code in codes[20:30]:
        await one.withdraw(code)
    codes += [await one.create() for _ in range(30)]
    clock.ms += 1
    whole = await one.news(at(60))
    assert [code for code, _ in whole] == codes[:30] + codes[60:]
    monkeypatch.setattr(records, "DEPARTURES_STEP", 7)
    monkeypatch.setattr(records, "LISTING_STEP", 7)
    monkeypatch.setattr(records, "PASSING_STEP", 7)
    position, found, steps, more = at(60), [], 0, True
    while more:
        step = await store.topic_step(ORIGIN, "topic", position, clock.ms)
        found += [(each.code, each.reason) for each in step.left]
        found += [(listed.session.code, None) for listed in step.arrived]
        position, more, steps = step.position, step.more, steps + 1
    assert found == whole
    assert steps >= 60 // 7


async def test_a_step_ends_at_so_many_bytes(store, under, clock, monkeypatch):
    """A step of a listing, in either direction, ends once it holds a quarter of a megabyte, with candidates."""
    one = under(store)
    for _ in range(12):
        code = await one.create(offer="o" * 50_000)
        await one.add(code, OFFERER, "c" * 50_000)
    newest_first = [len(step) async for step in store.sessions(ORIGIN, "topic", clock.ms)]
    assert newest_first == [3, 3, 3, 3]
    position, oldest_first, more = await one.begin(), [], True
    while more:
        step = await store.topic_step(ORIGIN, "topic", position, clock.ms)
        position, more = step.position, step.more
        oldest_first.append(len(step.arrived))
    assert [count for count in oldest_first if count] == [3, 3, 3, 3]


async def test_what_a_side_may_hold(open_store, under):
    """Candidates are refused beyond so many bytes of a side, its description counted; also after a restart."""
    store = open_store(quotas=Quotas(side_bytes=1000))
    one = under(store)
    code = await one.create(offer="o" * 600)
    await one.add(code, OFFERER, "c" * 200, "é" * 50)
    await store.close()
    store = open_store(quotas=Quotas(side_bytes=1000))
    one = under(store)
    await one.add(code, OFFERER, "c" * 99)
    with pytest.raises(TooMany) as refused:
        await one.add(code, OFFERER, "cc")
    assert refused.value.reason == "bytes of a session"
    await one.add(code, OFFERER, "c")
    await one.add(code, ANSWERER, "c" * 1000)
    await one.answer(code, "a" * 1000)  # an answer is never refused for what came before it
    with pytest.raises(TooMany):
        await one.add(code, ANSWERER, "c")


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
async def test_a_listing_with_a_limit(store, under, clock, monkeypatch, limit):
    """The newest so many of those that are live, however many steps that takes."""
    monkeypatch.setattr(records, "LISTING_STEP", 3)
    monkeypatch.setattr(records, "PASSING_STEP", 2)
    one = under(store)
    old = [await one.create() for _ in range(4)]
    clock.ms += 500
    codes = [await one.create(ttl_ms=100 if number % 3 == 0 else None) for number in range(9)]
    clock.ms += 400
    live = [code for number, code in enumerate(codes) if number % 3][::-1] + old[::-1]
    assert [each.session.code for each in await one.sessions(limit=limit)] == live[:limit]


async def test_a_state_tells_listings_apart(store, under, clock):
    """Each change of who is listed is another state, and nothing else is (C2)."""
    one = under(store)
    states = [await one.state("elsewhere")]

    async def changed():
        states.append(await one.state())
        return states[-1][:2] != states[-2][:2] and states[-1].serial >= states[-2].serial

    async def same():
        return not await changed()

    codes = []
    for _ in range(3):
        codes.append(await one.create())
        assert await changed()
        clock.ms += 10
    await one.add(codes[0], OFFERER, "c")
    await one.refresh(codes[2])
    await one.create("elsewhere")
    await under(store, OTHER).create()
    assert await same()
    await one.answer(codes[1])
    assert await changed()
    await one.refresh(codes[1])
    await one.withdraw(codes[1])
    assert await same()
    assert states[-1].changes_ms == BEGIN_MS + TIMEOUT_MS
    clock.ms = states[-1].changes_ms
    assert await changed()
    await sweep(store, clock.ms)
    assert await same()
    assert states[-1].changes_ms == BEGIN_MS + 30 + TIMEOUT_MS
    await one.withdraw(codes[2])
    assert await changed()
    assert (states[-1].live, states[-1].changes_ms) == (0, None)


async def test_states_only_go_on(store, under, clock):
    """Also when those by whom a state is told are swept and forgotten, who was told a later one is not misled.

    A waiter takes what has an earlier serial and as many sessions for what it has seen (contract C2).
    """
    one = under(store)
    stays = await one.create(ttl_ms=TIMEOUT_MS * 10)
    newest = await one.create(ttl_ms=10)
    seen = await one.state()
    clock.ms += 10
    after = await one.state()
    assert (after.serial, after.live) == (seen.serial, seen.live - 1)
    await sweep(store, clock.ms)
    clock.ms += TIMEOUT_MS
    await sweep(store, clock.ms)
    forgotten = await one.state()
    assert (forgotten.serial <= after.serial, forgotten.live) == (True, 1)
    new = await one.create()
    await one.withdraw(stays)
    assert (await one.state()).serial > seen.serial
    assert await one.codes() == [new]
    assert newest not in await one.codes()


# Who is told (C1 to C3).


@pytest.fixture
def told(store):
    """A function that does something, and lists which of the watches it was given were told of a change."""

    async def told(operation, **watches):
        waits = {name: watch.wait(store.watches.loop.time() + 3600) for name, watch in watches.items()}
        result = await operation
        for _ in range(5):
            await asyncio.sleep(0)
        names = [name for name, wait in waits.items() if wait.done()]
        for watch in watches.values():
            watch.wake()
        return names, result

    return told


async def test_who_is_told_of_what(store, under, clock, told):
    """Each change wakes those whom it concerns, of this session, topic and origin only."""
    one, other = under(store), under(store, OTHER)
    stranger = await one.create("other topic")
    with (
        store.watch_topic(ORIGIN, "topic") as topic,
        store.watch_topic(OTHER, "topic") as foreign_topic,
        store.watch_session(ORIGIN, stranger) as another_session,
    ):
        others = {"foreign_topic": foreign_topic, "another_session": another_session}
        names, code = await told(one.create(), topic=topic, **others)
        assert names == ["topic"]
        with store.watch_session(ORIGIN, code) as session, store.watch_session(OTHER, code) as foreign_session:
            watches = {"topic": topic, "session": session, "foreign_session": foreign_session, **others}
            for operation, expected in [
                (one.add(code, OFFERER, "c"), ["session"]),
                (one.add(code, ANSWERER, "c"), ["session"]),
                (one.read(code, OFFERER), []),
                (one.answer(code), ["topic", "session"]),
                (one.answer(code), []),
                (one.withdraw(code), ["session"]),
                (other.create("other topic"), []),
            ]:
                assert (await told(operation, **watches))[0] == expected
        withdrawn = await one.create()
        with store.watch_session(ORIGIN, withdrawn) as session:
            names, _ = await told(one.withdraw(withdrawn), topic=topic, session=session, foreign_topic=foreign_topic)
            assert names == ["topic", "session"]
        expiring = await one.create()
        with store.watch_session(ORIGIN, expiring) as session:
            clock.ms += TIMEOUT_MS
            names, _ = await told(sweep(store, clock.ms), topic=topic, session=session, foreign_topic=foreign_topic)
            assert names == ["topic", "session"]
    assert len(store.watches) == 0


async def test_who_is_told_finds_it(store, under):
    """When a watch wakes what it is about can be read, in the same turn of the loop."""
    one = under(store)
    code = await one.create()
    with store.watch_session(ORIGIN, code) as watch:
        seen = []

        async def follow():
            since = 0
            while since < 100:
                news = await one.read(code, ANSWERER, since=since)
                seen.extend(number for number, _ in news.candidates)
                if news.last <= since:
                    await watch.wait(store.watches.loop.time() + 3600)
                since = max(since, news.last)

        following = asyncio.create_task(follow())
        for number in range(100):
            await one.add(code, ANSWERER, str(number))
        await asyncio.wait_for(following, 10)
    assert all(after == before + 1 for before, after in pairwise([0, *seen]))
    assert seen[-1] == 100
