"""Tokens of the Python client: strings and functions, renewal, refusals (docs/authorization.md)."""

import asyncio
import itertools
import time
from contextlib import aclosing

import pytest
from support.service import ORIGIN
from support.tokens import make_token, write_secret

from tornado_signal.auth import authority
from tornado_signal.system.clock import Clock
from tornado_signal_client import SignalClient, SignalError, authorization

BOUND_S = 30
OFFER = ("lobby", "me", "an offer")


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
    metrics = service.shared.log.metrics
    assert set(metrics.tokens) == {"accepted"}
    assert ("WS" in {method for _, method, _ in [*metrics.requests, *metrics.waits]}) == websocket


@pytest.mark.parametrize("token", [None, "nonsense", lambda: "nonsense"])
async def test_refused_token_is_an_error(token, websocket, protected):
    async with connect(await protected(), token, websocket=websocket) as client:
        for call in (client.sessions("lobby", wait_s=0), client.offer(*OFFER, hold=True), client.topics()):
            with pytest.raises(SignalError) as refused:
                await call
            assert (refused.value.status, refused.value.text) == (401, "Missing or invalid token")
        with pytest.raises(SignalError, match="401"):
            async with aclosing(client.topic_events("lobby")) as events:
                await anext(events)


async def test_redirect_to_another_host_gets_no_token(websocket, protected):
    other = await protected()

    async def redirect(reader, writer):
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        writer.write(f"HTTP/1.1 307 x\r\nLocation: {other.url}{target}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        text = f"{url} redirects to {other.url}, which is not followed"
        client = SignalClient(url, ORIGIN, 0, websocket=websocket, token=make())
        for call in (client.sessions("lobby", wait_s=0), client.offer(*OFFER), anext(client.topic_events("lobby"))):
            with pytest.raises(SignalError, match=text):
                await call
        await client.close()
    metrics = other.shared.log.metrics
    assert not metrics.tokens
    assert not metrics.requests


async def test_topic_that_is_not_covered_is_an_error(websocket, protected):
    async with connect(await protected(), make(topics=["attic"]), websocket=websocket) as client:
        await client.sessions("attic", wait_s=0)
        with pytest.raises(SignalError) as refused:
            await client.sessions("lobby", wait_s=0)
        assert (refused.value.status, refused.value.text) == (403, "Not allowed by the token")


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


async def test_error_of_the_function_reaches_the_caller(websocket, protected):
    def fail():
        raise LookupError("not logged in")

    async with connect(await protected(), fail, websocket=websocket) as client:
        with pytest.raises(LookupError, match="not logged in"):
            await client.sessions("lobby", wait_s=0)


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
            other = await client.offer("lobby", "me", "another offer")
            assert (await asyncio.wait_for(anext(events), BOUND_S)).data["code"] == other
        assert connection.open
        assert {each["code"] for each in (await client.sessions("lobby")).sessions} == {code, other}
    assert len(calls) >= 4


def test_token_is_replaced_before_its_expiry_unless_that_is_unusable():
    assert 60 < authorization.renewal_s(make(100)) - time.time() < 75
    assert 15 < authorization.renewal_s(make(40)) - time.time() < 25
    assert {authorization.renewal_s(token) for token in ("", "a", "a.b.c", make(-1))} == {float("inf")}
