"""Server-Sent Events: what comes, who goes, and resuming anywhere with nothing lost or doubled (contract C3)."""

import asyncio
import contextlib
import itertools
import signal
import time
from urllib.parse import quote, urlencode

import pytest
from support.service import NO_SUCH_CODE, NOT_FOUND, ORIGIN, OTHER, TIMEOUT_MS, head, invalid, refused, with_origin
from support.sse import open_stream, summarize

from tornado_signal.http import streams

SECRET = "a secret of the offerer"


@pytest.fixture
def follow(service):
    """A function that opens a topic's stream, or with a code a session's."""

    def begin(code=None, side="offerer", *, topic="lobby", secret=None, **options):
        target = f"/{quote(topic, safe='')}/events"
        if code is not None:
            target = "/events?" + urlencode({"code": code, "side": side} | ({"secret": secret} if secret else {}))
        return open_stream(service.port, target, **options)

    return begin


def step_of(service):
    """Coroutine functions for what may happen to the topic `lobby`."""

    async def come(**fields):
        return (await service.post("/lobby/offer", **{"info": "i", "offer": "o"} | fields))["code"]

    async def answer(code):
        await service.post("/answer", code=code, side="answerer", answer="a")

    async def withdraw(code, side="offerer"):
        await service.post("/withdraw", code=code, side=side)

    async def expire(after_ms=TIMEOUT_MS):
        service.clock.ms += after_ms
        while await service.store.expiry.sweep(service.clock.ms):
            pass

    return come, answer, withdraw, expire


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_no_cache_and_no_proxy_keeps_a_stream(whose, method, service, follow):
    code = await service.offer() if whose == "session" else None
    async with follow(code, method=method) as stream:
        assert stream.status == 200
        headers = dict(stream.headers)
        assert headers.pop("Date")
        assert headers.pop("X-Request-Id")
        assert headers.pop("Transfer-Encoding", None) == ("chunked" if method == "GET" else None)
        assert headers == {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Vary": "Origin",
            "Access-Control-Allow-Origin": ORIGIN,
        }
        if method == "GET":
            await stream.comment()
    if method == "HEAD":
        target = f"/events?code={code}&side=offerer" if code else "/lobby/events"
        response = await service.raw(head("HEAD", target, with_origin(ORIGIN, [("Connection", "close")])), "HEAD")
        assert (response.status, response.body) == (200, b"")
        assert len(service.store.watches) == 0


OF_NO_SESSION = f"/events?code={NO_SUCH_CODE}&side=offerer"
REFUSED = [
    ("/events?side=offerer", None, 400, "code"),
    ("/events?code=&side=offerer", None, 400, "code"),
    (OF_NO_SESSION + "&code=x", None, 400, "code"),
    (f"/events?code={NO_SUCH_CODE}", None, 400, "side"),
    (f"/events?code={NO_SUCH_CODE}&side=both", None, 400, "side"),
    (OF_NO_SESSION + "&secret=short", None, 400, "secret"),
    (OF_NO_SESSION + f"&secret={'s' * 257}", None, 400, "secret"),
    (OF_NO_SESSION, None, 404, None),
    ("/events?code=x&side=offerer", None, 404, None),
    (OF_NO_SESSION, "x", 400, "Last-Event-ID"),
    ("/lobby/events", "1.00000000", 400, "Last-Event-ID"),
    ("/lobby/events", "f" * 5000, 400, "Last-Event-ID"),
    (f"/{'t' * 257}/events", None, 400, "topic"),
    ("/%ff/events", None, 400, "topic"),
]


async def test_what_cannot_be_followed_is_refused_in_json(service):
    for target, last, status, parameter in REFUSED:
        headers = [("Last-Event-ID", last)] if last else []
        response = await service.call("GET", target, headers=headers)
        assert refused(response) == (status, invalid(parameter) if parameter else NOT_FOUND), (target, last)
    assert len(service.store.watches) == 0


WEBSOCKET = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]


@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_an_upgrade_of_a_stream_is_refused_and_elsewhere_ignored(whose, service):
    code = await service.offer()
    target = "/lobby/events" if whose == "topic" else f"/events?code={code}&side=offerer"
    other = [[("Connection", "Upgrade"), ("Upgrade", "h2c")], [("Upgrade", "x")]]
    for method, headers in itertools.product(("GET", "HEAD"), (WEBSOCKET, *other)):
        async with service.connect() as connection:
            await connection.send(head(method, target, with_origin(ORIGIN, headers)))
            response = await connection.receive(method)
            assert response.status == 400
            assert method == "HEAD" or response.json == {"error": invalid("Upgrade")}
            await connection.send(head("GET", "/lobby/sessions", with_origin(ORIGIN, headers)))
            assert [each["code"] for each in (await connection.receive()).json["sessions"]] == [code]
    assert len(service.store.watches) == 0


async def test_an_id_of_something_else_is_refused(service, follow):
    codes = [await service.offer(), await service.offer()]
    async with follow() as topic, follow(codes[0], "answerer") as session:
        await topic.listing()
        await session.take()
    cases = [("/lobby/events", session.last, ORIGIN), ("/lobbies/events", topic.last, ORIGIN)]
    cases += [("/lobby/events", topic.last, OTHER), (f"/events?code={codes[0]}&side=answerer", topic.last, ORIGIN)]
    cases += [(f"/events?code={codes[0]}&side=offerer", session.last, ORIGIN)]
    cases += [(f"/events?code={codes[1]}&side=answerer", session.last, ORIGIN)]
    for target, last, origin in cases:
        response = await service.call("GET", target, headers=[("Last-Event-ID", last)], origin=origin)
        assert refused(response) == (400, invalid("Last-Event-ID")), target


async def test_a_side_with_a_secret_is_followed_with_it_only(service, follow):
    code = (await service.post("/lobby/offer", info="i", offer="o", secret=SECRET))["code"]
    await service.post("/answer", code=code, side="answerer", answer="a")
    target = f"/events?code={code}&side=offerer"
    for secret in ("", "&secret=" + quote(SECRET + "!"), "&secret=" + quote(SECRET.upper())):
        assert refused(await service.call("GET", target + secret)) == (404, NOT_FOUND)
    async with follow(code, secret=SECRET) as offerer, follow(code, "answerer") as answerer:
        assert [each.name for each in await offerer.take()] == ["answer"]
        assert [each.name for each in await answerer.take()] == ["offer"]


@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_comments_come_in_time_and_events_between_them(whose, service, follow, monkeypatch):
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.1)
    code = await service.offer()
    began_s = time.monotonic()
    async with follow(code if whose == "session" else None) as stream:
        if whose == "topic":
            await stream.listing()
        await stream.until(lambda: stream.comments == 5)  # one of them at the beginning
        assert time.monotonic() - began_s > 0.3
        await service.post("/answer", code=code, side="answerer", answer="a")
        assert [each.name for each in await stream.take()] == ["gone" if whose == "topic" else "answer"]


@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_streams_of_a_server_that_drains_end_with_different_times_to_come_back(whose, service, follow):
    code = await service.offer()
    async with contextlib.AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(follow(code if whose == "session" else None, "answerer")) for _ in range(50)
        ]
        for stream in opened:
            await stream.take()
            assert stream.retry_ms == streams.RETRY_MS
        await service.shared.drain()
        for stream in opened:
            assert await stream.rest() == []
        told_ms = {stream.retry_ms for stream in opened}
    low_ms, high_ms = streams.RETURN_MS
    assert low_ms <= min(told_ms) < max(told_ms) <= high_ms
    assert len(told_ms) > 25
    assert len(service.store.watches) == 0


async def test_while_the_server_drains_an_event_source_is_cut_off_and_others_get_503(service):
    await service.shared.drain()
    request = head("GET", "/lobby/events", with_origin(ORIGIN, [("Accept", "text/event-stream")]))
    assert await service.raw(request, "GET") is None
    assert (await service.call("GET", "/lobby/events")).status == 503


async def test_a_topic_begins_with_its_listing(service, follow):
    come, answer, withdraw, expire = step_of(service)
    async with follow() as stream:
        assert await stream.listing() == []
    await come()
    await expire()
    codes = [await come(info=str(n)) for n in range(130)]
    await answer(codes.pop(3))
    await withdraw(codes.pop(60))
    await service.post("/answer", code=codes[0], side="offerer", candidates=["c1", "c2"])
    async with follow() as stream:
        events = await stream.listing()
        assert {each.name for each in events} == {"session"}
        assert [each.data for each in events] == (await service.sessions())[::-1]
        assert len({each.id for each in events}) == len(events)
    assert [each.data["code"] for each in events] == codes
    assert events[0].data["offerCandidates"] == ["c1", "c2"]


@pytest.mark.parametrize("topic", ["lobby", "events", "a/b\0\n?#", "😀" * 256])
async def test_a_topic_tells_who_comes_and_who_goes(topic, service, follow):
    _, answer, withdraw, expire = step_of(service)
    async with follow(topic=topic) as stream:
        await stream.listing()
        codes = []
        for n in range(4):
            codes.append(await service.offer(topic, info=str(n)))
            await service.offer(topic + "x" if len(topic) < 256 else "x")
            await service.offer(topic, origin=OTHER)
            listed = (await service.sessions(topic))[0]
            (event,) = await stream.take()
            assert (event.name, event.data) == ("session", listed)
        await answer(codes[1])
        await service.post("/answer", code=codes[1], side="answerer", candidate="c")
        await service.post("/refresh", code=codes[1], side="answerer")
        await withdraw(codes[2])
        await service.post("/refresh", code=codes[0], side="offerer")
        assert summarize(await stream.take(2)) == [("gone", codes[1], "answered"), ("gone", codes[2], "withdrawn")]
        await withdraw(codes[1], "answerer")
        await withdraw(codes[0], "answerer")
        await expire()
        assert summarize(await stream.take(2)) == [("gone", codes[0], "withdrawn"), ("gone", codes[3], "expired")]
        code = await service.offer(topic)
        assert summarize(await stream.take()) == [("session", code)]
        assert len({each.id for each in stream.events}) == len(stream.events)


async def record(service, follow):
    """A topic's stream through all that may happen, from a listing of three; the last event is a session's."""
    come, answer, withdraw, expire = step_of(service)
    codes = [await come(ttl=60_000) for _ in range(3)]
    async with follow() as stream:
        await stream.listing()
        points = [each.id for each in stream.events] + [stream.last]
        before = len(stream.events)
        codes += [await come(ttl=60_000) for _ in range(2)]
        await answer(codes[1])
        passing = await come()
        await withdraw(codes[3])
        await answer(passing)
        codes.append(await come())
        await expire(60_000)
        codes.append(await come())
        await stream.take(2 + 1 + 1 + 2 + 1 + 3 + 1)  # three expire
    return points, stream.events[:before], stream.events[before:]


async def check_every_point(port, points, listing, events, come):
    """Resume at every id of a recorded stream, and there is what a client does not have yet."""
    ids = points + [each.id for each in events]
    recorded = listing + events
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for at, last in enumerate(ids):
            stream = await stack.enter_async_context(open_stream(port, "/lobby/events", last=last))
            # The bare id behind the listing stands for all of it, and does so for the same place in the record.
            had = recorded[: at + 1 if at < len(listing) else at]
            missed = recorded[len(had) :]
            came = {each.data["code"] for each in missed if each.name == "session"}
            gone = {each.data["code"] for each in missed if each.name == "gone"}
            expected = [each for each in missed if each.data["code"] not in came & gone]
            expected.sort(key=lambda each: each.name != "gone")  # what has left first, then what has come
            await stream.take(len(expected))
            assert summarize(stream.events) == summarize(expected), at
            opened.append(stream)
        code = await come()
        for stream in opened:
            assert summarize(await stream.take()) == [("session", code)]


async def test_a_topic_resumes_from_every_point(service, follow):
    come, *_ = step_of(service)
    await check_every_point(service.port, *await record(service, follow), come)


async def test_streams_resume_at_every_id_after_the_server_was_killed(start):
    server = start()
    port = int(server.url.rpartition(":")[2])

    async def come(topic="lobby"):
        return await asyncio.to_thread(server.offer, topic)

    async def act(path, **body):
        status, _ = await asyncio.to_thread(server.call, path, body)
        assert status == 200

    async def send(**candidates):
        await act("/answer", code=followed, side="answerer", **candidates)

    codes = [await come() for _ in range(2)]
    followed = await come("elsewhere")
    target = f"/events?code={followed}&side=offerer"
    recorded, last, got = [], None, []
    for step in range(3):
        async with (
            open_stream(port, "/lobby/events", last=last) as stream,
            open_stream(port, target, last=got[-1].id if got else None) as session,
        ):
            if step == 0:
                await stream.listing()
                points, listing = [each.id for each in stream.events] + [stream.last], list(stream.events)
            codes += [await come(), await come()]
            await act("/answer", code=codes.pop(0), side="answerer", answer="a")
            await act("/withdraw", code=codes.pop(), side="offerer")
            codes.append(await come())
            recorded += await stream.take(5)
            last = stream.last
            await send(candidates=[f"{step} a", f"{step} b"])
            got += await session.take(2 if step == 0 else 3)
        await send(candidate=f"{step} missed")
        server.stop(signal.SIGKILL)
        server = start(port=port)
    assert last == recorded[-1].id
    await check_every_point(port, points, listing, recorded, come)
    everything = [f"{step} {name}" for step in range(3) for name in ("a", "b", "missed")]
    assert [each.data["candidate"] for each in got] == everything[:-1]
    for at, event in enumerate(got):
        async with open_stream(port, target, last=event.id) as session:
            assert [each.data["candidate"] for each in await session.take(8 - at)] == everything[at + 1 :]


async def test_what_expires_while_the_server_is_down_is_gone(start):
    server = start("--session-timeout-ms", 1500, "--sweep-interval-ms", 50)
    port = int(server.url.rpartition(":")[2])
    code = server.offer()
    async with open_stream(port, "/lobby/events") as stream:
        await stream.listing()
    server.stop(signal.SIGKILL)
    server = start("--session-timeout-ms", 1500, "--sweep-interval-ms", 50, port=port)
    async with open_stream(port, "/lobby/events", last=stream.last) as again:
        assert summarize(await again.take()) == [("gone", code, "expired")]


async def test_sessions_that_end_between_pieces_of_a_long_catch_up(service, follow):
    come, _, withdraw, _ = step_of(service)
    async with follow() as stream:
        await stream.listing()
    codes = [await come(offer="o" * 100_000) for _ in range(120)]
    async with follow(last=stream.last) as slow:
        await slow.take(3)  # the rest does not fit into the buffers between us
        await asyncio.gather(*(withdraw(code) for code in codes[3:]))
        code = await come()
        await slow.until(lambda: slow.events[-1].data["code"] == code)
    found = summarize(slow.events)
    came, gone = ([each[1] for each in found if each[0] == name] for name in ("session", "gone"))
    assert came == [each for each in [*codes, code] if each in came]
    assert sorted(gone) == sorted(came[3:-1])
    assert all(found.index(("session", each)) < found.index(("gone", each, "withdrawn")) for each in gone)
    assert len(came) < 121, "it was all on its way already"


async def test_a_session_tells_what_the_other_side_sends(service, follow):
    code = await service.offer()
    async with follow(code, "offerer") as offerer, follow(code.upper(), "answerer") as answerer:
        assert [(each.name, each.data) for each in await answerer.take()] == [("offer", {"offer": "an offer"})]
        await service.post("/answer", code=code, side="answerer", candidate="early\n\r\0😀")
        await service.post("/answer", code=code, side="answerer", answer="a\n\ndata: x")
        await service.post("/answer", code=code, side="answerer", candidates=["c1", "c1", "c2"])
        await service.post("/answer", code=code, side="offerer", candidates=["o1", "o2"])
        assert [(each.name, each.data) for each in await offerer.take(5)] == [
            ("candidate", {"candidate": "early\n\r\0😀"}),
            ("answer", {"answer": "a\n\ndata: x"}),
            *(("candidate", {"candidate": text}) for text in ("c1", "c1", "c2")),
        ]
        assert [each.data for each in await answerer.take(2)] == [{"candidate": "o1"}, {"candidate": "o2"}]
        await service.post("/withdraw", code=code, side="answerer")
        for stream in (offerer, answerer):
            assert summarize(await stream.rest()) == [("gone", code, "withdrawn")]
            ids = [each.id for each in stream.events]
            assert len(set(ids[:-1])) == len(ids) - 1
    assert len(service.store.watches) == 0


@pytest.mark.parametrize("how", ["swept", "passed"])
async def test_a_session_that_expires_ends_its_stream_swept_or_not(how, service, follow):
    code = await service.offer()
    if how == "passed":
        service.clock.ms += TIMEOUT_MS - 200
    async with follow(code, "answerer") as stream:
        await stream.take()
        service.clock.ms += TIMEOUT_MS if how == "swept" else 200
        if how == "swept":
            await service.store.expiry.sweep(service.clock.ms)
        assert summarize(await stream.rest()) == [("gone", code, "expired")]


async def test_a_stream_passes_an_expiry_that_a_refresh_has_moved(service, follow):
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    async with follow(code) as stream:
        await stream.comment()
        await service.post("/refresh", code=code, side="offerer")
        service.clock.ms += 100
        await service.post("/answer", code=code, side="answerer", answer="a")
        assert [each.name for each in await stream.take()] == ["answer"]
        await service.post("/withdraw", code=code, side="offerer")
        assert summarize(await stream.rest()) == [("gone", code, "withdrawn")]


async def test_a_session_resumes_from_every_point(service, follow):
    code = await service.offer()
    for fields in [{"candidate": "0"}, {"candidates": ["1", "2", "3"]}, {"answer": "a"}, {"candidates": ["4", "5"]}]:
        await service.post("/answer", code=code, side="answerer", **fields)
    async with follow(code) as stream, contextlib.AsyncExitStack() as stack:
        recorded = await stream.take(7)
        opened = []
        for at, event in enumerate(recorded):
            opened.append(await stack.enter_async_context(follow(code, last=event.id)))
            assert await opened[-1].take(6 - at) == recorded[at + 1 :]
        await service.post("/answer", code=code, side="answerer", candidate="6")
        for each in [stream, *opened]:
            assert [event.data for event in await each.take()] == [{"candidate": "6"}]
        await service.post("/withdraw", code=code, side="offerer")
        for each in [stream, *opened]:
            assert summarize(await each.rest()) == [("gone", code, "withdrawn")]
    response = await service.call(
        "GET", f"/events?code={code}&side=offerer", headers=[("Last-Event-ID", recorded[0].id)]
    )
    assert refused(response) == (404, NOT_FOUND)


@pytest.mark.parametrize("reason", ["withdrawn", "expired"])
async def test_ids_and_cursors_of_an_earlier_session_of_the_same_content_are_refused(reason, start_service):
    service = await start_service(codes="content")
    code = await service.offer()
    answerer, target = {"code": code, "side": "answerer"}, f"/events?code={code}&side=answerer"
    cursor = (await service.post("/poll", **answerer, wait=0))["cursor"]
    async with open_stream(service.port, target) as stream:
        await stream.take()
        if reason == "withdrawn":
            await service.post("/withdraw", **answerer)
        else:
            service.clock.ms += TIMEOUT_MS
        assert await service.offer() == code
        assert summarize(await stream.rest()) == [("gone", code, reason)]
    response = await service.call("GET", target, headers=[("Last-Event-ID", stream.last)])
    assert refused(response) == (400, invalid("Last-Event-ID"))
    assert refused(await service.call("POST", "/poll", answerer | {"since": cursor})) == (400, invalid("since"))
    assert (await service.post("/poll", **answerer, wait=60))["offer"] == "an offer"


# Many streams of one topic.

STREAMS = 50


@pytest.fixture
def encoded(monkeypatch):
    """The events that have been made, in their order."""
    made = []
    encode = streams.encode

    def encoding(event):
        made.extend(filter(None, [event.type]))  # but for the mark behind a listing, which is each stream's own
        return encode(event)

    monkeypatch.setattr(streams, "encode", encoding)
    return made


async def test_an_event_for_many_streams_is_made_once(service, follow, encoded):
    come, answer, withdraw, expire = step_of(service)
    async with contextlib.AsyncExitStack() as ends:
        opened = [await ends.enter_async_context(follow()) for _ in range(STREAMS)]
        for stream in opened:
            await stream.listing()
        codes = []

        async def check(*events):
            for stream in opened:
                assert summarize(await stream.take(len(events))) == list(events)
            assert encoded == [name for name, *_ in events]
            encoded.clear()

        for _ in range(3):
            codes.append(await come())
            await check(("session", codes[-1]))
        await answer(codes[0])
        await check(("gone", codes[0], "answered"))
        await withdraw(codes[1])
        await check(("gone", codes[1], "withdrawn"))
        await expire()
        await check(("gone", codes[2], "expired"))


async def test_a_listing_for_many_streams_is_made_once(service, follow, encoded):
    codes = [await service.offer(info=str(number)) for number in range(5)]
    async with contextlib.AsyncExitStack() as ends:
        for _ in range(STREAMS):
            stream = await ends.enter_async_context(follow())
            assert summarize(await stream.listing()) == [("session", code) for code in codes]
    assert len(encoded) == len(codes)


async def test_streams_that_resume_from_one_place_at_different_times(service, follow):
    come, answer, withdraw, expire = step_of(service)
    first = await come()
    async with follow() as stream:
        await stream.listing()
        last = stream.last
    present = {first}
    async with contextlib.AsyncExitStack() as ends:
        opened = []
        for number in range(13):
            present.add(code := await come())
            if number % 3 == 1:
                await withdraw(code)
                present.remove(code)
            if number == 5:
                await answer(first)
                present.remove(first)
            opened.append(await ends.enter_async_context(follow(last=last)))
            await opened[-1].until(lambda: left_in(opened[-1], first) == present)
        for stream in opened:
            await stream.until(lambda stream=stream: left_in(stream, first) == present)
            found = summarize(stream.events)
            assert len(set(found)) == len(found)
            assert found.count(("gone", first, "answered")) == 1
        await expire()
        for stream in opened:
            await stream.until(lambda stream=stream: not left_in(stream, first))
            gone = [each[1] for each in summarize(stream.events) if each[0] == "gone"]
            assert len(set(gone)) == len(gone)
            assert present <= set(gone)


def left_in(stream, known):
    """The sessions that a client knows of, beside one that it knew before."""
    found = {known}
    for each in stream.events:
        (found.discard if each.name == "gone" else found.add)(each.data["code"])
    return found


async def test_an_event_of_an_expired_session_is_not_sent_to_the_next_stream(service, follow):
    async with follow() as stream:
        await stream.listing()
        last = stream.last
        code = await service.offer()
        assert summarize(await stream.take()) == [("session", code)]
    service.clock.ms += TIMEOUT_MS
    async with follow(last=last) as stream:
        code = await service.offer()
        assert summarize(await stream.take()) == [("session", code)]
