"""Every store: each event of a session is reported once, by one of the processes."""

import asyncio
from collections import Counter

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS, Alternating, sweep

from tornado_signal.errors import AlreadyAnswered, SessionNotFound
from tornado_signal.session import MIN_HELD_MS, Side

ORIGIN = "https://one.example"
LEASES = [bytes([number]) * 12 for number in (1, 2)]


@pytest.fixture
def reports(store):
    """The reports of all processes, in order."""
    found = []
    store.observe(lambda *report: found.append(report))
    return found


async def test_created_answered_and_withdrawn_sessions_are_reported_with_what_is_known(one, store, reports):
    answered, withdrawn = await one.create("first"), await one.create("second", ttl_ms=500)
    await one.answer(answered)
    await one.withdraw(withdrawn)
    await one.withdraw(answered, Side.ANSWERER)
    first = (ORIGIN, answered, "first", BEGIN_MS, BEGIN_MS + TIMEOUT_MS)
    second = (ORIGIN, withdrawn, "second", BEGIN_MS, BEGIN_MS + 500)
    expected = [
        ("created", *first),
        ("created", *second),
        ("answered", *first),
        ("withdrawn", *second),
        ("withdrawn", *first),
    ]
    assert reports == expected
    store.observe(None)
    await one.withdraw(await one.create())
    assert reports == expected


async def test_observer_that_raises_stops_no_operation(store, one, caplog):
    store.observe(lambda *report: 1 // 0)
    code = await one.create()
    await one.answer(code)
    assert await one.codes() == []
    assert caplog.text.count("ZeroDivisionError:") == 2


async def test_repetitions_and_refusals_are_not_events(one, reports):
    code = await one.create()
    answers = [one.answer(code, text) for text in ("same", "same", "other")]
    await asyncio.gather(*answers, return_exceptions=True)
    await one.answer(code, (await one.read(code, Side.ANSWERER)).description)
    for refused in (one.answer(code, "another"), one.withdraw(b"\0" * 16), one.answer(b"\0" * 16)):
        with pytest.raises((AlreadyAnswered, SessionNotFound)):
            await refused
    await one.add(code, Side.ANSWERER, "a")
    await one.refresh(code)
    await one.withdraw(code)
    with pytest.raises(SessionNotFound):
        await one.withdraw(code)
    assert [report[0] for report in reports] == ["created", "answered", "withdrawn"]


async def test_unanswered_sessions_expire_once_whoever_looks(one, store, reports, clock):
    codes = {await one.create(topic, offer=topic): topic for topic in map(str, range(30))}
    answered = await one.create("answered")
    await one.answer(answered)
    del reports[:]
    clock.ms += TIMEOUT_MS
    position = await one.begin("0")
    looks = [one.topics(), one.news(position, "0"), one.state("1"), one.create("2"), store.counts(), store.counts()]
    await asyncio.gather(*looks)
    await sweep(store)
    await one.topics()
    expired = Counter((report[2], report[3]) for report in reports if report[0] == "expired")
    assert expired == Counter(codes.items())
    assert {report[5] for report in reports if report[0] == "expired"} == {BEGIN_MS + TIMEOUT_MS}
    assert answered not in {report[2] for report in reports}
    if isinstance(store, Alternating):  # Redis deletes answered sessions itself
        assert sum(each.metrics.swept for each in store.stores) == len(codes)
    else:
        assert store.metrics.swept == len(codes) + 1


async def test_content_derived_codes_expire_before_they_are_created_again(open_store, under, clock):
    store, reports = await open_store(codes="content"), []
    store.observe(lambda *report: reports.append(report))
    one = under(store)
    code = await one.create()
    assert await one.create() == code
    clock.ms += TIMEOUT_MS
    assert await one.create() == code
    await one.withdraw(code)
    assert await one.create() == code
    assert [report[0] for report in reports] == ["created", "expired", "created", "withdrawn", "created"]


async def test_last_release_of_a_held_offer_is_a_withdrawal(one, store, reports):
    code = await one.create(lease=LEASES[0])
    assert reports == [("created", ORIGIN, code, "topic", BEGIN_MS, BEGIN_MS + MIN_HELD_MS)]
    await one.hold(code, LEASES[1])
    with pytest.raises(SessionNotFound):
        await one.release(code, LEASES[0])
    await one.release(code, LEASES[1])
    assert [report[:4] for report in reports[1:]] == [("withdrawn", ORIGIN, code, "topic")]
