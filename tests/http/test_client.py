"""The Python client: every call of the API against the real server, and what it does when servers fail."""

import asyncio
import contextlib
import json
import sys
import time
from contextlib import aclosing
from signal import SIGKILL, SIGTERM

import pytest
from support.service import ORIGIN
from tornado import httpserver, netutil, web
from tornado.httpclient import AsyncHTTPClient

from tornado_signal.client import APIError, Event, SignalClient, Token, Unreachable
from tornado_signal.client.servers import back_off_s

BOUND_S = 20
SECRET = "s" * 16
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(params=[True, False], ids=["websocket", "http"])
def client(request, io_loop, service):
    """A client of a fresh server, which asks over its WebSocket, or over HTTP."""
    made = SignalClient(f"http://127.0.0.1:{service.port}", ORIGIN, retry_timeout_s=0, websocket=request.param)
    io_loop.run_sync(lambda: made.sessions("none", wait_s=0))
    yield made
    io_loop.run_sync(made.close)
    metrics = service.shared.log.metrics
    assert ("WS" in {method for _, method, _ in [*metrics.requests, *metrics.waits]}) == request.param


@contextlib.asynccontextmanager
async def listening(answer):
    """A server that hands each connection to a function; its address."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Plain(web.RequestHandler):
    """The real server as one that knows the specification and none of the additions."""

    def initialize(self, url):
        self.url = url

    async def get(self):
        await self.ask(self.request.path)

    async def post(self):
        fields = json.loads(self.request.body)
        known = {name: fields[name] for name in fields if name not in ("wait", "since", "secret", "ttl", "candidates")}
        await self.ask(self.request.path, method="POST", body=json.dumps(known))

    async def ask(self, path, **request):
        known = path == "/topics" or path.endswith(("/offer", "/answer", "/poll", "/sessions"))
        headers = {"Origin": self.request.headers["Origin"]}
        answer = await AsyncHTTPClient().fetch(
            self.url + (path if known else "/none"), headers=headers, raise_error=False, **request
        )
        self.set_status(answer.code)
        self.finish(answer.body)


@pytest.fixture
def plain(io_loop, service):
    """The address of a server that knows none of the additions."""
    application = web.Application([(".*", Plain, {"url": f"http://127.0.0.1:{service.port}"})])
    application.settings["log_function"] = lambda handler: None
    sockets = netutil.bind_sockets(0, "127.0.0.1")
    server = httpserver.HTTPServer(application)
    server.add_sockets(sockets)
    yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    server.stop()
    io_loop.run_sync(server.close_all_connections)


async def until(iterator, wanted):
    """The first of what an asynchronous iterator yields that is wanted, and all before it."""
    found = []
    async with asyncio.timeout(BOUND_S):
        async for each in iterator:
            found.append(each)
            if wanted(each):
                return found
    raise AssertionError(found)


@pytest.mark.parametrize("topic", ["lobby", "a/b c%2F+?&#é😀", "\0", ".", "..", "x" * 256])
async def test_two_peers_meet_through_every_call(client, topic):
    code = await client.offer(topic, "alice", "an offer", ttl_ms=5000, secret=SECRET)
    assert (await client.topics())["topics"] == [{"topic": topic, "count": 1}]
    await client.candidates(code, "offerer", ["one", "two"], secret=SECRET)
    (session,) = (await client.sessions(topic)).sessions
    assert session["code"] == code
    assert (session["info"], session["offer"], session["offerCandidates"]) == ("alice", "an offer", ["one", "two"])
    assert session["expiresAt"] == session["createdAt"] + 5000
    await client.answer(session["code"], "an answer")
    await client.candidates(code, "answerer", [f"c{number}" for number in range(250)])
    news = await client.poll(code, "offerer", wait_s=0, secret=SECRET)
    assert news.description == "an answer"
    assert news.candidates == [f"c{number}" for number in range(250)]
    again = await client.poll(code, "offerer", since=news.cursor, secret=SECRET)
    assert (again.description, again.candidates) == ("an answer", [])
    assert (await client.poll(code, "answerer"))[:2] == ("an offer", ["one", "two"])
    assert await client.refresh(code, "answerer") >= session["expiresAt"]
    await client.withdraw(code, "offerer", secret=SECRET)
    with pytest.raises(APIError, match="404 Session not found"):
        await client.poll(code, "offerer", secret=SECRET)


async def test_the_server_itself(client, service):
    assert await client.version() == (await service.get("/"))["version"]
    assert await client.health() == {"status": "ok", "timestamp": service.clock.ms}
    assert await client.ice_servers() == await service.get("/ice-servers")


async def test_who_names_no_origin_has_that_of_the_first_server(service):
    url = f"http://127.0.0.1:{service.port}"
    async with SignalClient([url + "/", NOBODY]) as client:
        await client.offer("lobby", "i", "o")
    assert await service.topics(origin=url) == [("lobby", 1)]
    assert await service.topics() == []


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        (lambda client, code: client.offer("t" * 257, "i", "o"), 400, "Missing or invalid required parameter: topic"),
        (lambda client, code: client.poll("x", "offerer"), 404, "Session not found, expired, or origin mismatch"),
        (lambda client, code: client.answer(code, "another"), 409, "Session already answered"),
        (lambda client, code: client.offer("t", "i", "o" * 300_000), 413, "Request body too large"),
    ],
)
async def test_a_refusal_has_the_status_and_the_words_of_the_server(client, call, status, text):
    code = await client.offer("lobby", "i", "o")
    await client.answer(code, "an answer")
    await client.answer(code, "an answer")  # a retry
    with pytest.raises(APIError) as caught:
        await call(client, code)
    assert (caught.value.status, caught.value.text, caught.value.retry_after_s) == (status, text, None)
    assert caught.value.lost_race == (status in (404, 409))


async def test_an_answered_session_is_taken_for_another_secret_too(client):
    code = await client.offer("lobby", "i", "o", secret=SECRET)
    await client.answer(code, "first", secret="1" * 16)
    with pytest.raises(APIError) as caught:
        await client.answer(code, "second", secret="2" * 16)
    assert caught.value.lost_race


async def test_listings_and_news_come_by_themselves_until_the_session_ends(client):
    async with aclosing(client.listings("lobby")) as listings:
        assert (await anext(listings)).sessions == []
        later = asyncio.ensure_future(anext(listings))
        code = await client.offer("lobby", "i", "o")
        assert [each["code"] for each in (await asyncio.wait_for(later, BOUND_S)).sessions] == [code]
    news = client.news(code, "offerer")
    later = asyncio.ensure_future(anext(news))
    await client.candidates(code, "answerer", ["one"])
    assert (await asyncio.wait_for(later, BOUND_S))[:2] == (None, ["one"])
    later = asyncio.ensure_future(anext(news))
    await client.answer(code, "a")
    assert (await asyncio.wait_for(later, BOUND_S))[:2] == ("a", [])
    later = asyncio.ensure_future(anext(news))
    await client.withdraw(code, "answerer")
    with pytest.raises(APIError, match="404"):
        await asyncio.wait_for(later, BOUND_S)


async def test_with_a_server_without_the_additions_the_same_calls_work(plain):
    async with SignalClient(plain, ORIGIN, retry_timeout_s=0) as client:
        assert await client.ice_servers() is None
        async with aclosing(client.listings("lobby")) as listings:
            assert await anext(listings) == ([], None)
            code = await client.offer("lobby", "i", "o", ttl_ms=5000, secret=SECRET)
            assert (await until(listings, lambda each: each.sessions))[-1].sessions[0]["code"] == code
        async with aclosing(client.news(code, "offerer", secret=SECRET)) as news:
            await client.candidates(code, "answerer", ["one", "two"])
            assert await anext(news) == (None, ["one", "two"], None)
            await client.candidates(code, "answerer", ["three"])
            await client.answer(code, "a")
            assert await anext(news) == ("a", ["three"], None)
        with pytest.raises(APIError, match="404"):
            await client.withdraw(code, "offerer")


async def test_streams_of_topics_and_sessions(client, service):
    first = await client.offer("lobby", "line\u2028break\x85", "o")
    topic = client.topic_events("lobby")
    assert (await anext(topic)).data["info"] == "line\u2028break\x85"
    session = client.session_events(first, "offerer", secret=None)
    asked = asyncio.ensure_future(until(session, lambda event: event.name == "gone"))
    await client.candidates(first, "answerer", ["one"])
    await client.answer(first, "a")
    assert await anext(topic) == Event("gone", {"code": first, "reason": "answered"})
    await client.withdraw(first, "offerer")
    assert await asyncio.wait_for(asked, BOUND_S) == [
        Event("candidate", {"candidate": "one"}),
        Event("answer", {"answer": "a"}),
        Event("gone", {"code": first, "reason": "withdrawn"}),
    ]
    await session.aclose()
    await topic.aclose()
    with pytest.raises(APIError, match="404"):
        await anext(client.session_events(first, "offerer"))


@pytest.mark.parametrize(("websocket", "number"), [(True, SIGTERM), (False, SIGKILL)])
async def test_streams_go_on_over_a_restart_with_nothing_lost_or_doubled(start, websocket, number):
    server = start()
    async with SignalClient(server.url, ORIGIN, websocket=websocket) as client:
        code = await client.offer("lobby", "before", "o")
        topic, session = client.topic_events("lobby"), client.session_events(code, "offerer")
        assert (await anext(topic)).data["code"] == code
        await client.candidates(code, "answerer", ["before"])
        assert (await anext(session)).data == {"candidate": "before"}
        server.stop(number)
        meanwhile = [asyncio.ensure_future(anext(each)) for each in (topic, session)]
        await asyncio.sleep(0)
        start(port=server.url.rsplit(":", 1)[1])
        await client.candidates(code, "answerer", ["after"])
        second = await client.offer("lobby", "after", "o")
        events = await asyncio.wait_for(asyncio.gather(*meanwhile), BOUND_S)
        assert events[0].data["code"] == second
        assert events[1] == Event("candidate", {"candidate": "after"})
        await topic.aclose()
        await session.aclose()


@pytest.mark.parametrize("websocket", [True, False])
async def test_a_withdrawal_is_repeated_until_the_server_is_available(start, websocket):
    server = start()
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0, websocket=websocket) as client:
        code = await client.offer("lobby", "i", "o", hold=True)
        server.stop(SIGKILL)
        with pytest.raises(Unreachable):
            await client.withdraw(code, "offerer")
        start(port=server.url.rsplit(":", 1)[1])
        async with asyncio.timeout(BOUND_S):
            while (await client.sessions("lobby")).sessions:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


# A stream in pieces of a few bytes each, and the Last-Event-ID that each connection has to show.
BROKEN = [
    (None, ': hello\r\nretry: 10\r\n\r\nid: 1\r\nevent: session\r\ndata: {\r\ndata:"code": "ü😀"}\r\n\r\n'),
    (b"1", 'event: gone\rdata: {"code": "ü😀"}\r\r: a comment\r\rid: 2\revent: session\rdata: {}\r'),
    (b"1", 'id: 3\n\nid: 4\nevent: session\ndata: {"code": "b"}'),
    (b"3", 'event: session\ndata: {"code": "c"}\n\n'),
]


async def test_only_complete_events_of_a_stream_count_wherever_it_is_cut():
    asked = []

    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(dict(line.split(b": ", 1) for line in head.lower().splitlines() if b": " in line))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        data = BROKEN[len(asked) - 1][1].encode()
        for start in range(0, len(data), 3):
            writer.write(data[start : start + 3])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with (
        listening(answer) as url,
        SignalClient(url, ORIGIN, websocket=False) as client,
        aclosing(client.topic_events("lobby")) as events,
    ):
        told = await until(events, lambda event: event.data["code"] == "c")
    assert [(name, data["code"]) for name, data in told] == [("session", "ü😀"), ("gone", "ü😀"), ("session", "c")]
    assert [head.get(b"last-event-id") for head in asked] == [last for last, _ in BROKEN]


@pytest.mark.parametrize(("kind", "body"), [("text/html", "<html>"), ("text/event-stream", "data: <html>\n\n")])
async def test_a_stream_that_is_something_else_fails_at_once(kind, body):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async with listening(answer) as url, SignalClient(url, ORIGIN) as client:
        with pytest.raises(APIError, match="200 the response is not from this API"):
            await anext(client.topic_events("lobby"))


async def test_without_a_server_one_sentence_says_which_and_why():
    async with SignalClient(NOBODY, ORIGIN, retry_timeout_s=0) as client:
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


async def test_a_stream_over_http_without_its_package_names_the_extra(start, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx_sse", None)
    async with SignalClient(start().url, ORIGIN, websocket=False) as client:
        await client.health()
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'tornado-signal\[client\]'"):
            await anext(client.topic_events("lobby"))


async def test_after_a_429_the_client_waits_for_as_long_as_it_says(start):
    server = start("--rate-per-address", 1, "--unlimited-addresses", "192.0.2.1")
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(APIError) as caught:  # noqa: PT012 (one of them)
            for _ in range(20):
                await client.health()
        assert (caught.value.status, caught.value.text) == (429, "Too many requests")
        assert caught.value.retry_after_s >= 1
        client.retry_timeout_s = 10
        began_s = time.monotonic()
        await client.health()
        assert time.monotonic() - began_s >= caught.value.retry_after_s * 0.9


async def test_what_may_be_asked_twice_is_asked_again_when_the_server_hangs_up():
    asked = []

    async def hang_up_once(reader, writer):
        asked.append((await reader.readuntil(b"\r\n")).split()[1])
        await reader.readuntil(b"\r\n\r\n")
        if len(asked) > 1:
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"version":"v"}')
        writer.close()

    async with listening(hang_up_once) as url, SignalClient(url, ORIGIN) as client:
        assert await client.version() == "v"
        assert asked == [b"/", b"/"]
        asked.clear()
        with pytest.raises(Unreachable) as caught:
            await client.offer("lobby", "i", "o")
        assert caught.value.sent
        assert asked == [b"/lobby/offer"]


@pytest.mark.parametrize(
    ("answer", "status", "text", "retry_after_s"),
    [
        (b"502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>", 502, "Bad Gateway", None),
        (b"200 OK\r\nContent-Length: 6\r\n\r\n<html>", 200, "the response is not from this API", None),
        (b"200 OK\r\nContent-Length: 2\r\n\r\n[]", 200, "the response is not from this API", None),
        (b"503 x\r\nRetry-After: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n", 503, "x", 0),
        (b"503 x\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n", 503, "x", None),
    ],
)
async def test_an_answer_of_something_else_is_an_error_that_says_so(answer, status, text, retry_after_s):
    async def reply(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + answer)
        writer.close()

    async with listening(reply) as url, SignalClient(url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(APIError) as caught:
            await client.version()
        assert (caught.value.status, caught.value.text, caught.value.retry_after_s) == (status, text, retry_after_s)


@pytest.mark.parametrize("websocket", [True, False])
async def test_codes_and_cursors_go_to_the_server_that_they_are_from(start, websocket):
    one, two = start(data="one"), start(data="two")
    async with SignalClient([NOBODY, one.url, two.url], ORIGIN, retry_timeout_s=0, websocket=websocket) as client:
        code = await client.offer("lobby", "i", "of one")
        assert (one.codes(), two.codes()) == ([code], [])
        listing = await client.sessions("lobby", wait_s=0)
        stream = client.topic_events("lobby")
        assert (await anext(stream)).data["offer"] == "of one"
        later = asyncio.ensure_future(until(stream, lambda event: event.data.get("offer") == "of two"))

        one.stop(9)
        await client.version()  # until its connection is known to be lost, an offer could be sent twice, and is refused
        other = await client.offer("lobby", "i", "of two")
        assert two.codes() == [other]
        # A cursor of the one means nothing to the other, which would wait in vain for it.
        after = await client.sessions("lobby", wait_s=30, since=listing.cursor)
        assert [each["code"] for each in after.sessions] == [other]
        gone, came = await asyncio.wait_for(later, BOUND_S)
        assert gone == Event("gone", {"code": code, "reason": "unreachable"})
        assert came.data["code"] == other
        await stream.aclose()
        with pytest.raises(Unreachable):  # the other server's 404 would be no answer
            await client.poll(code, "offerer")

        one = start(data="one", port=one.url.rsplit(":", 1)[1])
        # A code from elsewhere is looked for on both.
        for each in (str(code), str(other)):
            await client.answer(each, "an answer")
        assert one.codes() == two.codes() == []
        assert (await client.poll(code, "offerer")).description == "an answer"
        nowhere = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(Unreachable):  # where it might be
            await client.answer(nowhere, "an answer")
    async with SignalClient([one.url, two.url], ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(APIError, match="404"):
            await client.answer(nowhere, "an answer")


def test_a_token_is_its_text_and_remembers_its_server():
    token = Token("abc", "http://one.example")
    assert (token, json.dumps(token), token.server) == ("abc", '"abc"', "http://one.example")


def test_the_pauses_grow_up_to_a_bound_and_differ():
    assert all(0.1 < back_off_s(0) < 0.4 for _ in range(50))
    assert all(7 < back_off_s(1000) < 23 for _ in range(50))
    assert len({back_off_s(3) for _ in range(50)}) > 40
