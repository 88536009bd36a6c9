"""The Python client and the server's WebSocket: when it is used, when HTTP has to do, and offers that are held."""

import asyncio
import contextlib
from contextlib import aclosing

import pytest
from support.certificates import make_pair
from support.service import NOT_FOUND, ORIGIN

from tornado_signal.client import APIError, Event, SignalClient, Unreachable, events, holds, rpc, websocket

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
        """Break every connection."""
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
    """What answers a handshake with this status."""

    async def refuse(writer):
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    return refuse


async def hang_up(writer):
    """Answer a handshake with the end of the connection."""
    writer.close()


async def say_nothing(writer):
    """Leave a handshake without an answer."""
    await writer.wait_closed()


def url_of(service):
    """Where a server is."""
    return f"http://127.0.0.1:{service.port}"


def methods(service):
    """What the server has been asked with."""
    metrics = service.site.log.metrics
    return {method for _, method, _ in [*metrics.requests, *metrics.waits]}


async def until(condition):
    """Wait for what the server does on its own."""
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def expiring(service):
    """A function that tells when the only session of the topic expires; None if there is none."""

    async def found():
        sessions = await service.sessions()
        return sessions[0]["expiresAt"] if sessions else None

    return found


async def until_asked(service):
    """Wait until something waits at the server."""

    async def waits():
        return service.site.log.metrics.waiting.total() > 0

    await until(waits)


async def until_nothing_waits(service):
    """Wait until nothing waits at the server any more."""

    async def waits_not():
        return service.site.log.metrics.waiting.total() == 0

    await until(waits_not)


# Which way a call goes.


async def test_one_connection(service):
    """What waits opens it; then everything goes over it, and calls in great number side by side."""
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        await client.health()
        assert wire.asked == ["/health"]
        listing = client.sessions("lobby", wait_s=30, since=(await client.sessions("lobby", wait_s=0)).cursor)
        waiting = [asyncio.ensure_future(client.sessions("lobby", wait_s=30)), asyncio.ensure_future(listing)]
        topic = client.topic_events("lobby")
        told = asyncio.ensure_future(anext(topic))
        codes = await asyncio.gather(*(client.offer("lobby", str(number), "o") for number in range(200)))
        assert len(set(codes)) == 200
        for found in await asyncio.wait_for(asyncio.gather(*waiting), BOUND_S):
            assert {each["code"] for each in found.sessions} <= set(codes)
        assert (await asyncio.wait_for(told, BOUND_S)).data["code"] in codes
        await topic.aclose()
        await until_nothing_waits(service)
        assert wire.asked == ["/health", "/ws"]


REFUSALS = [*map(refusing, (200, 400, 403, 404, 426)), hang_up, say_nothing]


@pytest.mark.parametrize("refuse", REFUSALS, ids=[200, 400, 403, 404, 426, "end", "silence"])
async def test_a_websocket_that_is_refused(service, monkeypatch, refuse):
    """Everything works over HTTP, and the WebSocket is not tried again."""
    monkeypatch.setattr(websocket, "OPEN_S", 0.3)
    async with Wire(service, refuse) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
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


async def test_a_refusal_that_passes(service):
    """A proxy whose server is away for a moment has said nothing about WebSockets."""
    async with Wire(service, refusing(502)) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        wire.refuse = None
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 2
        assert "WS" in methods(service)


async def test_after_an_outage_it_is_tried_again(service):
    """Where the server itself could not be reached, what was thought of its WebSocket is forgotten."""
    async with Wire(service, hang_up) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        waiting = asyncio.ensure_future(client.sessions("lobby", wait_s=30))
        await until_asked(service)
        wire.cut()
        with pytest.raises(Unreachable):
            await waiting
        wire.refuse = None
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 2


async def test_nothing_comes_back(service, monkeypatch):
    """Where only the handshake is let through, the first call fails in time and the next ones go over HTTP."""
    monkeypatch.setattr(rpc, "ANSWER_S", 0.3)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        wire.open.clear()
        with pytest.raises(Unreachable, match="it does not answer in time") as caught:
            await client.sessions("lobby", wait_s=0)
        assert caught.value.sent
        await client.sessions("lobby", wait_s=0)
        await client.sessions("lobby", wait_s=0)
        assert wire.asked.count("/ws") == 1


async def test_a_connection_that_nothing_uses(service, monkeypatch):
    """It is closed after a while, and opened again when it is wanted."""
    monkeypatch.setattr(rpc, "IDLE_S", 0.05)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        asked = asyncio.ensure_future(client.poll(code, "offerer", wait_s=0.5))
        assert (await asked).description is None  # which took longer
        connection = await client._servers.connection(wire.url)
        await client.withdraw(code, "offerer")
        await asyncio.wait_for(connection.ended.wait(), BOUND_S)
        await client.sessions("lobby", wait_s=0)
        assert wire.asked == ["/ws", "/ws"]


async def test_what_is_too_long(start_service):
    """The server's own words come over HTTP; what else is under way goes on, after a new beginning if need be."""
    service = await start_service(max_body_bytes=2000)
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        topic = client.topic_events("lobby")
        waiting = asyncio.ensure_future(anext(topic))
        await until_asked(service)
        for size, connections in ((100_000, 1), (3000, 2)):
            with pytest.raises(APIError, match="413 Request body too large"):
                await client.offer("lobby", "i", "o" * size, hold=True)
            await client.sessions("lobby", wait_s=0)
            assert wire.asked.count("/ws") == connections
        code = await client.offer(*OFFER, hold=True)
        assert (await asyncio.wait_for(waiting, BOUND_S)).data["code"] == code
        await topic.aclose()


async def test_more_than_a_connection_may_have(service, monkeypatch):
    """What is over the server's bounds for a connection goes over HTTP."""
    monkeypatch.setattr(rpc, "MAX_SUBSCRIPTIONS", 1)
    monkeypatch.setattr(rpc, "MAX_HELD", 1)
    async with SignalClient(url_of(service), ORIGIN, patience_s=0) as client:
        topics = [client.topic_events("lobby") for _ in range(3)]
        told = [asyncio.ensure_future(anext(each)) for each in topics]
        for _ in range(3):
            await client.offer(*OFFER, hold=True)
        await asyncio.wait_for(asyncio.gather(*told), BOUND_S)
        metrics = service.site.log.metrics
        assert metrics.held == 1
        assert metrics.waiting == {"/:topic/events": 3}
        for each in topics:
            await each.aclose()
        await until_nothing_waits(service)
        ended = {method: sum(seconds.counts) for (_, method, _), seconds in metrics.waits.items()}
        assert ended == {"WS": 1, "GET": 2}


async def test_a_slow_reader(service, monkeypatch):
    """A reader that lets events pile up gets all of them all the same, each once."""
    monkeypatch.setattr(rpc, "MAX_UNREAD", 10)
    monkeypatch.setattr(events, "RETRY_S", 0.01)
    async with SignalClient(url_of(service), ORIGIN) as client, aclosing(client.topic_events("lobby")) as topic:
        later = asyncio.ensure_future(anext(topic))
        await until_asked(service)
        codes = [await client.offer("lobby", str(number), "o") for number in range(30)]
        told = [await asyncio.wait_for(later, BOUND_S)]
        while len(told) < 30:
            told.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert [event.data["code"] for event in told] == codes
        assert sum(service.site.log.metrics.waits["/:topic/events", "WS", 200].counts) >= 1  # it has been ended


async def test_through_a_proxy_of_the_client(service, monkeypatch):
    """The proxy that the environment names for HTTP is the WebSocket's, too."""
    async with Wire(service) as wire:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, wire.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        async with SignalClient(url_of(service), ORIGIN, patience_s=0) as client:
            await client.sessions("lobby", wait_s=0)
            await client.health()
            assert wire.asked == [f"127.0.0.1:{service.port}"]


async def test_over_tls(start, tmp_path, monkeypatch):
    """The certificates that HTTPS trusts are those that the WebSocket trusts."""
    pair = make_pair(tmp_path)
    server = start(*pair.flags)
    async with SignalClient(server.url, ORIGIN, patience_s=0) as client:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.sessions("lobby", wait_s=0)
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    async with SignalClient(server.url, ORIGIN, patience_s=0) as client:
        await client.sessions("lobby", wait_s=0)
        assert await client._servers.connection(server.url, wanted=False) is not None
        assert await client.version()


async def test_news_of_a_server_that_stays_away(service):
    """News end when the patience does, so that another server may be asked; events go on when it is back."""
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN, patience_s=0) as client:
        code = await client.offer(*OFFER, hold=True)
        news, told = client.news(code, "offerer"), client.session_events(code, "offerer")
        waiting = [asyncio.ensure_future(anext(each)) for each in (news, told)]

        async def both():
            return service.site.log.metrics.waiting.total() == 2

        await until(both)
        wire.cut()
        with pytest.raises(Unreachable, match="it hung up"):
            await asyncio.wait_for(waiting[0], BOUND_S)
        await client.candidates(code, "answerer", ["one"])
        assert (await asyncio.wait_for(waiting[1], BOUND_S)).data == {"candidate": "one"}
        await told.aclose()


# Offers that are held.


async def test_held(start_service):
    """A held offer is gone soon after its client; one that is answered is held no more."""
    service = await start_service(hold_grace_ms=100)
    async with SignalClient(url_of(service), ORIGIN) as other, aclosing(other.topic_events("lobby")) as topic:
        async with SignalClient(url_of(service), ORIGIN) as client:
            first = await client.offer(*OFFER, secret=SECRET, hold=True)
            answered = await client.offer(*OFFER, hold=True)
            assert service.site.log.metrics.held == 2
            await other.answer(answered, "a")
            assert (await client.poll(answered, "offerer")).description == "a"
        told = [await asyncio.wait_for(anext(topic), BOUND_S)]
        while told[-1] != Event("gone", {"code": first, "reason": "withdrawn"}):
            told.append(await asyncio.wait_for(anext(topic), BOUND_S))
        assert (await other.poll(answered, "offerer")).description == "a"


async def test_taken_over(service, monkeypatch):
    """When the connection breaks, the next one takes held offers over; but not those that were answered."""
    monkeypatch.setattr(holds, "back_off_s", lambda attempt: 0.05)  # the last comes last
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
        expires_ms = expiring(service)

        async def refreshed():
            return await expires_ms() == service.clock.ms + 300_000

        await until(refreshed)
        assert [each["code"] for each in await service.sessions()] == [last]
        assert wire.asked == ["/ws", "/ws"]
        await client.withdraw(last, "offerer", secret=SECRET)
        service.clock.ms += 300_000 - 1000
        for each in answered:
            with pytest.raises(APIError, match=f"404 {NOT_FOUND}"):
                await client.poll(each, "offerer")


async def test_held_without_a_websocket(service, monkeypatch):
    """Where there is none an offer is refreshed instead, until it is withdrawn; where one comes, it is held."""
    monkeypatch.setattr(holds, "REFRESH_S", 0.05)
    expires_ms = expiring(service)

    async def refreshed():
        return await expires_ms() == service.clock.ms + 300_000

    async with Wire(service, refusing(502)) as wire, SignalClient(wire.url, ORIGIN) as client:
        code = await client.offer(*OFFER, secret=SECRET, hold=True)
        for _ in range(2):
            service.clock.ms += 1000
            await until(refreshed)
        assert service.site.log.metrics.held == 0
        wire.refuse = None

        async def held():
            return service.site.log.metrics.held == 1

        await until(held)
        await client.withdraw(code, "offerer", secret=SECRET)
        assert await expires_ms() is None


async def test_an_offer_that_is_given_up(service):
    """An offer whose caller has not waited for its code is withdrawn: nothing else ever would."""
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        wire.open.clear()
        asked = asyncio.ensure_future(client.offer(*OFFER, secret=SECRET, hold=True))

        async def published():
            return service.site.log.metrics.held == 1

        await until(published)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        wire.open.set()

        async def withdrawn():
            return await service.sessions() == []

        await until(withdrawn)
        assert wire.asked == ["/ws"]


async def test_a_subscription_that_is_given_up(service):
    """A stream whose caller goes before it has begun is ended at the server, too."""
    async with Wire(service) as wire, SignalClient(wire.url, ORIGIN) as client:
        wire.open.clear()
        topic = asyncio.ensure_future(anext(client.topic_events("lobby")))
        await until_asked(service)
        topic.cancel()
        with pytest.raises(asyncio.CancelledError):
            await topic
        wire.open.set()
        await until_nothing_waits(service)
        assert (await client.sessions("lobby", wait_s=0)).sessions == []
        assert wire.asked == ["/ws"]
