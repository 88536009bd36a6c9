"""The Python client and the server's WebSocket: when it is used, when HTTP has to do, and offers that are held."""

import asyncio
import contextlib
from contextlib import aclosing

import pytest
from support.certificates import make_pair
from support.service import NOT_FOUND, ORIGIN, TIMEOUT_MS

from tornado_signal.client import APIError, Event, SignalClient, Unreachable, events, leases, rpc, websocket

BOUND_S = 20
SECRET = "s" * 16
OFFER = ("lobby", "i", "o")


class Wire:
    """What is between clients and a server in this process; ready when it has been entered.

    Attributes:
        url: its address.
        asked: the path of the first request on each connection.
        refuse: called with the writer of a connection that wants to be a WebSocket; None to let it through.
        open: cleared, to hold back what servers send over WebSockets, after the handshake.
    """

    def __init__(self, service, refuse=None):
        self.port = service.port
        self.refuse = refuse
        self.asked = []
        self.open = asyncio.Event()
        self.open.set()
        self._writers = set()
        self._running = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        self.cut()
        self.open.set()
        await asyncio.wait_for(asyncio.gather(*self._running), BOUND_S)

    def cut(self):
        for writer in self._writers:
            writer.transport.abort()

    async def _pass(self, reader, writer):
        self._writers.add(writer)
        self._running.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.split()[1].decode())
            if self.asked[-1] == "/ws" and self.refuse is not None:
                await self.refuse(writer)
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
            self._writers.add(to_server)
            if head.startswith(b"CONNECT"):
                writer.write(b"HTTP/1.1 200 x\r\n\r\n")
            else:
                to_server.write(head)
            await asyncio.gather(self._copy(reader, to_server), self._copy_back(from_server, writer))

    async def _copy(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def _copy_back(self, reader, writer):
        if self.asked[-1] == "/ws":
            with contextlib.suppress(asyncio.IncompleteReadError):
                writer.write(await reader.readuntil(b"\r\n\r\n"))
            await self.open.wait()
        await self._copy(reader, writer)


def refusing(status):
    async def refuse(writer):
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    return refuse


async def hang_up(writer):
    writer.close()


async def say_nothing(writer):
    await writer.wait_closed()


def url_of(service):
    return f"http://127.0.0.1:{service.port}"


def methods(service):
    metrics = service.shared.log.metrics
    return {method for _, method, _ in [*metrics.requests, *metrics.waits]}


async def until(condition):
    """Wait for what the server does on its own; a condition may be a coroutine function."""
    async with asyncio.timeout(BOUND_S):
        while not (await found if asyncio.iscoroutine(found := condition()) else found):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def waiting(service, count):
    """A condition: so many calls wait at the server."""
    return lambda: service.shared.log.metrics.waiting.total() == count


def expires_in(service, lifetime_ms):
    """A condition: the only session of the topic has so long to live."""

    async def expires():
        (session,) = await service.sessions()
        return session["expiresAt"] == service.clock.ms + lifetime_ms

    return expires


async def no_sessions(service):
    return await service.sessions() == []


async def test_what_waits_opens_one_connection_for_everything(service):
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        await client.health()
        assert wire.asked == ["/health"]
        listing = client.sessions("lobby", wait_s=30, since=(await client.sessions("lobby", wait_s=0)).cursor)
        asked = [asyncio.ensure_future(client.sessions("lobby", wait_s=30)), asyncio.ensure_future(listing)]
        topic = client.topic_events("lobby")
        told = asyncio.ensure_future(anext(topic))
        codes = await asyncio.gather(*(client.offer("lobby", str(number), "o") for number in range(200)))
        assert len(set(codes)) == 200
        for found in await asyncio.wait_for(asyncio.gather(*asked), BOUND_S):
            assert {each["code"] for each in found.sessions} <= set(codes)
        assert (await asyncio.wait_for(told, BOUND_S)).data["code"] in codes
        await topic.aclose()
        await until(waiting(service, 0))
        assert wire.asked == ["/health", "/ws"]


REFUSALS = [*map(refusing, (200, 400, 403, 404, 426)), hang_up, say_nothing]


@pytest.mark.parametrize("refuse", REFUSALS, ids=[200, 400, 403, 404, 426, "end", "silence"])
async def test_where_the_websocket_is_refused_everything_works_over_http(service, monkeypatch, refuse):
    monkeypatch.setattr(websocket, "OPEN_S", 0.3)
    async with Wire(service, refuse) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        topic = client.topic_events("lobby")
        told = asyncio.ensure_future(anext(topic))
        code = await client.offer(*OFFER, secret=SECRET, hold=True)
        assert (await asyncio.wait_for(told, BOUND_S)).data["code"] == code
        news = client.news(code, "offerer", secret=SECRET)
        later = asyncio.ensure_future(anext(news))
        await client.candidates(code, "answerer", ["one"])
        assert (await asyncio.wait_for(later, BOUND_S))[:2] == (None, ["one"])
        await news.aclose()
        await topic.aclose()
        assert wire.asked.count("/ws") == 1
        assert "WS" not in methods(service)


async def test_a_proxy_whose_server_is_away_has_said_nothing_about_websockets(service):
    async with Wire(service, refusing(502)) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        wire.refuse = None
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 2
        assert "WS" in methods(service)


async def test_after_an_outage_the_websocket_is_tried_again(service):
    async with Wire(service, hang_up) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        asked = asyncio.ensure_future(client.sessions("lobby", wait_s=30))
        await until(waiting(service, 1))
        wire.cut()
        with pytest.raises(Unreachable):
            await asked
        wire.refuse = None
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 2


async def test_where_only_the_handshake_is_let_through_calls_go_over_http(service, monkeypatch):
    monkeypatch.setattr(rpc, "RESPONSE_S", 0.3)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        wire.open.clear()
        with pytest.raises(Unreachable, match="no response in time") as caught:
            await client.sessions("lobby", wait_s=0)
        assert caught.value.sent
        await client.sessions("lobby", wait_s=0)
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 1


async def test_a_connection_that_nothing_uses_is_closed_until_it_is_wanted(service, monkeypatch):
    monkeypatch.setattr(rpc, "IDLE_S", 0.05)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        asked = asyncio.ensure_future(client.poll(code, "offerer", wait_s=0.5))
        assert (await asked).description is None  # which took longer
        connection = await client._servers.connection(wire.url)
        await client.withdraw(code, "offerer")
        await asyncio.wait_for(connection.closed.wait(), BOUND_S)
        await client.sessions("lobby", wait_s=0)
        assert wire.asked == ["/ws", "/ws"]


async def test_what_is_too_long_is_refused_and_the_rest_goes_on(start_service):
    service = await start_service(max_body_bytes=2000)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        topic = client.topic_events("lobby")
        later = asyncio.ensure_future(anext(topic))
        await until(waiting(service, 1))
        for size, connections in ((100_000, 1), (3000, 2)):
            with pytest.raises(APIError, match="413 Request body too large"):
                await client.offer("lobby", "i", "o" * size, hold=True)
            await client.sessions("lobby", wait_s=0)
            assert wire.asked.count("/ws") == connections
        code = await client.offer(*OFFER, hold=True)
        assert (await asyncio.wait_for(later, BOUND_S)).data["code"] == code
        await topic.aclose()


async def test_what_is_over_the_bounds_of_a_connection_goes_over_http(service, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_SUBSCRIPTIONS", 1)
    monkeypatch.setattr(rpc, "MAX_HELD", 1)
    async with SignalClient(url_of(service), ORIGIN, retry_timeout_s=0) as client:
        topics = [client.topic_events("lobby") for _ in range(3)]
        told = [asyncio.ensure_future(anext(each)) for each in topics]
        for _ in range(3):
            await client.offer(*OFFER, hold=True)
        await asyncio.wait_for(asyncio.gather(*told), BOUND_S)
        metrics = service.shared.log.metrics
        assert metrics.held == 1
        assert metrics.waiting == {"/:topic/events": 3}
        for each in topics:
            await each.aclose()
        await until(waiting(service, 0))
        ended = {method: sum(seconds.counts) for (_, method, _), seconds in metrics.waits.items()}
        assert ended == {"WS": 1, "GET": 2}


async def test_a_slow_reader_gets_every_event_once(service, monkeypatch):
    monkeypatch.setattr(rpc, "MAX_UNREAD", 10)
    monkeypatch.setattr(events, "RETRY_S", 0.01)
    async with SignalClient(url_of(service), ORIGIN) as client, aclosing(client.topic_events("lobby")) as topic:
        later = asyncio.ensure_future(anext(topic))
        await until(waiting(service, 1))
        codes = [await client.offer("lobby", str(number), "o") for number in range(30)]
        told = [await asyncio.wait_for(later, BOUND_S)]
        while len(told) < 30:
            told.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert [event.data["code"] for event in told] == codes
        assert sum(service.shared.log.metrics.waits["/:topic/events", "WS", 200].counts) >= 1  # it has been ended


async def test_the_websocket_uses_the_proxy_of_the_environment(service, monkeypatch):
    async with Wire(service) as wire:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, wire.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        async with SignalClient(url_of(service), ORIGIN, retry_timeout_s=0) as client:
            await client.sessions("lobby", wait_s=0)
            await client.health()
            assert wire.asked == [f"127.0.0.1:{service.port}"]


async def test_the_websocket_trusts_what_https_trusts(start, tmp_path, monkeypatch):
    pair = make_pair(tmp_path)
    server = start(*pair.flags)
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0) as client:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.sessions("lobby", wait_s=0)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    async with SignalClient(server.url, ORIGIN, retry_timeout_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        assert await client._servers.connection(server.url, open_if_closed=False) is not None
        assert await client.version()


async def test_news_end_with_the_patience_and_events_go_on(service):
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, retry_timeout_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        news, told = client.news(code, "offerer"), client.session_events(code, "offerer")
        later = [asyncio.ensure_future(anext(each)) for each in (news, told)]

        await until(waiting(service, 2))
        wire.cut()
        with pytest.raises(Unreachable, match="connection closed by the server"):
            await asyncio.wait_for(later[0], BOUND_S)
        await client.candidates(code, "answerer", ["one"])
        assert (await asyncio.wait_for(later[1], BOUND_S)).data == {"candidate": "one"}
        await told.aclose()


async def test_a_held_offer_goes_soon_after_its_client(start_service):
    service = await start_service(hold_grace_ms=100)
    async with SignalClient(url_of(service), ORIGIN) as other, aclosing(other.topic_events("lobby")) as topic:
        async with SignalClient(url_of(service), ORIGIN) as client:
            first = await client.offer(*OFFER, secret=SECRET, hold=True)
            answered = await client.offer(*OFFER, hold=True)
            assert service.shared.log.metrics.held == 2
            await other.answer(answered, "a")
            assert (await client.poll(answered, "offerer")).description == "a"
        told = [await asyncio.wait_for(anext(topic), BOUND_S)]
        while told[-1] != Event("gone", {"code": first, "reason": "withdrawn"}):
            told.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert (await other.poll(answered, "offerer")).description == "a"


async def test_the_next_connection_takes_over_offers_that_were_not_answered(service, monkeypatch):
    monkeypatch.setattr(leases, "back_off_s", lambda attempt: 0.05)  # the last comes last
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        answered = [await client.offer("another", "i", "o", hold=True) for _ in range(2)]
        for each in answered:
            await client.answer(each, "a")
            await client.refresh(each, "offerer")
        assert (await client.poll(answered[0], "offerer")).description == "a"
        async with aclosing(client.news(answered[1], "offerer")) as news:
            assert (await anext(news)).description == "a"
        last = await client.offer("lobby", "i", "o", secret=SECRET, hold=True)
        service.clock.ms += 1000
        wire.cut()
        await until(expires_in(service, TIMEOUT_MS))
        assert [each["code"] for each in await service.sessions()] == [last]
        assert wire.asked == ["/ws", "/ws"]
        await client.withdraw(last, "offerer", secret=SECRET)
        service.clock.ms += TIMEOUT_MS - 1000
        for each in answered:
            with pytest.raises(APIError, match=f"404 {NOT_FOUND}"):
                await client.poll(each, "offerer")


async def test_without_a_websocket_an_offer_is_refreshed_instead(service, monkeypatch):
    monkeypatch.setattr(leases, "REFRESH_S", 0.05)
    async with Wire(service, refusing(502)) as wire, SignalClient(wire.url, ORIGIN) as client:
        code = await client.offer(*OFFER, secret=SECRET, hold=True)
        for _ in range(2):
            service.clock.ms += 1000
            await until(expires_in(service, TIMEOUT_MS))
        assert service.shared.log.metrics.held == 0
        wire.refuse = None
        await until(lambda: service.shared.log.metrics.held == 1)
        await client.withdraw(code, "offerer", secret=SECRET)
        assert await service.sessions() == []


async def test_an_offer_whose_caller_is_gone_is_withdrawn(service):
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        wire.open.clear()
        asked = asyncio.ensure_future(client.offer(*OFFER, secret=SECRET, hold=True))
        await until(lambda: service.shared.log.metrics.held == 1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        wire.open.set()
        await until(lambda: no_sessions(service))
        assert wire.asked == ["/ws"]


async def test_a_stream_whose_caller_is_gone_ends_at_the_server(service):
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        wire.open.clear()
        topic = asyncio.ensure_future(anext(client.topic_events("lobby")))
        await until(waiting(service, 1))
        topic.cancel()
        with pytest.raises(asyncio.CancelledError):
            await topic
        wire.open.set()
        await until(waiting(service, 0))
        assert (await client.sessions("lobby", wait_s=0)).sessions == []
        assert wire.asked == ["/ws"]
