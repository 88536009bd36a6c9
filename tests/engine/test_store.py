"""Operations of every store: what the stateful model does not reach, such as concurrency, quotas and watches."""

import asyncio
from contextlib import suppress

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS, Alternating, on_every_engine, sweep

from tornado_signal.errors import AlreadyAnswered, SessionNotFound, StalePosition, TooMany, Unavailable
from tornado_signal.session import MAX_LEASES, MIN_HELD_MS, Reason, SessionPosition, Side
from tornado_signal.settings.settings import Settings

ORIGIN, OTHER = "https://one.example", "https://two.example"
OFFERER, ANSWERER = Side.OFFERER, Side.ANSWERER
LEASES = [bytes([number]) * 12 for number in (1, 2)]
# Each begins others, or sorts next to them, or looks like a part of a key.
AWKWARD = ["", "\x00", "\x00\x00", "\x00\xff", "a", "a\x00", "a\x00b", "a\xff", "a/b", "b", "\U0010ffff" * 256]


async def test_origin_reaches_only_its_own_sessions(store, under):
    origins = [ORIGIN, OTHER, "null", ORIGIN + "\x00", ORIGIN + "\xff", "https://one.exampl", ""]
    codes = {
        (origin, topic): await under(store, origin).create(topic, origin) for origin in origins for topic in AWKWARD
    }
    for origin in origins:
        one = under(store, origin)
        assert await one.topics() == ([(topic, 1) for topic in sorted(AWKWARD)], len(AWKWARD))
        for topic in AWKWARD:
            assert await one.codes(topic) == [codes[origin, topic]]
        for other in origins:
            if other != origin:
                code = codes[other, "a"]
                calls = one.answer(code), one.add(code, OFFERER, "c"), one.refresh(code), one.read(code, OFFERER)
                results = await asyncio.gather(*calls, one.read(code, ANSWERER), return_exceptions=True)
                assert {type(result) for result in results} == {SessionNotFound}
    await under(store).answer(codes[ORIGIN, "a"])
    assert len((await under(store).topics())[0]) == len(AWKWARD) - 1
    assert len((await under(store, OTHER).topics())[0]) == len(AWKWARD)


async def test_concurrent_changes_do_not_tear_a_listing(store, one):
    codes = [await one.create(info=str(number)) for number in range(154)]
    seen = []
    async for step in store.sessions(ORIGIN, "topic"):
        seen += [listed.session.code for listed in step]
        await one.create()
        for answered, withdrawn in zip(codes[::7], codes[3::7], strict=True):
            with suppress(AlreadyAnswered, SessionNotFound):
                await one.answer(answered, str(len(seen)))
            with suppress(SessionNotFound):
                await one.withdraw(withdrawn)
    assert len(seen) == len(set(seen))
    assert set(codes) - {*codes[::7], *codes[3::7]} <= set(seen) <= set(codes)


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
async def test_simultaneous_candidates_are_stored_and_read_once_in_whole_batches(one, engine):
    code = await one.create()
    batches = {side: [[f"{batch}.{number}" for number in range(50)] for batch in range(6)] for side in Side}
    changes = [one.add(code, side, *batches[side][at]) for at in range(6) for side in Side]
    sending = asyncio.gather(*changes[:4], one.answer(code), *changes[4:])
    since, got = None, []
    while not sending.done() or len(got) < 300:
        news = await one.read(code, ANSWERER, since=since)
        assert len(news.candidates) % 50 == 0
        got += news.candidates
        since = SessionPosition(news.serial, max(since.number if since else 0, news.last))
        await asyncio.sleep(0)
    assert got == (await one.read(code, ANSWERER)).candidates
    for side, sent in batches.items():
        news = await one.read(code, side)
        assert news.description == side.value.removesuffix("er")
        texts = [text for _, text in news.candidates]
        found = [texts[at : at + 50] for at in range(0, len(texts), 50)]
        assert (found if engine.in_order else sorted(found)) == sent
        assert sorted([news.description_number, *(number for number, _ in news.candidates)]) == list(range(1, 302))


async def test_closed_store_is_unavailable(opened):
    store, one = await opened()
    code = await one.create()
    await asyncio.gather(store.close(), store.close())
    operations = [one.create(), one.answer(code), one.add(code, OFFERER, "c"), one.read(code, OFFERER)]
    operations += [one.refresh(code), one.sessions(), one.topics(), store.probe()]
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
    kept = [text for _, text in (await again.read(code, OFFERER)).candidates]
    assert (kept if engine.in_order else sorted(kept)) == [str(number) for number in range(10)]
    assert ((await again.read(code, ANSWERER)).description == "answer") == (result is None)
    assert result is None or type(result) is Unavailable


async def test_equal_content_has_a_bounded_number_of_leases(opened):
    _, one = await opened(codes="content")
    leases = [bytes(11) + bytes([number]) for number in range(MAX_LEASES + 1)]
    code, *others = [await one.create(lease=lease) for lease in leases]
    assert {*others} == {code}
    with pytest.raises(SessionNotFound):
        await one.renew(code, leases[0])
    await one.hold(code, leases[0])
    with pytest.raises(SessionNotFound):
        await one.renew(code, leases[-1])


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


@pytest.fixture
def reports(store):
    """The reports of all processes, in order."""
    found = []
    store.observe(lambda *report: found.append(report))
    return found


async def test_each_event_is_reported_once_with_what_is_known(one, store, reports):
    answered, withdrawn = await one.create("first"), await one.create("second", ttl_ms=500)
    answers = [one.answer(answered, text) for text in ("same", "same", "other")]
    await asyncio.gather(*answers, return_exceptions=True)
    await one.answer(answered, (await one.read(answered, ANSWERER)).description)
    await one.withdraw(withdrawn)
    missing = bytes(16)
    for refused in (one.answer(answered, "x"), one.withdraw(missing), one.answer(missing), one.withdraw(withdrawn)):
        with pytest.raises((AlreadyAnswered, SessionNotFound)):
            await refused
    await one.add(answered, ANSWERER, "a")
    await one.refresh(answered)
    await one.withdraw(answered, ANSWERER)
    first = (ORIGIN, answered, "first", BEGIN_MS, BEGIN_MS + TIMEOUT_MS)
    second = (ORIGIN, withdrawn, "second", BEGIN_MS, BEGIN_MS + 500)
    created = [("created", *first), ("created", *second)]
    assert reports == [*created, ("answered", *first), ("withdrawn", *second), ("withdrawn", *first)]
    del reports[:]
    held = await one.create(lease=LEASES[0])
    assert reports == [("created", ORIGIN, held, "topic", BEGIN_MS, BEGIN_MS + MIN_HELD_MS)]
    await one.hold(held, LEASES[1])
    with pytest.raises(SessionNotFound):
        await one.release(held, LEASES[0])
    await one.release(held, LEASES[1])
    assert [report[:4] for report in reports[1:]] == [("withdrawn", ORIGIN, held, "topic")]
    store.observe(None)
    await one.withdraw(await one.create())
    assert len(reports) == 2


async def test_observer_that_raises_stops_no_operation(store, one, caplog):
    store.observe(lambda *report: 1 // 0)
    code = await one.create()
    await one.answer(code)
    assert await one.codes() == []
    assert caplog.text.count("ZeroDivisionError:") == 2


async def test_unanswered_sessions_expire_once_whoever_looks(one, store, reports, clock):
    codes = {await one.create(topic, offer=topic): topic for topic in map(str, range(30))}
    await one.answer(await one.create("answered"))
    clock.ms += TIMEOUT_MS
    position = await one.begin("0")
    looks = [one.topics(), one.news(position, "0"), one.state("1"), one.create("2"), store.counts(), store.counts()]
    await asyncio.gather(*looks)
    await sweep(store)
    await one.topics()
    expired = [(report[2], report[3], report[5]) for report in reports if report[0] == "expired"]
    assert sorted(expired) == sorted((code, topic, BEGIN_MS + TIMEOUT_MS) for code, topic in codes.items())
    if isinstance(store, Alternating):  # Redis deletes answered sessions itself
        assert sum(each.metrics.swept for each in store.stores) == len(codes)
    else:
        assert store.metrics.swept == len(codes) + 1


async def test_content_derived_codes_expire_before_they_are_created_again(opened, clock):
    store, one = await opened(codes="content")
    reports = []
    store.observe(lambda *report: reports.append(report[0]))
    code = await one.create()
    assert await one.create() == code
    clock.ms += TIMEOUT_MS
    assert await one.create() == code
    await one.withdraw(code)
    assert await one.create() == code
    assert reports == ["created", "expired", "created", "withdrawn", "created"]


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
async def test_quota_of_an_origin(open_store, under, engine, clock):
    store = await open_store(max_sessions_per_origin=8)
    one, other = under(store), under(store, OTHER)

    async def filled(*topics):
        made = [await asyncio.gather(one.create(topic), return_exceptions=True) for topic in topics]
        return [code for (code,) in made if type(code) is not TooMany]

    await other.create("elsewhere")
    same = await filled(*["topic"] * 5)
    assert len(same) == 5
    assert len(await filled(*map(str, range(9)))) == 3 or not engine.in_order
    assert await filled("topic") == [] or not engine.in_order
    await one.answer(same[0])
    assert len(await filled("topic", "0")) == 1 or not engine.in_order
    sessions = sum(count for _, count in (await one.topics())[0])
    assert sessions == 8 or not engine.in_order  # each of two processes learns of the other's in a second
    clock.ms += TIMEOUT_MS
    assert len(await filled("new", "newer", "newest")) == 3


async def test_changed_quotas_apply_immediately(opened):
    store, one = await opened(max_sessions_per_origin=1, max_candidates=1)
    code = await one.create("topic")
    await one.add(code, OFFERER, "c")
    for refused in (one.create("topic"), one.add(code, OFFERER, "d")):
        with pytest.raises(TooMany):
            await refused
    store.use(Settings(max_sessions_per_origin=3, max_candidates=2))
    await one.create("topic")
    await one.add(code, OFFERER, "d")
    store.use(Settings(max_sessions_per_origin=2))
    with pytest.raises(TooMany):
        await one.create("topic")
    await one.add(code, OFFERER, "e")


async def test_quotas_of_a_side(opened, restarted):
    options = {"max_candidates": 10, "max_body_bytes": 250}
    store, one = await opened(**options)
    code, large = await one.create(), await one.create(offer="o" * 600)
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
    await one.add(large, OFFERER, "c" * 200, "é" * 50)
    store, one = await restarted(store, **options)
    await one.add(large, OFFERER, "c" * 99)
    with pytest.raises(TooMany) as refused:
        await one.add(large, OFFERER, "cc")
    assert refused.value.reason == "bytes of a session"
    await one.add(large, OFFERER, "c")
    await one.add(large, ANSWERER, "c" * 1000)
    await one.answer(large, "a" * 1000)  # an answer is never refused for what came before it
    with pytest.raises(TooMany):
        await one.add(large, ANSWERER, "c")


async def test_change_wakes_only_the_watches_of_its_topic_or_session(store, under, clock, engine):
    async def woken_by(operation, **watches):
        """Return the names of the watches that notice an operation, and its result."""
        await engine.settled(store)
        waits = {name: watch.wait(watch.now_s() + 3600) for name, watch in watches.items()}
        result = await operation
        await engine.settled(store)
        names = [name for name, wait in waits.items() if wait.done()]
        for watch in watches.values():
            watch.wake()
        return names, result

    one, other = under(store), under(store, OTHER)
    stranger = await one.create("other topic")
    with (
        store.watch_topic(ORIGIN, "topic") as topic,
        store.watch_topic(OTHER, "topic") as foreign_topic,
        store.watch_session(ORIGIN, stranger) as another_session,
    ):
        others = {"foreign_topic": foreign_topic, "another_session": another_session}
        names, code = await woken_by(one.create(), topic=topic, **others)
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
                assert (await woken_by(operation, **watches))[0] == expected
        withdrawn = await one.create()
        with store.watch_session(ORIGIN, withdrawn) as session:
            names, _ = await woken_by(
                one.withdraw(withdrawn), topic=topic, session=session, foreign_topic=foreign_topic
            )
            assert names == ["topic", "session"]
        expiring = await one.create()
        with store.watch_session(ORIGIN, expiring) as session:
            clock.ms += TIMEOUT_MS
            names, _ = await woken_by(sweep(store), topic=topic, foreign_topic=foreign_topic)
            assert names == ["topic"]
