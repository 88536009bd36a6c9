"""Server-Sent Events: changes of topics and sessions, and resuming without loss (docs/http-api.md#event-streams)."""

import asyncio
import contextlib
import itertools

import pytest
from support.service import HANDSHAKE, ORIGIN, OTHER, TIMEOUT_MS, TRANSPORTS, head, invalid, segment, with_origin
from support.sse import BOUND_S, open_stream, summarize

from tornado_signal.http import streams
from tornado_signal.system.lifecycle import LEAVING


@pytest.fixture
def follow(service):
    """A function that opens the stream of a topic or, given a code, of a session."""

    def begin(code=None, side="offerer", *, topic="lobby", **options):
        target = f"/{segment(topic)}/events" if code is None else f"/events?code={code}&side={side}"
        return open_stream(service.port, target, **options)

    return begin


async def answer(service, code):
    await service.post("/answer", code=code, side="answerer", answer="a")


async def withdraw(service, code, side="offerer"):
    await service.post("/withdraw", code=code, side=side)


async def expire(service):
    service.clock.ms += TIMEOUT_MS
    while await service.store.sweep(service.clock.ms):
        pass


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("kind", ["topic", "session"])
async def test_stream_headers_forbid_caching_and_buffering(kind, method, service, follow):
    code = await service.offer() if kind == "session" else None
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
            "Access-Control-Expose-Headers": "Retry-After, WWW-Authenticate, X-Request-Id",
        }
        if method == "GET":
            await stream.comment()
    if method == "HEAD":
        target = f"/events?code={code}&side=offerer" if code else "/lobby/events"
        response = await service.raw(head("HEAD", target, with_origin(ORIGIN, [("Connection", "close")])), "HEAD")
        assert (response.status, response.body) == (200, b"")
        assert len(service.store.watches) == 0


@pytest.mark.parametrize("kind", ["topic", "session"])
async def test_upgrade_is_refused_for_streams_and_ignored_elsewhere(kind, service):
    code = await service.offer()
    target = "/lobby/events" if kind == "topic" else f"/events?code={code}&side=offerer"
    other = [[("Connection", "Upgrade"), ("Upgrade", "h2c")], [("Upgrade", "x")]]
    for method, headers in itertools.product(("GET", "HEAD"), (HANDSHAKE, *other)):
        async with service.connect() as connection:
            await connection.send(head(method, target, with_origin(ORIGIN, headers)))
            response = await connection.receive(method)
            assert response.status == 400
            assert method == "HEAD" or response.json == {"error": invalid("Upgrade")}
            await connection.send(head("GET", "/lobby/sessions", with_origin(ORIGIN, headers)))
            assert [session["code"] for session in (await connection.receive()).json["sessions"]] == [code]
    assert len(service.store.watches) == 0


@pytest.mark.parametrize("kind", ["topic", "session"])
async def test_heartbeats_arrive_regularly_and_events_between_them(kind, service, follow, pass_time):
    code = await service.offer()
    async with follow(code if kind == "session" else None) as stream:
        if kind == "topic":
            await stream.listing()
        for comments in range(2, 5):  # the first one precedes all events
            for _ in range(2):
                if kind == "session":  # events that are filtered out delay no heartbeat
                    await service.post("/answer", code=code, side="offerer", candidate="its own")
                await pass_time(8)
            await stream.until(lambda comments=comments: stream.comments == comments)
        await service.post("/answer", code=code, side="answerer", answer="a")
        assert [event.name for event in await stream.take()] == ["gone" if kind == "topic" else "answer"]


@pytest.mark.parametrize("kind", ["topic", "session"])
async def test_draining_server_ends_streams_with_different_retry_values(kind, service, follow):
    code = await service.offer()
    async with contextlib.AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(follow(code if kind == "session" else None, "answerer")) for _ in range(50)
        ]
        for stream in opened:
            await stream.take()
            assert stream.retry_ms == streams.RETRY_MS
        await service.shared.drain()
        for stream in opened:
            assert await stream.rest() == []
        retries_ms = {stream.retry_ms for stream in opened}
    low_ms, high_ms = streams.RETURN_MS
    assert low_ms <= min(retries_ms) < max(retries_ms) <= high_ms
    assert len(retries_ms) > 25
    assert len(service.store.watches) == 0


async def test_draining_server_closes_event_sources_without_response_and_sends_others_503(service):
    service.shared.lifecycle.reach(LEAVING)
    service.store.end_watches()  # kept connections have time for one more request
    for _ in range(2):
        request = head("GET", "/lobby/events", with_origin(ORIGIN, [("Accept", "text/event-stream")]))
        assert await service.raw(request, "GET") is None
        assert (await service.call("GET", "/lobby/events")).status == 503
        await service.shared.drain()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("topic", ["lobby", "events", "a/b\0\n?#", "😀" * 256])
async def test_topic_stream_reports_added_and_removed_sessions(topic, service, follow):
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
        await answer(service, codes[1])
        await service.post("/answer", code=codes[1], side="answerer", candidate="c")
        await service.post("/refresh", code=codes[1], side="answerer")
        await withdraw(service, codes[2])
        await service.post("/refresh", code=codes[0], side="offerer")
        assert summarize(await stream.take(2)) == [("gone", codes[1], "answered"), ("gone", codes[2], "withdrawn")]
        await withdraw(service, codes[1], "answerer")
        await withdraw(service, codes[0], "answerer")
        await expire(service)
        assert summarize(await stream.take(2)) == [("gone", codes[0], "withdrawn"), ("gone", codes[3], "expired")]
        code = await service.offer(topic)
        assert summarize(await stream.take()) == [("session", code)]
        assert len({event.id for event in stream.events}) == len(stream.events)


async def test_client_that_has_used_up_its_bytes_refreshes_without_an_event(start_service):
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=100_000, session_timeout_ms=100_000)
    code = await service.offer(offer="o" * 50_000)
    async with open_stream(service.port, "/lobby/events") as stream:
        await stream.listing()
        for events, after_ms in ((1, 1), (0, 1), (0, 1), (1, 10_000)):
            service.clock.ms += after_ms
            serial = service.store.memory.removals.last
            await service.post("/refresh", code=code, side="offerer")
            assert service.store.memory.removals.last == serial + events
            (session,) = await service.sessions()
            assert session["expiresAt"] == service.clock.ms + 100_000
            assert [event.data for event in await stream.take(events)] == [session] * events


async def test_sessions_withdrawn_during_a_long_catch_up_are_reported_gone(service, follow):
    async with follow() as stream:
        await stream.listing()
    codes = [await service.offer(offer="o" * 100_000) for _ in range(120)]
    async with follow(last=stream.last) as slow:
        await slow.take(3)  # the rest does not fit into the socket buffers
        await asyncio.gather(*(withdraw(service, code) for code in codes[3:]))
        code = await service.offer()
        await slow.until(lambda: slow.events[-1].data["code"] == code)
    events = summarize(slow.events)
    added, gone = ([event[1] for event in events if event[0] == name] for name in ("session", "gone"))
    assert added == [published for published in [*codes, code] if published in added]
    assert sorted(gone) == sorted(added[3:-1])
    assert all(events.index(("session", code)) < events.index(("gone", code, "withdrawn")) for code in gone)
    assert len(added) < 121, "everything was sent before the withdrawals"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_session_stream_reports_the_messages_of_the_other_side(service, follow):
    code = await service.offer()
    async with follow(code, "offerer") as offerer, follow(code.upper(), "answerer") as answerer:
        assert [(event.name, event.data) for event in await answerer.take()] == [("offer", {"offer": "an offer"})]
        await service.post("/answer", code=code, side="answerer", candidate="early\n\r\0😀")
        await service.post("/answer", code=code, side="answerer", answer="a\n\ndata: x")
        await service.post("/answer", code=code, side="answerer", candidates=["c1", "c1", "c2"])
        await service.post("/answer", code=code, side="offerer", candidates=["o1", "o2"])
        assert [(event.name, event.data) for event in await offerer.take(5)] == [
            ("candidate", {"candidate": "early\n\r\0😀"}),
            ("answer", {"answer": "a\n\ndata: x"}),
            *(("candidate", {"candidate": text}) for text in ("c1", "c1", "c2")),
        ]
        assert [event.data for event in await answerer.take(2)] == [{"candidate": "o1"}, {"candidate": "o2"}]
        await service.post("/withdraw", code=code, side="answerer")
        for stream in (offerer, answerer):
            assert summarize(await stream.rest()) == [("gone", code, "withdrawn")]
            ids = [event.id for event in stream.events]
            assert len(set(ids[:-1])) == len(ids) - 1
    assert len(service.store.watches) == 0


@pytest.mark.parametrize("trigger", ["swept", "passed"])
async def test_session_stream_ends_when_the_session_expires_unless_it_was_refreshed(
    trigger, service, follow, monkeypatch
):
    monkeypatch.setattr(streams, "HEARTBEAT_S", 1.0)  # when a stream looks again
    code = await service.offer()
    service.clock.ms += TIMEOUT_MS - 100
    async with follow(code, "answerer") as stream:
        await stream.take()
        await service.post("/refresh", code=code, side="offerer")
        service.clock.ms += 100
        await service.post("/answer", code=code, side="offerer", candidate="c")
        assert [event.name for event in await stream.take()] == ["candidate"]
        service.clock.ms += TIMEOUT_MS - 200 if trigger == "passed" else 2 * TIMEOUT_MS
        if trigger == "swept":
            await service.store.sweep(service.clock.ms)
        else:
            await service.get("/health")
            service.clock.ms += 200
        assert summarize(await stream.rest()) == [("gone", code, "expired")]


async def test_listing_and_events_for_many_streams_are_encoded_once_and_none_of_an_expired_session_is_sent(
    service, follow, monkeypatch
):
    encoded, encode = [], streams.encode

    def encoding(name, data, cursor):
        encoded.extend(filter(None, [name]))  # the mark after a listing has no type: it is encoded for each stream
        return encode(name, data, cursor)

    monkeypatch.setattr(streams, "encode", encoding)
    codes = [await service.offer(info=str(number)) for number in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(follow()) for _ in range(20)]
        for stream in opened:
            assert summarize(await stream.listing()) == [("session", code) for code in codes]
        assert len(encoded) == len(codes)
        encoded.clear()

        async def check(*event):
            for stream in opened:
                assert summarize(await stream.take()) == [event]
            assert encoded == [event[0]]
            encoded.clear()

        last = await service.offer()
        await check("session", last)
        await answer(service, codes[0])
        await check("gone", codes[0], "answered")
        await withdraw(service, codes[1])
        await check("gone", codes[1], "withdrawn")
        await expire(service)
        await check("gone", last, "expired")
        position = stream.last
        await check("session", await service.offer())
    service.clock.ms += TIMEOUT_MS
    async with follow(last=position) as stream:  # the cached event of an expired session is not sent
        code = await service.offer()
        assert summarize(await stream.take()) == [("session", code)]


async def test_cursor_of_another_store_starts_over_at_once(start_service):
    first, second = [await start_service(codes="content") for _ in range(2)]
    for number, service in enumerate((first, second)):
        code = await service.offer(offer="the same")
        await service.post("/answer", code=code, side="offerer", candidates=[f"{number} a", f"{number} b"])
    for number in range(5):  # the first one has stored more
        await first.offer(offer=f"{number}")
    async with open_stream(first.port, "/lobby/events") as stream:
        await stream.listing()
    for last in (stream.last, stream.events[1].id):
        async with open_stream(second.port, "/lobby/events", last=last) as stream:
            assert summarize(await stream.listing()) == [("reset",), ("session", code)]
            new = await second.offer(offer=last)
            assert summarize(await stream.take()) == [("session", new)]
            assert stream.last.split(".")[0] == second.store.memory.generation != last.split(".")[0]
            await second.post("/withdraw", code=new, side="offerer")
    for topic, count in (("empty", 0), ("lobby", 1)):
        cursor = (await first.get(f"/{topic}/sessions?wait=0"))["cursor"]
        async with asyncio.timeout(BOUND_S):
            result = await second.get(f"/{topic}/sessions?since={cursor}&wait=60")
        assert (len(result["sessions"]), result["cursor"] != cursor) == (count, True)
        again = await second.get(f"/{topic}/sessions?since={result['cursor']}&wait=0")
        assert again["cursor"] == result["cursor"]
    poll = {"code": code, "side": "answerer"}
    cursors = [(await service.post("/poll", **poll, wait=0))["cursor"] for service in (first, second)]
    async with asyncio.timeout(BOUND_S):
        update = await second.post("/poll", **poll, since=cursors[0], wait=60)
    assert (update["offer"], update["offerCandidates"]) == ("the same", ["1 a", "1 b"])
    assert update["cursor"] == cursors[1] != cursors[0]
    assert (await second.post("/poll", **poll, since=cursors[1], wait=0))["offerCandidates"] == []
    target = f"/events?code={code}&side=answerer"
    async with open_stream(first.port, target) as stream:
        await stream.take(3)
    async with open_stream(second.port, target, last=stream.last) as stream:
        assert [event.name for event in await stream.take(3)] == ["offer", "candidate", "candidate"]
        assert stream.events[1].data["candidate"] == "1 a"


async def test_topic_stream_resumes_from_every_event(service, follow):
    """Each session is sent once, and again after a refresh. Only known sessions are reported gone."""
    codes = [await service.offer() for _ in range(3)]
    async with follow() as stream:
        await stream.listing()
        await withdraw(service, codes[0])
        codes.append((await service.post("/lobby/offer", info="i", offer="o", ttl=1000))["code"])
        service.clock.ms += 1
        for code in codes[1:3]:
            await service.post("/refresh", code=code, side="offerer")
        await answer(service, codes[2])
        await service.post("/refresh", code=codes[3], side="offerer")
        await stream.until(lambda: stream.events[-1].data.get("expiresAt") == service.clock.ms + 1000)
    for refresh in (None, codes[3], codes[1]):  # the batches of these positions are cached
        if refresh is not None:
            service.clock.ms += 900
            await service.post("/refresh", code=refresh, side="offerer")
        listed = {session["code"]: session["expiresAt"] for session in await service.sessions()}
        for at, event in enumerate(stream.events):
            async with follow(last=event.id) as again:
                known, events = {}, stream.events[: at + 1]
                while events or known != listed:
                    name, data, _ = events.pop(0) if events else (await again.take())[0]
                    if name == "gone":
                        del known[data["code"]]
                    else:
                        assert known.get(data["code"], 0) < data["expiresAt"]
                        known[data["code"]] = data["expiresAt"]
