"""The Python client over the server's WebSocket or over HTTP in its place: held offers, cancellation, and tokens."""

import asyncio
import itertools
import time
from contextlib import aclosing

import pytest
from support.backend import Backend
from support.certificates import make_pair
from support.forwarding import Proxy, refuse_with, stay_silent
from support.rpc import until
from support.service import NOT_FOUND, ORIGIN, TIMEOUT_MS
from support.tokens import make_token, write_secret

from tornado_signal.auth import authority
from tornado_signal.system.clock import Clock
from tornado_signal_client import Event, SignalClient, SignalError, api, authorization, rpc, servers
from tornado_signal_client.errors import Unreachable

BOUND_S = 30
DEAD_URL = "http://127.0.0.1:1"
SECRET = "s" * 16
OFFER = ("lobby", "i", "o")


async def hang_up(writer):
    writer.close()


def methods(service):
    metrics = service.shared.log.metrics
    return {method for _, method, _ in [*metrics.requests, *metrics.waits]}


def requests_waiting(service, count):
    """Return a condition: `count` requests are waiting at the server."""
    return lambda: service.shared.log.metrics.waiting.total() == count


def expires_in(service, lifetime_ms):
    """Return a condition: the only session of the topic expires in `lifetime_ms`."""

    async def check():
        (session,) = await service.sessions()
        return session["expiresAt"] == service.clock.ms + lifetime_ms

    return check


async def listing_is_empty(service):
    return await service.sessions() == []


async def test_waiting_requests_share_one_websocket(service):
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        await client.health()
        assert proxy.paths == ["/health"]
        listing = client.sessions("lobby", wait_s=30, since=(await client.sessions("lobby", wait_s=0)).cursor)
        pending = [asyncio.ensure_future(client.sessions("lobby", wait_s=30)), asyncio.ensure_future(listing)]
        topic = client.topic_events("lobby")
        first_event = asyncio.ensure_future(anext(topic))
        codes = await asyncio.gather(*(client.offer("lobby", str(number), "o") for number in range(200)))
        assert len(set(codes)) == 200
        for page in await asyncio.wait_for(asyncio.gather(*pending), BOUND_S):
            assert {session["code"] for session in page.sessions} <= set(codes)
        assert (await asyncio.wait_for(first_event, BOUND_S)).data["code"] in codes
        await topic.aclose()
        await until(requests_waiting(service, 0))
        assert proxy.paths == ["/health", "/ws"]


REFUSALS = [*map(refuse_with, (200, 400, 403, 404, 426)), hang_up, stay_silent]


@pytest.mark.parametrize("refuse", REFUSALS, ids=[200, 400, 403, 404, 426, "end", "silence"])
async def test_refused_websocket_falls_back_to_http(service, monkeypatch, refuse):
    monkeypatch.setattr(rpc, "OPEN_S", 0.3)
    async with Proxy(service, refuse) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        async with aclosing(client.topic_events("lobby")) as topic:
            first_event = asyncio.ensure_future(anext(topic))
            code = await client.offer(*OFFER, secret=SECRET, hold=True)
            assert (await asyncio.wait_for(first_event, BOUND_S)).data["code"] == code
        async with aclosing(client.news(code, "offerer", secret=SECRET)) as news:
            later = asyncio.ensure_future(anext(news))
            await client.candidates(code, "answerer", ["one"])
            assert (await asyncio.wait_for(later, BOUND_S))[:2] == (None, ["one"])
        assert proxy.paths.count("/ws") == 1
        assert "WS" not in methods(service)


@pytest.mark.parametrize("refuse", [refuse_with(502), hang_up], ids=[502, "outage"])
async def test_websocket_is_tried_again_after_a_502_and_an_outage(service, refuse):
    async with Proxy(service, refuse) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        if refuse is hang_up:
            pending = asyncio.ensure_future(client.sessions("lobby", wait_s=30))
            await until(requests_waiting(service, 1))
            proxy.cut()
            with pytest.raises(Unreachable):
                await pending
        proxy.refuse = None
        await client.sessions("lobby", wait_s=0)
        assert proxy.paths.count("/ws") == 2
        assert "WS" in methods(service)


async def test_broken_long_poll_of_a_stream_ends_the_pause_of_a_refused_websocket(service, monkeypatch):
    monkeypatch.setattr(servers, "RETRY_S", 0.01)
    async with Proxy(service, hang_up) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        topic = client.topic_events("lobby")
        first_event = asyncio.ensure_future(anext(topic))
        await until(requests_waiting(service, 1))
        proxy.refuse = None
        proxy.cut()
        await until(lambda: proxy.paths.count("/ws") == 2)
        await client.offer(*OFFER)
        await asyncio.wait_for(first_event, BOUND_S)
        await topic.aclose()


async def test_client_uses_http_if_websocket_frames_are_blocked(service, monkeypatch):
    monkeypatch.setattr(rpc, "RESPONSE_S", 0.3)
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        proxy.open.clear()
        with pytest.raises(Unreachable, match="no response in time") as caught:
            await client.sessions("lobby", wait_s=0)
        assert caught.value.sent
        await client.sessions("lobby", wait_s=0)
        await client.sessions("lobby", wait_s=0)
        assert proxy.paths.count("/ws") == 1


async def test_idle_connection_is_closed_and_reopened_on_demand(service, monkeypatch):
    monkeypatch.setattr(rpc, "IDLE_S", 0.05)
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        pending = asyncio.ensure_future(client.poll(code, "offerer", wait_s=0.5))
        assert (await pending).description is None  # the poll took longer than IDLE_S
        connection = await client._connection(proxy.url)
        await client.withdraw(code, "offerer")
        await asyncio.wait_for(connection.closed.wait(), BOUND_S)
        await client.sessions("lobby", wait_s=0)
        assert proxy.paths == ["/ws", "/ws"]


async def test_oversized_request_is_413_and_streams_continue(start_service):
    service = await start_service(max_body_bytes=2000)
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN) as client:
        topic = client.topic_events("lobby")
        later = asyncio.ensure_future(anext(topic))
        await until(requests_waiting(service, 1))
        for size, connections in ((100_000, 1), (3000, 2)):
            with pytest.raises(SignalError, match="413 Request body too large"):
                await client.offer("lobby", "i", "o" * size, hold=True)
            await client.sessions("lobby", wait_s=0)
            assert proxy.paths.count("/ws") == connections
        code = await client.offer(*OFFER, hold=True)
        assert (await asyncio.wait_for(later, BOUND_S)).data["code"] == code
        await topic.aclose()


async def test_requests_beyond_the_limits_of_a_connection_work(service, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_SUBSCRIPTIONS", 1)
    monkeypatch.setattr(rpc, "MAX_HELD", 1)
    async with SignalClient(service.url, ORIGIN, retry_timeout_s=0) as client:
        topics = [client.topic_events("lobby") for _ in range(3)]
        first_events = [asyncio.ensure_future(anext(stream)) for stream in topics]
        for _ in range(3):
            await client.offer(*OFFER, hold=True)
        await asyncio.wait_for(asyncio.gather(*first_events), BOUND_S)
        metrics = service.shared.log.metrics
        assert (metrics.held, metrics.waiting["/:topic/events"]) == (1, 1)
        for stream in topics:
            await stream.aclose()
        await until(requests_waiting(service, 0))


async def test_slow_reader_gets_every_event_once(service, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_UNREAD", 10)
    monkeypatch.setattr(servers, "RETRY_S", 0.01)
    async with SignalClient(service.url, ORIGIN) as client, aclosing(client.topic_events("lobby")) as topic:
        later = asyncio.ensure_future(anext(topic))
        await until(requests_waiting(service, 1))
        codes = [await client.offer("lobby", str(number), "o") for number in range(30)]
        received = [await asyncio.wait_for(later, BOUND_S)]
        while len(received) < 30:
            received.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert [event.data["code"] for event in received] == codes
        assert sum(service.shared.log.metrics.waits["/:topic/events", "WS", 200].counts) >= 1  # the server ended it


@pytest.fixture
def use_proxy(monkeypatch):
    """Return a function that names a proxy in the environment."""

    def use(url):
        for name in ("all_proxy", "ALL_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, url)

    return use


async def test_requests_and_websockets_use_the_proxy_of_the_environment(service, use_proxy):
    async with Proxy(service) as proxy:
        use_proxy(proxy.url)
        async with SignalClient("http://signal.example", ORIGIN, retry_timeout_s=0) as client:
            await client.health()
            await client.sessions("lobby", wait_s=0)
            assert proxy.paths == ["http://signal.example/health", "signal.example:80"]


@pytest.mark.parametrize(
    "proxy", [DEAD_URL, "socks5://127.0.0.1:9", "ftp://127.0.0.1", "http://[", "nonsense.invalid:x"]
)
async def test_local_servers_need_no_proxy(service, use_proxy, proxy):
    use_proxy(proxy)
    async with SignalClient(service.url, ORIGIN, retry_timeout_s=0) as client:
        await client.health()
        await client.sessions("lobby", wait_s=0)
        assert await client._connection(service.url, open_if_closed=False) is not None


@pytest.mark.parametrize(
    ("proxy", "shown"),
    [
        (DEAD_URL.replace("//", "//user:secret@"), f"{DEAD_URL}: Connection refused"),
        (DEAD_URL.removeprefix("http://"), f"{DEAD_URL}: Connection refused"),
        ("ftp://127.0.0.1", "ftp://127.0.0.1: "),
        ("http://[", "http://[: "),
        ("nonsense:x", "http://nonsense:x: "),
    ],
)
async def test_proxy_that_fails_is_named_without_its_password(use_proxy, proxy, shown):
    use_proxy(proxy)
    async with SignalClient("http://signal.example", ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(Unreachable) as caught:
            await client.health()
        assert caught.value.text.startswith(f"cannot reach http://signal.example through the proxy {shown}")
        with pytest.raises(Unreachable):
            await client.sessions("lobby", wait_s=0)


async def test_hosts_of_no_proxy_are_reached_directly(use_proxy, monkeypatch):
    use_proxy(DEAD_URL)
    monkeypatch.setenv("no_proxy", ".invalid")
    async with SignalClient("http://signal.invalid", ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(Unreachable) as caught:
            await client.health()
    assert "proxy" not in caught.value.text


async def test_websocket_trusts_the_same_certificates_as_https(start, tmp_path, monkeypatch):
    pair = make_pair(tmp_path)
    server = start(*pair.flags)
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.sessions("lobby", wait_s=0)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        assert await client._connection(server.url, open_if_closed=False) is not None
        assert await client.version()


async def test_news_end_after_the_retry_timeout_and_events_continue(service):
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN, retry_timeout_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        news, session_events = client.news(code, "offerer"), client.session_events(code, "offerer")
        pending = [asyncio.ensure_future(anext(iterator)) for iterator in (news, session_events)]

        await until(requests_waiting(service, 2))
        proxy.cut()
        with pytest.raises(Unreachable, match="connection closed by the server"):
            await asyncio.wait_for(pending[0], BOUND_S)
        await client.candidates(code, "answerer", ["one"])
        assert (await asyncio.wait_for(pending[1], BOUND_S)).data == {"candidate": "one"}
        await session_events.aclose()


async def test_held_offer_is_withdrawn_soon_after_its_client_closes(start_service):
    service = await start_service(hold_grace_ms=100)
    async with SignalClient(service.url, ORIGIN) as other, aclosing(other.topic_events("lobby")) as topic:
        async with SignalClient(service.url, ORIGIN) as client:
            first = await client.offer(*OFFER, secret=SECRET, hold=True)
            answered = await client.offer(*OFFER, hold=True)
            assert service.shared.log.metrics.held == 2
            await other.answer(answered, "a")
            assert (await client.poll(answered, "offerer")).description == "a"
        events = [await asyncio.wait_for(anext(topic), BOUND_S)]
        while events[-1] != Event("gone", {"code": first, "reason": "withdrawn"}):
            events.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert (await other.poll(answered, "offerer")).description == "a"


async def test_new_connection_takes_over_unanswered_offers(service, monkeypatch):
    monkeypatch.setattr(api, "back_off_s", lambda attempt: 0.05)  # the last offer is refreshed last
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN) as client:
        answered = [await client.offer("another", "i", "o", hold=True) for _ in range(2)]
        for code in answered:
            await client.answer(code, "a")
            await client.refresh(code, "offerer")
        assert (await client.poll(answered[0], "offerer")).description == "a"
        async with aclosing(client.news(answered[1], "offerer")) as news:
            assert (await anext(news)).description == "a"
        last = await client.offer("lobby", "i", "o", secret=SECRET, hold=True)
        service.clock.ms += 1000
        proxy.cut()
        await until(expires_in(service, TIMEOUT_MS))
        assert [session["code"] for session in await service.sessions()] == [last]
        assert proxy.paths == ["/ws", "/ws"]
        await client.withdraw(last, "offerer", secret=SECRET)
        service.clock.ms += TIMEOUT_MS - 1000
        for code in answered:
            with pytest.raises(SignalError, match=f"404 {NOT_FOUND}"):
                await client.poll(code, "offerer")


async def test_held_offer_is_refreshed_over_http_without_a_websocket(service, monkeypatch):
    monkeypatch.setattr(api, "REFRESH_S", 0.05)
    async with Proxy(service, refuse_with(502)) as proxy, SignalClient(proxy.url, ORIGIN) as client:
        code = await client.offer(*OFFER, secret=SECRET, hold=True)
        for _ in range(2):
            service.clock.ms += 1000
            await until(expires_in(service, TIMEOUT_MS))
        assert service.shared.log.metrics.held == 0
        proxy.refuse = None
        await until(lambda: service.shared.log.metrics.held == 1)
        await client.withdraw(code, "offerer", secret=SECRET)
        assert await service.sessions() == []


CALLS = {
    "offer": lambda client: client.offer(*OFFER, secret=SECRET, hold=True),
    "stream": lambda client: anext(client.topic_events("lobby")),
    "wait": lambda client: client.sessions("lobby", wait_s=40),
    "wait with a response on its way": lambda client: client.sessions("lobby", wait_s=40),
}


@pytest.mark.parametrize("call", CALLS)
async def test_what_a_cancelled_caller_has_begun_ends_at_the_server(call, service):
    async with Proxy(service) as proxy, SignalClient(proxy.url, ORIGIN) as client:
        proxy.open.clear()  # no response arrives
        pending = asyncio.ensure_future(CALLS[call](client))
        await until(lambda: service.shared.log.metrics.held == 1 if call == "offer" else requests_waiting(service, 1)())
        if answered := "response" in call:
            await service.offer()
            await until(requests_waiting(service, 0))
        pending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pending
        if "wait" in call:
            await until(requests_waiting(service, 0))  # although the client hears nothing
        proxy.open.set()
        await until(requests_waiting(service, 0))
        await until(lambda: answered or listing_is_empty(service))
        assert len((await client.sessions("lobby", wait_s=0)).sessions) == answered
        assert proxy.paths == ["/ws"]


# Tokens: strings and functions, renewal, refusals (docs/authorization.md)


@pytest.fixture
def protected(start_service, tmp_path, monkeypatch):
    """A function that starts a server that requires tokens, with a short time after their expiry and a real clock."""
    monkeypatch.setattr(authority, "GRACE_S", 0.5)
    monkeypatch.setattr(authorization, "RENEW_S", 0.2)
    monkeypatch.setattr("tornado_signal_client.rpc.MIN_RENEWAL_S", 0.02)

    async def start(**settings):
        return await start_service(auth_keys=write_secret(tmp_path / "keys"), clock=Clock(), **settings)

    return start


def make(life_s=60, **claims):
    return make_token({"exp": time.time() + life_s, **claims})


def connect(service, token, *, websocket):
    return SignalClient(service.url, ORIGIN, 0, websocket=websocket, token=token)


async def use(client):
    """Make one call of each kind and return the code of an offer."""
    code = await client.offer(*OFFER, hold=True)
    assert (await client.sessions("lobby", wait_s=0)).sessions
    await client.topics()
    async with aclosing(client.topic_events("lobby")) as events:
        assert (await anext(events)).name == "session"
    await client.withdraw(code, "offerer")


async def from_coroutine():
    await asyncio.sleep(0)
    return make()


async def test_token_is_a_string_or_a_function(websocket, protected, start_service):
    without_keys = await start_service()
    service = await protected()
    for each, source in itertools.product((without_keys, service), (make(), make, from_coroutine)):
        async with connect(each, source, websocket=websocket) as client:
            await use(client)
    assert set(service.shared.log.metrics.tokens) == {"accepted"}
    assert ("WS" in methods(service)) == websocket


async def test_refused_token_and_an_error_of_its_function_reach_the_caller(websocket, protected):
    def fail():
        raise LookupError("not logged in")

    service = await protected()
    for token in (None, "nonsense", lambda: "nonsense"):
        async with connect(service, token, websocket=websocket) as client:
            for call in (client.sessions("lobby", wait_s=0), client.offer(*OFFER, hold=True), client.topics()):
                with pytest.raises(SignalError) as refused:
                    await call
                assert (refused.value.status, refused.value.text) == (401, "Missing or invalid token")
            with pytest.raises(SignalError, match="401"):
                async with aclosing(client.topic_events("lobby")) as events:
                    await anext(events)
    async with connect(service, make(topics=["attic"]), websocket=websocket) as client:
        await client.sessions("attic", wait_s=0)
        with pytest.raises(SignalError) as refused:
            await client.sessions("lobby", wait_s=0)
        assert (refused.value.status, refused.value.text) == (403, "Not allowed by the token")
    async with connect(service, fail, websocket=websocket) as client:
        with pytest.raises(LookupError, match="not logged in"):
            await client.sessions("lobby", wait_s=0)


async def test_redirect_to_another_host_gets_no_token(websocket, protected):
    other = await protected()

    with Backend() as server:
        server.behaviour = lambda handler: handler.send(307, b"", {"Location": other.url + handler.path})
        text = f"{server.base} redirects to {other.url}, which is not followed"
        client = SignalClient(server.base, ORIGIN, 0, websocket=websocket, token=make())
        for call in (client.sessions("lobby", wait_s=0), client.offer(*OFFER), anext(client.topic_events("lobby"))):
            with pytest.raises(SignalError, match=text):
                await call
        await client.close()
    metrics = other.shared.log.metrics
    assert not metrics.tokens
    assert not metrics.requests


async def test_function_is_called_once_more_after_a_refusal(websocket, protected):
    service = await protected()
    made = []

    def unusable():
        """Each token differs from the earlier ones, and has the key of another server."""
        claims = {"exp": time.time() + 60, "sub": str(len(made))}
        made.append(make_token(claims, b"a secret that the server does not have"))
        return made[-1]

    async def read_events():
        async with aclosing(client.topic_events("lobby")) as events:
            await anext(events)

    async with connect(service, unusable, websocket=websocket) as client:
        for call in (client.topics, lambda: client.sessions("lobby", wait_s=0), read_events):
            made.clear()
            with pytest.raises(SignalError, match="401"):
                await call()
            assert 0 < len(made) <= 2 + websocket
    made.clear()
    async with connect(service, lambda: make() if made else unusable(), websocket=websocket) as client:
        await use(client)
    assert service.shared.log.metrics.tokens["token with another signature"] >= 1


async def test_calls_at_the_same_time_share_a_new_token(protected):
    calls = []

    async def renew():
        calls.append(time.time())
        await asyncio.sleep(0.01)
        return make()

    async with connect(await protected(), renew, websocket=False) as client:
        await asyncio.gather(*(client.topics() for _ in range(5)))
    assert len(calls) == 1


async def test_held_offer_and_stream_outlive_many_tokens(protected):
    service = await protected(hold_grace_ms=0)
    calls = []

    def renew():
        calls.append(time.time())
        return make(0.5)

    async with connect(service, renew, websocket=True) as client:
        code = await client.offer(*OFFER, hold=True)
        connection = await client._connection(client._urls[0])
        async with aclosing(client.topic_events("lobby")) as events:
            assert (await anext(events)).data["code"] == code
            await asyncio.sleep(2)
            other = await client.offer("lobby", "i", "another")
            assert (await asyncio.wait_for(anext(events), BOUND_S)).data["code"] == other
        assert connection.open
        assert {each["code"] for each in (await client.sessions("lobby")).sessions} == {code, other}
    assert len(calls) >= 4


def test_token_is_replaced_before_its_expiry_unless_that_is_unusable():
    assert 60 < authorization.renewal_s(make(100)) - time.time() < 75
    assert 15 < authorization.renewal_s(make(40)) - time.time() < 25
    assert {authorization.renewal_s(token) for token in ("", "a", "a.b.c", make(-1))} == {float("inf")}
