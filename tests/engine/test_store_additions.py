"""Every store: positions, events, ownership, withdrawal, refresh and watches."""

import asyncio
from itertools import pairwise

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS, on_every_engine, sweep

from tornado_signal.errors import SessionNotFound, StalePosition, TooMany
from tornado_signal.session import MAX_LEASES, MIN_HELD_MS, Reason, SessionPosition, SessionUpdate, Side, hash_secret
from tornado_signal.stores.quotas import Quotas

ORIGIN, OTHER = "https://one.example", "https://two.example"
OFFERER, ANSWERER = Side.OFFERER, Side.ANSWERER
LEASES = [bytes([number]) * 12 for number in (1, 2)]
MINE, THEIRS = hash_secret("a secret of mine"), hash_secret("a secret of theirs")


async def refused(*operations):
    """Whether all of these end as what does not exist does."""
    results = await asyncio.gather(*operations, return_exceptions=True)
    return {type(result) for result in results} == {SessionNotFound}


@pytest.mark.parametrize("answered_after", [0, 1, 3])
@pytest.mark.parametrize("reopened", [False, True])
async def test_reading_continues_after_every_number(opened, answered_after, reopened, restarted):
    store, one = await opened()
    code = await one.create()
    texts = ["a", "b", "c"]
    for text in texts[:answered_after]:
        await one.add(code, ANSWERER, text)
    await one.answer(code)
    if reopened:
        store, one = await restarted(store)
    await one.add(code, ANSWERER, *texts[answered_after:])
    serial = (await one.read(code, ANSWERER)).serial
    numbered = [(at + 1 + (at >= answered_after), text) for at, text in enumerate(texts)]
    for since in range(7):
        later = [(number, text) for number, text in numbered if number > since]
        expected = SessionUpdate("answer", answered_after + 1, later, BEGIN_MS + TIMEOUT_MS, serial)
        assert await one.read(code, ANSWERER, since=SessionPosition(serial, since)) == expected
    assert (await one.read(code, ANSWERER)).last == 4


@on_every_engine
async def test_reader_gets_each_candidate_once_while_both_sides_send(one, engine):
    code = await one.create()
    texts = [str(number) for number in range(200)]
    sending = asyncio.gather(*[one.add(code, ANSWERER, text) for text in texts], one.answer(code))
    since, got, numbers = None, [], []
    while len(got) < len(texts) or not sending.done():
        news = await one.read(code, ANSWERER, since=since)
        got += [text for _, text in news.candidates]
        numbers += [number for number, _ in news.candidates]
        since = SessionPosition(news.serial, max(since.number if since else 0, news.last))
        await asyncio.sleep(0)
    assert (got if engine.in_order else sorted(got, key=int)) == texts
    assert numbers == sorted(set(numbers))
    assert since.number == len(texts) + 1


async def test_position_of_an_earlier_session_with_the_same_code_is_refused(opened):
    _, one = await opened(codes="content")
    code = await one.create()
    before = SessionPosition((await one.read(code, OFFERER)).serial, 1)
    assert (await one.read(code, OFFERER, since=before)).description == "offer"
    await one.withdraw(code)
    with pytest.raises(SessionNotFound):
        await one.read(code, OFFERER, since=before)
    assert await one.create() == code
    with pytest.raises(StalePosition):
        await one.read(code, OFFERER, since=before)


@on_every_engine
async def test_batches_are_read_whole_or_not_at_all(one, engine):
    code = await one.create()
    batches = [[f"{batch}.{number}" for number in range(100)] for batch in range(5)]
    sending = asyncio.gather(*[one.add(code, ANSWERER, *batch) for batch in batches])
    while not sending.done():
        assert len((await one.read(code, ANSWERER)).candidates) % 100 == 0
        await asyncio.sleep(0)
    kept = [text for _, text in (await one.read(code, ANSWERER)).candidates]
    found = [kept[at : at + 100] for at in range(0, len(kept), 100)]
    assert (found if engine.in_order else sorted(found, key=batches.index)) == batches


def as_offerer(one, code, secret_hash):
    yield one.add(code, OFFERER, "c", secret_hash=secret_hash)
    yield one.read(code, ANSWERER, secret_hash=secret_hash)
    yield one.refresh(code, OFFERER, secret_hash=secret_hash)
    yield one.withdraw(code, OFFERER, secret_hash=secret_hash)


def as_answerer(one, code, secret_hash):
    yield one.add(code, ANSWERER, "c", secret_hash=secret_hash)
    yield one.answer(code, secret_hash=secret_hash)
    yield one.read(code, OFFERER, secret_hash=secret_hash)
    yield one.refresh(code, ANSWERER, secret_hash=secret_hash)
    yield one.withdraw(code, ANSWERER, secret_hash=secret_hash)


async def held(one, code):
    return await one.read(code, OFFERER, secret_hash=THEIRS), await one.read(code, ANSWERER, secret_hash=MINE)


@pytest.mark.parametrize("wrong", [b"", THEIRS, MINE[:-1], MINE + b"\x00"])
@pytest.mark.parametrize("reopened", [False, True])
async def test_side_with_a_secret_requires_it(opened, wrong, reopened, restarted):
    store, one = await opened()
    code = await one.create(secret_hash=MINE)
    await one.answer(code, secret_hash=THEIRS)
    if reopened:
        store, one = await restarted(store)
    before = await held(one, code)
    assert await refused(*as_offerer(one, code, wrong))
    if wrong != THEIRS:
        assert await refused(*as_answerer(one, code, wrong))
    assert await refused(*as_answerer(one, code, MINE))
    assert await held(one, code) == before
    *answering, removal = as_answerer(one, code, THEIRS)
    for operation in (*answering, *as_offerer(one, code, MINE)):
        await operation
    assert await refused(removal)  # it could have, but the offerer has withdrawn it already


async def test_side_without_a_secret_requires_none(one):
    code = await one.create()
    await one.add(code, OFFERER, "c", secret_hash=MINE)
    await one.add(code, ANSWERER, "c", secret_hash=MINE)  # before its answer: nothing is kept
    await one.answer(code)
    for secret_hash in (b"", THEIRS, MINE):
        await one.add(code, ANSWERER, "c", secret_hash=secret_hash)
        await one.answer(code, secret_hash=secret_hash)
        await one.read(code, ANSWERER, secret_hash=secret_hash)
        await one.refresh(code, OFFERER, secret_hash=secret_hash)


@pytest.mark.parametrize("answered", [False, True])
async def test_content_with_a_secret_belongs_to_its_owner_until_expiry(opened, clock, answered):
    _, one = await opened(codes="content")
    code = await one.create(secret_hash=MINE)
    if answered:
        await one.answer(code)
    clock.ms += TIMEOUT_MS - 1
    assert await refused(one.create(), one.create(secret_hash=THEIRS))
    assert await one.create(secret_hash=MINE) == code
    clock.ms += TIMEOUT_MS
    assert await one.create(secret_hash=THEIRS) == code
    assert await refused(one.refresh(code, secret_hash=MINE))


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("answered", [False, True])
async def test_session_is_withdrawn(store, one, under, side, answered):
    code, other = await one.create(), await one.create()
    position = await one.knowing()
    await one.add(code, OFFERER, *map(str, range(500)))
    if answered:
        await one.answer(code)
    assert await refused(under(store, OTHER).withdraw(code, side))
    await one.withdraw(code, side)
    assert await refused(one.withdraw(code, side), one.refresh(code), one.read(code, OFFERER), one.answer(code))
    assert (await one.codes(), await one.topics()) == ([other], ([("topic", 1)], 1))
    reason = Reason.ANSWERED if answered else Reason.WITHDRAWN
    assert await one.news(position) == [(code, reason)]


async def test_held_offer_ends_with_its_lease_unless_it_is_answered_or_taken_over(one, under, store):
    answered, taken, withdrawn, kept = [await one.create(lease=LEASES[0]) for _ in range(4)]
    free = await one.create()
    position = await one.knowing()
    await one.answer(answered)
    await one.hold(taken, LEASES[1])
    await one.withdraw(withdrawn)
    other = under(store, OTHER)
    without = [(code, LEASES[0]) for code in (free, answered, taken, withdrawn)]
    for code, lease in [(kept, LEASES[1]), *without]:
        assert await refused(one.renew(code, lease), one.release(code, lease))
    assert await refused(other.renew(kept, LEASES[0]), other.release(kept, LEASES[0]), other.hold(kept, LEASES[1]))
    await one.release(kept, LEASES[0])
    assert await refused(one.release(kept, LEASES[0]), one.renew(kept, LEASES[0]), one.hold(kept, LEASES[0]))
    assert await one.codes() == [free, taken]
    assert (kept, Reason.WITHDRAWN) in await one.news(position)
    await one.hold(answered, LEASES[0])  # its answer is still to be read
    assert await refused(one.renew(answered, LEASES[0]))
    await one.release(taken, LEASES[1])
    assert await one.codes() == [free]


async def test_held_offer_outlives_its_renewal_interval(one, clock):
    held, taken = await one.create(ttl_ms=50, lease=LEASES[0]), await one.create(ttl_ms=50)
    clock.ms += 40
    assert await one.hold(taken, LEASES[1]) == (await one.read(taken, OFFERER)).expires_ms
    for code, side in ((held, OFFERER), (taken, ANSWERER)):
        clock.ms += 1
        assert await one.refresh(code, side) == clock.ms + MIN_HELD_MS  # as by HTTP
    clock.ms += 30_000
    for code, lease in ((held, LEASES[0]), (taken, LEASES[1])):
        assert await one.renew(code, lease) == clock.ms + MIN_HELD_MS
    assert [each.session.expires_ms for each in await one.sessions()] == [clock.ms + MIN_HELD_MS] * 2
    clock.ms += MIN_HELD_MS
    assert await refused(one.renew(held, LEASES[0]), one.release(held, LEASES[0]))
    assert await one.codes() == []


async def test_equal_content_has_one_lease_for_each_holder(opened, clock):
    _, one = await opened(codes="content")
    code = await one.create(lease=LEASES[0])
    assert await one.create(lease=LEASES[1]) == await one.create(lease=LEASES[1]) == await one.create() == code
    await one.release(code, LEASES[1])
    clock.ms += 30_000
    await one.renew(code, LEASES[0])
    assert await one.codes() == [code]
    for number in range(MAX_LEASES):
        await one.create(lease=b"more" + bytes(7) + bytes([number]))
    assert await refused(one.renew(code, LEASES[0]))
    await one.hold(code, LEASES[0])
    assert await refused(one.renew(code, b"more" + bytes(8)))
    await one.release(code, LEASES[0])
    assert await one.codes() == []


@pytest.mark.parametrize("end", ["expiry", "sweep", "answer", "withdrawal"])
async def test_new_session_with_the_code_of_an_ended_one_has_no_lease_and_wakes_its_watches(
    opened, restarted, clock, engine, told, end
):
    store, one = await opened(codes="content")
    code = await one.create(lease=LEASES[0])
    await one.create(lease=LEASES[1])
    with store.watch_session(ORIGIN, code) as watch:
        if end == "answer":
            await one.answer(code)
        if end == "withdrawal":
            await one.withdraw(code)
        clock.ms += MIN_HELD_MS
        if end == "sweep":
            await sweep(store)
        await watch.opened()
        await engine.settled(store)
        await watch.wait(watch.now_s())  # the end itself
        assert await told(store, one.create(), session=watch) == (["session"], code)
    for _ in range(2):
        for lease in LEASES:
            assert await refused(one.renew(code, lease), one.release(code, lease))
        assert await one.codes() == [code]
        store, one = await restarted(store, codes="content")


async def test_concurrent_withdrawals_end_the_session(one):
    for number in range(10):
        code = await one.create()
        operations = [one.add(code, OFFERER, "c"), one.answer(code), one.add(code, ANSWERER, "c"), one.refresh(code)]
        operations.insert(number % 5, one.withdraw(code))
        operations.append(one.withdraw(code, ANSWERER))
        results = await asyncio.gather(*operations, return_exceptions=True)
        assert {type(result) for result in results} <= {type(None), int, SessionNotFound}
        assert await refused(one.read(code, OFFERER))
    assert (await one.codes(), await one.topics()) == ([], ([], 0))


@pytest.mark.parametrize("codes", ["random", "content"])
async def test_offer_keeps_its_requested_lifetime(opened, clock, codes):
    _, one = await opened(codes=codes)
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


async def test_refreshed_session_is_counted(store, one, clock, until):
    code = await one.create()
    for _ in range(5):
        clock.ms += TIMEOUT_MS - 1
        await one.refresh(code)
    await until(lambda: min(store.now_ms(), store.now_ms()) >= clock.ms)  # processes look at it now and then
    assert await store.counts() == (1, 1)


async def test_events_are_departures_then_arrivals(one, clock):
    codes = [await one.create() for _ in range(4)]
    begun = await one.events(await one.begin())
    assert [event[1:] for event in begun] == [(code, None) for code in codes]
    at = [position for position, *_ in begun]
    await one.answer(codes[1])
    await one.withdraw(codes[2])
    answered, withdrawn = (codes[1], Reason.ANSWERED), (codes[2], Reason.WITHDRAWN)
    there = [(codes[0], None), (codes[3], None)]
    assert await one.news(await one.begin()) == there
    assert await one.news(at[0]) == there[1:]
    assert await one.news(at[1]) == [answered, there[1]]
    left = await one.events(at[3])
    assert [event[1:] for event in left] == [answered, withdrawn]
    assert await one.news(left[0][0]) == [withdrawn]
    assert await one.news(left[1][0]) == []
    clock.ms += TIMEOUT_MS
    expired = await one.events(left[1][0])
    assert {event[1:] for event in expired} == {(codes[n], Reason.EXPIRED) for n in (0, 3)}
    assert await one.news(await one.begin()) == []
    assert await one.news(at[0]) == [event[1:] for event in expired if event[1] == codes[0]]
    assert await one.news(expired[0][0]) == [expired[1][1:]]


async def test_only_announced_sessions_are_reported_as_gone(one):
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


async def test_refresh_across_the_old_expiry_is_consistent_with_events(one, clock):
    code = await one.create()
    clock.ms += TIMEOUT_MS - 1
    refreshing = asyncio.create_task(one.refresh(code))
    await asyncio.sleep(0)
    clock.ms += 1
    told = await one.news(await one.begin())
    (refreshed,) = await asyncio.gather(refreshing, return_exceptions=True)
    assert told == ([] if type(refreshed) is SessionNotFound else [(code, None)])


async def test_events_of_other_topics_and_origins_are_not_reported(store, under):
    names = ["", "a", "a\x00", "a\x00\xff", "ab", "b"]
    under_origins = [under(store, origin) for origin in (ORIGIN, OTHER, ORIGIN + "\x00")]
    expected = {}
    for one in under_origins:
        for name in names:
            code, leaver = await one.create(name), await one.create(name)
            position = await one.knowing(name)
            await one.answer(leaver)
            expected[one.origin, name] = [code, leaver, position]
    for one in under_origins:
        for name in names:
            code, leaver, position = expected[one.origin, name]
            assert await one.news(await one.begin(), name) == [(code, None)]
            assert await one.news(position, name) == [(leaver, Reason.ANSWERED)]


@pytest.mark.parametrize("swept", [False, True])
async def test_replaced_content_is_reported_as_gone_first(opened, clock, swept):
    store, one = await opened(codes="content")
    code = await one.create()
    position = await one.knowing()
    clock.ms += TIMEOUT_MS
    if swept:
        await sweep(store)
    assert await one.create() == code
    assert await one.news(position) == [(code, Reason.EXPIRED), (code, None)]


async def test_position_is_refused_once_removals_after_it_are_forgotten(opened, clock, restarted):
    store, one = await opened()
    code, _ = await one.create(), await one.create(ttl_ms=10 * TIMEOUT_MS)
    position, listed = await one.knowing(), (await one.state()).position
    await one.answer(code)
    await one.withdraw(code)
    clock.ms += TIMEOUT_MS - 1
    await sweep(store)
    assert await one.news(position) == [(code, Reason.ANSWERED)]
    assert await store.begin_topic(ORIGIN, "topic", position) == (position, True)
    clock.ms += 1
    await sweep(store)
    for new in range(1, 4):
        start, is_known = await store.begin_topic(ORIGIN, "topic", position)
        assert (start.listed, is_known) == (0, False)
        assert [reason for _, reason in await one.news(start)] == [None] * new
        assert (await one.state(since=listed)).changed
        store, one = await restarted(store)
        await one.create()
    position = await one.knowing()
    assert await store.begin_topic(ORIGIN, "topic", position) == (position, True)


async def test_events_survive_a_restart_unless_they_are_in_memory(engine, opened, restarted):
    store, one = await opened()
    begun = await one.begin()
    codes = [await one.create() for _ in range(5)]
    told = [begun, *(position for position, *_ in await one.events(begun))]
    await one.answer(codes[0])
    await one.withdraw(codes[4])
    told += [position for position, *_ in await one.events(told[-1])]
    before = [await one.events(position) for position in told]
    store, one = await restarted(store)
    assert [store.knows(position.store) for position in told] == [not engine.in_files] * len(told)
    if engine.in_files:
        start, is_known = await store.begin_topic("https://one.example", "topic", None)
        assert (is_known, await one.news(start)) == (False, [(code, None) for code in codes[1:4]])
        resets = []
        events = await one.events(told[-1], on_reset=lambda: resets.append(None))
        assert ([code for _, code, _ in events], len(resets)) == (codes[1:4], 1)
        return
    for position in told:
        assert await store.begin_topic("https://one.example", "topic", position) == (position, True)
    assert [await one.events(position) for position in told] == before
    new = await one.create()
    ((position, *event),) = await one.events(told[-1])
    assert (event, position not in told) == ([new, None], True)


async def test_each_session_expires_once_for_many_readers(store, one, clock):
    codes = [await one.create() for _ in range(40)]
    position = await one.knowing()
    clock.ms += TIMEOUT_MS
    found = await asyncio.gather(*[one.news(position) for _ in range(20)])
    expected = dict.fromkeys(codes, Reason.EXPIRED)
    assert all((dict(each), len(each)) == (expected, 40) for each in found)
    assert (await store.counts())[0] == 0


@pytest.mark.parametrize("settled", [False, True])
async def test_expired_sessions_are_reported_once_across_a_restart(settled, engine, opened, clock, restarted):
    store, one = await opened()
    codes = [await one.create() for _ in range(10)]
    position = await one.knowing()
    if engine.in_files:
        expired = []
        for _ in range(3):
            store.observe(lambda outcome, *_: expired.append(outcome))
            clock.ms += TIMEOUT_MS
            assert await one.codes() == []
            store, one = await restarted(store)
        assert expired == ["expired"] * 10
        return
    clock.ms += TIMEOUT_MS
    before = await one.news(position) if settled else None
    store, one = await restarted(store)
    found = await one.news(position)
    assert (dict(found), len(found)) == (dict.fromkeys(codes, Reason.EXPIRED), 10)
    assert before in (None, found)
    await sweep(store)
    assert await store.counts() == (0, 0)


async def test_text_that_cannot_be_encoded_changes_nothing(opened, restarted):
    store, one = await opened()
    with pytest.raises(UnicodeEncodeError):
        await one.create(offer="\ud800")
    code = await one.create()
    with pytest.raises(UnicodeEncodeError):
        await one.add(code, OFFERER, "good", "\ud800")
    with pytest.raises(UnicodeEncodeError):
        await one.answer(code, "\ud800")
    await one.add(code, OFFERER, "c")
    await one.answer(code)
    store, one = await restarted(store)
    assert (await store.counts())[0] == 0
    assert (await one.read(code, OFFERER)).candidates[-1][1] == "c"


async def test_positions_of_another_store_are_recognised(open_store, under):
    store, other = await open_store(), await open_store("other")
    one = under(store)
    await one.create()
    for position in (await one.knowing(), (await one.state()).position, await one.begin("elsewhere")):
        assert (store.knows(position.store), other.knows(position.store)) == (True, False)
    assert store.identity != other.identity


@on_every_engine
async def test_quotas_of_origins_and_topics(open_store, under, engine, clock):
    store = await open_store(quotas=Quotas(sessions_per_origin=8, sessions_per_topic=3, topics_per_origin=5))
    one, other = under(store), under(store, OTHER)

    async def filled(*topics):
        made = [await asyncio.gather(one.create(topic), return_exceptions=True) for topic in topics]
        return [code for (code,) in made if type(code) is not TooMany]

    await other.create("elsewhere")
    same = await filled(*["topic"] * 5)
    assert len(same) == 3
    assert len(await filled(*map(str, range(9)))) == 4 or not engine.in_order
    assert await filled("topic") == []
    await one.answer(same[0])
    assert len(await filled("topic")) == 1
    assert len(await filled("0", "1", "2")) == 1 or not engine.in_order
    sessions = sum(count for _, count in (await one.topics())[0])
    assert sessions == 8 or not engine.in_order  # each of two processes learns of the other's in a second
    clock.ms += TIMEOUT_MS
    assert len(await filled("new", "newer", "newest")) == 3


async def test_changed_quotas_apply_immediately(opened):
    store, one = await opened(quotas=Quotas(sessions_per_topic=1, candidates=1))
    code = await one.create("topic")
    await one.add(code, OFFERER, "c")
    for refused in (one.create("topic"), one.add(code, OFFERER, "d")):
        with pytest.raises(TooMany):
            await refused
    store.allow(Quotas(sessions_per_topic=3, candidates=2))
    await one.create("topic")
    await one.add(code, OFFERER, "d")
    store.allow(Quotas(sessions_per_topic=2))
    with pytest.raises(TooMany):
        await one.create("topic")
    await one.add(code, OFFERER, "e")


async def test_both_sides_have_the_same_candidate_quota(opened):
    _, one = await opened(quotas=Quotas(candidates=10))
    code = await one.create()
    await one.add(code, OFFERER, *"0123456789")
    await one.add(code, ANSWERER, *"01234567")
    for side, texts in ((OFFERER, "x"), (ANSWERER, "xyz")):
        with pytest.raises(TooMany):
            await one.add(code, side, *texts)
    await one.add(code, ANSWERER, "8")
    await one.answer(code)
    await one.add(code, ANSWERER, "9")
    with pytest.raises(TooMany):
        await one.add(code, ANSWERER, "x")


async def test_quota_of_bytes_per_side(opened, restarted):
    store, one = await opened(quotas=Quotas(side_bytes=1000))
    code = await one.create(offer="o" * 600)
    await one.add(code, OFFERER, "c" * 200, "é" * 50)
    store, one = await restarted(store, quotas=Quotas(side_bytes=1000))
    await one.add(code, OFFERER, "c" * 99)
    with pytest.raises(TooMany) as refused:
        await one.add(code, OFFERER, "cc")
    assert refused.value.reason == "bytes of a session"
    await one.add(code, OFFERER, "c")
    await one.add(code, ANSWERER, "c" * 1000)
    await one.answer(code, "a" * 1000)  # an answer is never refused for what came before it
    with pytest.raises(TooMany):
        await one.add(code, ANSWERER, "c")


async def test_state_differs_between_listings(store, one, under, clock):
    states = [await one.state("elsewhere")]

    async def changed():
        states.append(await one.state(since=states[-1].position))
        assert (await one.state(since=states[-1].position)).changed is False
        assert states[-1].changed == (states[-1].position != states[-2].position)
        return states[-1].changed

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
    await sweep(store)
    assert await same()
    assert states[-1].changes_ms == BEGIN_MS + 30 + TIMEOUT_MS
    await one.withdraw(codes[2])
    assert await changed()
    assert states[-1].changes_ms is None
    assert not (await one.state()).changed  # it is empty


@pytest.fixture
def told(engine):
    """Return a function that runs an action, and returns the given watches that noticed a change and its result."""

    async def told(store, operation, **watches):
        await engine.settled(store)
        waits = {name: watch.wait(watch.now_s() + 3600) for name, watch in watches.items()}
        result = await operation
        await engine.settled(store)
        names = [name for name, wait in waits.items() if wait.done()]
        for watch in watches.values():
            watch.wake()
        return names, result

    return told


async def test_change_wakes_only_the_watches_of_its_topic_or_session(store, under, clock, told):
    one, other = under(store), under(store, OTHER)
    stranger = await one.create("other topic")
    with (
        store.watch_topic(ORIGIN, "topic") as topic,
        store.watch_topic(OTHER, "topic") as foreign_topic,
        store.watch_session(ORIGIN, stranger) as another_session,
    ):
        others = {"foreign_topic": foreign_topic, "another_session": another_session}
        names, code = await told(store, one.create(), topic=topic, **others)
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
                assert (await told(store, operation, **watches))[0] == expected
        withdrawn = await one.create()
        with store.watch_session(ORIGIN, withdrawn) as session:
            names, _ = await told(
                store, one.withdraw(withdrawn), topic=topic, session=session, foreign_topic=foreign_topic
            )
            assert names == ["topic", "session"]
        expiring = await one.create()
        with store.watch_session(ORIGIN, expiring) as session:
            clock.ms += TIMEOUT_MS
            names, _ = await told(store, sweep(store), topic=topic, foreign_topic=foreign_topic)
            assert names == ["topic"]


async def test_woken_watch_reads_the_change(store, one):
    code = await one.create()
    with store.watch_session(ORIGIN, code) as watch:
        seen = []

        async def follow():
            await watch.opened()
            since = SessionPosition((await one.read(code, ANSWERER)).serial, 0)
            while since.number < 100:
                news = await one.read(code, ANSWERER, since=since)
                seen.extend(number for number, _ in news.candidates)
                if news.last <= since.number:
                    await watch.wait(watch.now_s() + 3600)
                since = SessionPosition(news.serial, max(since.number, news.last))

        following = asyncio.create_task(follow())
        for number in range(100):
            await one.add(code, ANSWERER, str(number))
        await asyncio.wait_for(following, 60)
    assert all(after == before + 1 for before, after in pairwise([0, *seen]))
    assert seen[-1] == 100
