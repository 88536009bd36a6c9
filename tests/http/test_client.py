"""The Python client: every method against the real server, and its behaviour when servers fail."""

import asyncio
import contextlib
import sys
import time
from contextlib import aclosing
from signal import SIGKILL, SIGTERM

import pytest
from support.bare_server import BareServer
from support.rpc import until
from support.service import NOT_FOUND, ORIGIN
from support.waiting import output, run_command

from tornado_signal_client import Event, SignalClient, SignalError, http
from tornado_signal_client.api import topic_of
from tornado_signal_client.errors import Unreachable
from tornado_signal_client.tasks import back_off_s

BOUND_S = 20
SECRET = "s" * 16
DEAD_URL = "http://127.0.0.1:1"


@pytest.fixture
def client(websocket, io_loop, service):
    """A client of a new server, over its WebSocket or over HTTP."""
    signal_client = SignalClient(service.url, ORIGIN, retry_timeout_s=0, websocket=websocket)
    io_loop.run_sync(lambda: signal_client.sessions("none", wait_s=0))
    yield signal_client
    io_loop.run_sync(signal_client.close)
    metrics = service.shared.log.metrics
    assert ("WS" in {method for _, method, _ in [*metrics.requests, *metrics.waits]}) == websocket


@contextlib.asynccontextmanager
async def listening_server(handle):
    """Serve each connection with `handle`, or with these bytes after a request, and yield the URL."""

    async def reply(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(handle)
        writer.close()

    server = await asyncio.start_server(reply if isinstance(handle, bytes) else handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def take(iterator, count):
    return [await asyncio.wait_for(anext(iterator), BOUND_S) for _ in range(count)]


async def test_rooms_are_listed_by_name(client):
    names = ["Chess", "a b", "a/1", "a~2f~1", "é\U0001f600"]
    for name in names:
        await client.offer(topic_of(name), "i", "o")
    for foreign in ("other", "room", "room~~10ffff~~110000~"):
        await client.offer(foreign, "i", "o")
    found = [room["name"] for room in (await client.rooms())["rooms"]]
    assert sorted(found) == sorted([*names, "\U0010ffff~110000~"])
    page = await client.rooms(limit=1, prefix="a/")
    assert (page["rooms"], page["pagination"]["total"]) == ([{"name": "a/1", "members": 1}], 1)


@pytest.mark.parametrize("topic", ["lobby", "a/b c%2F+?&#é😀", "\0", ".", "..", "x" * 256])
async def test_two_peers_connect_using_every_method(client, topic):
    code = await client.offer(topic, "alice", "an offer", ttl_ms=5000, secret=SECRET)
    assert (await client.topics())["topics"] == [{"topic": topic, "count": 1}]
    await client.candidates(code, "offerer", ["one", "two"], secret=SECRET)
    (session,) = (await client.sessions(topic)).sessions
    assert session["code"] == code
    assert (session["info"], session["offer"], session["offerCandidates"]) == ("alice", "an offer", ["one", "two"])
    assert session["expiresAt"] == session["createdAt"] + 5000
    await client.answer(session["code"], "an answer")
    await client.candidates(code, "answerer", [f"c{number}" for number in range(250)])
    update = await client.poll(code, "offerer", wait_s=0, secret=SECRET)
    assert update.description == "an answer"
    assert update.candidates == [f"c{number}" for number in range(250)]
    again = await client.poll(code, "offerer", since=update.cursor, secret=SECRET)
    assert (again.description, again.candidates) == ("an answer", [])
    assert (await client.poll(code, "answerer"))[:2] == ("an offer", ["one", "two"])
    assert await client.refresh(code, "answerer") >= session["expiresAt"]
    await client.withdraw(code, "offerer", secret=SECRET)
    with pytest.raises(SignalError, match="404 Session not found"):
        await client.poll(code, "offerer", secret=SECRET)


async def test_version_health_and_ice_servers(client, service):
    assert await client.version() == (await service.get("/"))["version"]
    assert await client.health() == {"status": "ok", "timestamp": service.clock.ms}
    assert await client.ice_servers() == await service.get("/ice-servers")


async def test_default_origin_is_that_of_the_first_server(service):
    async with SignalClient([service.url + "/", DEAD_URL]) as client:
        await client.offer("lobby", "i", "o")
    assert await service.topics(origin=service.url) == [("lobby", 1)]
    assert await service.topics() == []


async def test_api_error_has_the_status_and_text_of_the_response(client):
    code, protected = await client.offer("lobby", "i", "o"), await client.offer("lobby", "i", "o", secret=SECRET)
    await client.answer(code, "an answer")
    await client.answer(code, "an answer")  # a retry
    await client.answer(protected, "first", secret="1" * 16)
    for call, status, text in (
        (client.offer("t" * 257, "i", "o"), 400, "Missing or invalid required parameter: topic"),
        (client.poll("x", "offerer"), 404, NOT_FOUND),
        (client.answer(protected, "second", secret="2" * 16), 404, NOT_FOUND),
        (client.answer(code, "another"), 409, "Session already answered"),
        (client.offer("t", "i", "o" * 300_000), 413, "Request body too large"),
    ):
        with pytest.raises(SignalError) as caught:
            await call
        assert (caught.value.status, caught.value.text, caught.value.retry_after_s) == (status, text, None)
        assert caught.value.lost_race == (status in (404, 409))


async def test_listings_and_news_iterate_until_the_session_ends(client):
    async with aclosing(client.listings("lobby")) as listings:
        assert (await anext(listings)).sessions == []
        later = asyncio.ensure_future(anext(listings))
        code = await client.offer("lobby", "i", "o")
        assert [session["code"] for session in (await asyncio.wait_for(later, BOUND_S)).sessions] == [code]
    news = client.news(code, "offerer")
    later = asyncio.ensure_future(anext(news))
    await client.candidates(code, "answerer", ["one"])
    assert (await asyncio.wait_for(later, BOUND_S))[:2] == (None, ["one"])
    later = asyncio.ensure_future(anext(news))
    await client.answer(code, "a")
    assert (await asyncio.wait_for(later, BOUND_S))[:2] == ("a", [])
    later = asyncio.ensure_future(anext(news))
    await client.withdraw(code, "answerer")
    with pytest.raises(SignalError, match="404"):
        await asyncio.wait_for(later, BOUND_S)


async def test_methods_work_without_the_optional_features(service):
    with BareServer(service.url) as bare:
        client = SignalClient(bare.url, ORIGIN, retry_timeout_s=0)
        assert await client.ice_servers() is None
        async with aclosing(client.listings("lobby")) as listings:
            assert await anext(listings) == ([], None)
            code = await client.offer("lobby", "i", "o", ttl_ms=5000, secret=SECRET)
            assert (await take(listings, 1))[0].sessions[0]["code"] == code
        async with aclosing(client.news(code, "offerer", secret=SECRET)) as news:
            await client.candidates(code, "answerer", ["one", "two"])
            assert [await anext(news), await anext(news)] == [(None, ["one"], None), (None, ["two"], None)]
            await client.candidates(code, "answerer", ["three"])
            await client.answer(code, "a")
            assert [await anext(news), await anext(news)] == [("a", [], None), ("a", ["three"], None)]
        with pytest.raises(SignalError, match="404"):
            await client.withdraw(code, "offerer")
        await client.close()


async def test_streams_of_topics_and_sessions(client, websocket):
    first = await client.offer("lobby", "line\u2028break\x85", "o")
    topic = client.topic_events("lobby")
    assert (await anext(topic)).data["info"] == "line\u2028break\x85"
    session = client.session_events(first, "offerer", secret=None)
    events = asyncio.ensure_future(take(session, 3))
    await client.candidates(first, "answerer", ["one"])
    await client.answer(first, "a")
    # Long polls show only that a session has left.
    assert await anext(topic) == Event("gone", {"code": first, "reason": "answered" if websocket else "withdrawn"})
    await client.withdraw(first, "offerer")
    assert await events == [
        Event("candidate", {"candidate": "one"}),
        Event("answer", {"answer": "a"}),
        Event("gone", {"code": first, "reason": "withdrawn" if websocket else "expired"}),
    ]
    await session.aclose()
    await topic.aclose()
    with pytest.raises(SignalError, match="404"):
        await anext(client.session_events(first, "offerer"))


@pytest.mark.parametrize(("websocket", "number"), [(True, SIGTERM), (False, SIGKILL)])
async def test_streams_survive_a_restart_without_loss_or_repetition(start, websocket, number):
    server = start()
    async with SignalClient(server.url, ORIGIN, websocket=websocket) as client:
        code = await client.offer("lobby", "before", "o")
        topic, session = client.topic_events("lobby"), client.session_events(code, "offerer")
        assert (await anext(topic)).data["code"] == code
        await client.candidates(code, "answerer", ["before"])
        assert (await anext(session)).data == {"candidate": "before"}
        server.stop(number)
        pending = [asyncio.ensure_future(anext(stream)) for stream in (topic, session)]
        await asyncio.sleep(0)
        start(port=server.url.rsplit(":", 1)[1])
        await client.candidates(code, "answerer", ["after"])
        second = await client.offer("lobby", "after", "o")
        events = await asyncio.wait_for(asyncio.gather(*pending), BOUND_S)
        assert events[0].data["code"] == second
        assert events[1] == Event("candidate", {"candidate": "after"})
        await topic.aclose()
        await session.aclose()


async def test_withdrawal_is_repeated_until_the_server_is_available(start, websocket):
    server = start()
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0, websocket=websocket) as client:
        code = await client.offer("lobby", "i", "o", hold=True)
        server.stop(SIGKILL)
        with pytest.raises(Unreachable):
            await client.withdraw(code, "offerer")
        restarted = start(port=server.url.rsplit(":", 1)[1])
        await until(lambda: restarted.codes() == [])


async def test_unreachable_error_names_the_server_and_the_cause():
    async with SignalClient(DEAD_URL, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(Unreachable, match=r"^cannot reach http://127\.0\.0\.1:1: Connection refused$") as caught:
            await client.topics()
        assert (caught.value.status, caught.value.sent) == (0, False)
        client.retry_timeout_s = 1
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            await client.topics()
        assert time.monotonic() - began_s > 0.1
        client.retry_timeout_s = 0
        with pytest.raises(Unreachable):
            await anext(client.topic_events("lobby"))


async def test_client_waits_for_the_retry_after_of_a_429(start_service, pass_time):
    service = await start_service(unlimited_addresses=(), rate_per_address=1)
    async with SignalClient(service.url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(SignalError) as caught:  # noqa: PT012 (one of the requests is refused)
            for _ in range(20):
                await client.health()
        assert (caught.value.status, caught.value.text) == (429, "Too many requests")
        assert caught.value.retry_after_s >= 1
        client.retry_timeout_s = 10
        waiting = asyncio.ensure_future(client.health())
        requests = service.shared.log.metrics.refusals
        await until(lambda: requests[429, "requests of an address"] >= 2)
        service.clock.ms += 10_000
        await pass_time(caught.value.retry_after_s * 0.7)
        assert not waiting.done()
        await pass_time(caught.value.retry_after_s)
        assert (await asyncio.wait_for(waiting, BOUND_S))["status"] == "ok"


async def test_idempotent_requests_are_retried_after_a_lost_connection():
    targets = []

    async def hang_up_once(reader, writer):
        targets.append((await reader.readuntil(b"\r\n")).split()[1])
        await reader.readuntil(b"\r\n\r\n")
        if len(targets) > 1:
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"version":"v"}')
        writer.close()

    async with listening_server(hang_up_once) as url, SignalClient(url, ORIGIN) as client:
        assert await client.version() == "v"
        assert targets == [b"/"] * 3  # the second one looks whether the server speaks HTTP
        targets.clear()
        with pytest.raises(Unreachable) as caught:
            await client.offer("lobby", "i", "o")
        assert caught.value.sent
        assert targets == [b"/lobby/offer"]


@pytest.mark.parametrize(
    "response",
    [b"", *(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status for status in (502, 504))],
    ids=["broken", 502, 504],
)
async def test_offer_goes_to_the_next_server_and_is_repeated_after_a_status_of_a_proxy(response, service):
    async with listening_server(response) as url, SignalClient([url, service.url], ORIGIN) as client:
        if not response:
            with pytest.raises(Unreachable):
                await client.offer("lobby", "i", "may be listed")
        code = await client.offer("lobby", "i", "o")
        assert [session["code"] for session in await service.sessions()] == [code]


@pytest.mark.parametrize(
    ("data", "status", "text", "retry_after_s"),
    [
        (b"502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>", 502, "Bad Gateway", None),
        (b"200 OK\r\nContent-Length: 6\r\n\r\n<html>", 200, "the response is not from this API", None),
        (b"200 OK\r\nContent-Length: 2\r\n\r\n[]", 200, "the response is not from this API", None),
        (b"503 x\r\nRetry-After: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n", 503, "x", 0),
        (b"503 x\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n", 503, "x", None),
    ],
)
async def test_foreign_response_is_an_api_error(data, status, text, retry_after_s):
    async with listening_server(b"HTTP/1.1 " + data) as url, SignalClient(url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(SignalError) as caught:
            await client.version()
        assert (caught.value.status, caught.value.text, caught.value.retry_after_s) == (status, text, retry_after_s)


@pytest.mark.parametrize("zone", ["JST-9", "PET5"])
def test_retry_after_date_without_a_time_zone_is_one_of_utc(zone, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        date = time.gmtime(time.time() + 3600)
        forms = "%a %b %e %T %Y", "%a, %d %b %Y %T -0000"
        pauses_s = [http._retry_after_s(time.strftime(form, date)) for form in forms]
    time.tzset()
    assert all(3000 < pause_s <= 3600 for pause_s in pauses_s)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.0 404 File not found\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE HTML>",
        b"HTTP/1.0 501 Unsupported method\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE HTML>",
        b'HTTP/1.1 405 x\r\nContent-Length: 15\r\n\r\n{"detail": "x"}',
        b"220 mail.example ESMTP\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\nInvalid SSH identification string.\r\n",
    ],
    ids=["files", "files, after POST", "json", "mail", "shell"],
)
async def test_other_server_is_not_a_server(response, websocket):
    async with listening_server(response) as url, SignalClient(url, ORIGIN, websocket=websocket) as client:
        for call in (
            client.ice_servers,
            lambda: client.sessions("lobby", wait_s=0),
            lambda: client.offer("lobby", "i", "o"),
            lambda: client.poll("c", "offerer", wait_s=1),
            lambda: anext(client.topic_events("lobby")),
        ):
            with pytest.raises(SignalError) as caught:
                await call()
            assert (caught.value.code, caught.value.retryable) == ("not-a-server", False)


async def test_codes_and_cursors_are_sent_to_the_server_that_issued_them(start, websocket):
    first, second = start(data="one"), start(data="two")
    urls = [DEAD_URL, first.url, second.url]
    async with SignalClient(urls, ORIGIN, retry_timeout_s=0, websocket=websocket) as client:
        code = await client.offer("lobby", "i", "of one")
        assert (first.codes(), second.codes()) == ([code], [])
        listing = await client.sessions("lobby", wait_s=0)
        stream = client.topic_events("lobby")
        assert (await anext(stream)).data["offer"] == "of one"
        later = asyncio.ensure_future(take(stream, 2))

        first.stop(9)
        await client.version()  # before the loss is noticed, an offer is refused because it might be sent twice
        second_code = await client.offer("lobby", "i", "of two")
        assert second.codes() == [second_code]
        # A cursor of the first server means nothing to the second, which would wait forever.
        after = await client.sessions("lobby", wait_s=30, since=listing.cursor)
        assert [session["code"] for session in after.sessions] == [second_code]
        gone, added = await later
        assert gone == Event("gone", {"code": code, "reason": "unreachable"})
        assert added.data["code"] == second_code
        await stream.aclose()
        with pytest.raises(Unreachable):  # a 404 from the second server would prove nothing
            await client.poll(code, "offerer")

        first = start(data="one", port=first.url.rsplit(":", 1)[1])
        # A code without a known server is looked up on both.
        for any_code in (str(code), str(second_code)):
            await client.answer(any_code, "an answer")
        assert first.codes() == second.codes() == []
        assert (await client.poll(code, "offerer")).description == "an answer"
        nowhere = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(Unreachable):  # the unavailable server might have the session
            await client.answer(nowhere, "an answer")
    async with SignalClient([first.url, second.url], ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(SignalError, match="404"):
            await client.answer(nowhere, "an answer")


def test_back_off_grows_to_a_maximum_with_jitter():
    assert all(0.1 < back_off_s(0) < 0.4 for _ in range(50))
    assert all(7 < back_off_s(1000) < 23 for _ in range(50))
    assert len({back_off_s(3) for _ in range(50)}) > 40


ADDRESS, AN_ORIGIN = "begins with http:// or https://", "an origin has a scheme and no path"


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        *((ValueError, AN_ORIGIN, {"origin": text}) for text in ("", "http://a.example/", "http://a/b", "a.example")),
        *((ValueError, ADDRESS, {"servers": text}) for text in ("127.0.0.1:3000", "ws://127.0.0.1:3000", "")),
        (TypeError, "the address of a server is str", {"servers": [None]}),
        (TypeError, "origin is str or None", {"origin": 1}),
        (TypeError, "websocket is bool", {"websocket": "no"}),
        (TypeError, "token is str or None", {"token": 1}),
    ],
)
def test_wrong_option_makes_no_client(error, text, options):
    with pytest.raises(error, match=text):
        SignalClient(**{"servers": DEAD_URL, **options})


def test_client_needs_neither_aiortc_nor_cryptography():
    """The extra `peer` installs both."""
    program = "import runpy, sys; sys.modules |= {'aiortc': None, 'cryptography': None}; runpy.run_module(sys.argv[1])"
    for module in ("discovery", "signaling"):
        output(run_command(sys.executable, "-c", program, f"tornado_signal_client.cli.{module}"))


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("name", ["Peers", "Connection", "Room", "IncomingFile"])
def test_missing_aiortc_names_the_extra(name):
    program = f"import sys; sys.modules['aiortc'] = None; from tornado_signal_client import {name}"
    done = run_command(sys.executable, "-c", program)
    assert done.returncode == 1
    assert "pip install 'clients/python[peer]'" in done.stderr
