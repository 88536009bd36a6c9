"""A server with many kinds of nonsense, against the Python client."""

import asyncio
import contextlib
import itertools
import json
import re
import threading
from contextlib import aclosing, closing
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from support import malicious
from support.node import Node
from support.paths import ROOT
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.sync import server as sync_server

from tornado_signal_client import SignalClient, SignalError, http, polls, rpc, servers, tasks

BOUND_S = 60
KINDS = [malicious.RESPONSES, malicious.MESSAGES]
CODES = {"timeout", "not-a-server", "server-unreachable", "invalid-request", "server-busy"}


@pytest.fixture(scope="module")
def url():
    with malicious.http_servers() as urls:
        yield urls[""]


@pytest.fixture(scope="module")
def websocket_url():
    def handle(socket):
        name = socket.request.path.split("/")[1].replace("-", " ")
        with contextlib.suppress(ConnectionClosed):
            for request in socket:
                for message in malicious.MESSAGES[name](json.loads(request)["id"]):
                    socket.send(message)

    def only_websockets(socket, request):
        if not request.path.endswith("/ws"):
            return socket.respond(HTTPStatus.OK, '{"status": "ok", "timestamp": 0}')

    options = {"process_request": only_websockets, "subprotocols": ["signal.v1"]}
    options["select_subprotocol"] = lambda socket, offered: "signal.v1" if "signal.v1" in offered else None
    with sync_server.serve(handle, "127.0.0.1", 0, **options) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


@contextlib.asynccontextmanager
async def client_of(handle, **options):
    """Yield a client of a server that handles each WebSocket with `handle`, and answers nothing else."""
    async with serve(handle, "127.0.0.1", 0, subprotocols=["signal.v1"]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with SignalClient(url, **{"retry_timeout_s": 0, **options}) as client:
            yield client


@pytest.mark.parametrize(("websocket", "name"), [(kind is malicious.MESSAGES, name) for kind in KINDS for name in kind])
async def test_nonsense_is_an_error_with_a_code(websocket, name, url, websocket_url, monkeypatch):
    monkeypatch.setattr(http, "RESPONSE_S", 1.0)
    target = f"{websocket_url if websocket else url}/{name.replace(' ', '-')}"
    # The WebSocket's server is in this process.
    bounded = contextlib.nullcontext() if websocket else malicious.bounded_memory()
    async with (
        SignalClient(target, retry_timeout_s=0, websocket=websocket) as client,
        aclosing(client.topic_events("lobby")) as events,
    ):
        with bounded, pytest.raises(SignalError) as caught:
            await asyncio.wait_for(anext(events), BOUND_S)
    assert caught.value.code in CODES
    assert (caught.value.retry_after_s or 0) <= 3600


@pytest.fixture(scope="module")
def node():
    process = Node(ROOT / "tornado_signal/web/client.js")
    yield process
    assert process.close() == 0


# The browser module drops an item, an optional field or an event that is nonsense. Then a listing is empty, or no event
# comes.
DROPPED = {
    *("cursor without text", "empty entries", "wrong field", "no number", "too large a number"),
    *("many objects", "nested", "infinite number", "half of a surrogate pair"),
}
CODE_OF = """
(url, use) => {
  const signal = AbortSignal.timeout(30_000);
  return use(url, { signal }).then(
    (result) => (result.sessions?.length === 0 ? "dropped" : `no error, but ${JSON.stringify(result)}`),
    (error) => (error === signal.reason ? "dropped" : error.code ?? `no code: ${error.stack}`),
  );
}
"""
USES = {
    "a response": "(url) => new SignalClient(url, { origin: 'https://app.example' }).sessions('lobby')",
    "a WebSocket": "(url, end) => new SignalClient(url).events('lobby', end).next()",
}


@pytest.mark.slow
@pytest.mark.parametrize(("use", "kinds"), [*zip(USES, KINDS, strict=True)], ids=USES)
def test_nonsense_is_an_error_with_a_code_for_the_browser_module(url, websocket_url, node, use, kinds):
    base = websocket_url if use == "a WebSocket" else url
    urls = [f"{base}/{name.replace(' ', '-')}" for name in kinds]
    codes = node.evaluate(f"Promise.all({json.dumps(urls)}.map((url) => ({CODE_OF})(url, {USES[use]})))")
    wrong = {name: code for name, code in zip(kinds, codes, strict=True) if code not in CODES}
    assert wrong == dict.fromkeys(DROPPED & {*kinds}, "dropped")
    # Browsers hide the target of a redirection. So a request without a body finds it, for the error.
    requests = malicious.requests_to_another_host()
    assert [request for request in requests if not re.fullmatch(rb"(?s)(?:GET / .*\r\n\r\n)?", request)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", malicious.LARGE)
def test_memory_of_the_browser_module_is_bounded(url, name):
    code = f"(name) => ({CODE_OF})(`{url}/${{name}}`, {USES['a response']})"
    with closing(Node(ROOT / "tornado_signal/web/client.js")) as process:
        assert process.evaluate(f"({code})('empty-object')") in CODES | {"dropped"}
        with malicious.bounded_memory(process.pid, malicious.MAX_NODE_GROWTH_KIB):
            assert process.evaluate(f"({code})('{name.replace(' ', '-')}')") in CODES | {"dropped"}


async def test_repeated_number_of_a_subscription_is_an_error():
    async def handle(socket):
        async for request in socket:
            await socket.send(json.dumps({"id": json.loads(request)["id"], "result": {"subscription": 1}}))

    async with client_of(handle) as client:
        streams = [client.topic_events(topic) for topic in ("one", "two")]
        both = asyncio.gather(*(anext(stream) for stream in streams), return_exceptions=True)
        assert [error.code for error in await asyncio.wait_for(both, BOUND_S)] == ["not-a-server"] * 2


async def test_unread_events_of_a_subscription_are_bounded(monkeypatch):
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES", 1000)
    unsubscribed = asyncio.Event()
    event = {"subscription": 1, "cursor": "1", "type": "gone", "data": {"code": "x" * 400}}

    async def handle(socket):
        async for request in socket:
            fields = json.loads(request)
            if fields["method"] == "unsubscribe":
                unsubscribed.set()
                return
            await socket.send(json.dumps({"id": fields["id"], "result": {"subscription": 1}}))
            for _ in range(3):
                await socket.send(json.dumps({"method": "event", "params": event}))

    async with client_of(handle) as client, aclosing(client.topic_events("lobby")) as events:
        await asyncio.wait_for(anext(events), BOUND_S)
        await asyncio.wait_for(unsubscribed.wait(), BOUND_S)


@pytest.mark.parametrize("retry_after", [-5, 0, 1e12])
async def test_pause_before_a_repeated_request_has_a_floor(monkeypatch, retry_after):
    async def handle(socket):
        async for request in socket:
            error = {"code": 503, "message": "busy", "data": {"retryAfter": retry_after}}
            await socket.send(json.dumps({"id": json.loads(request)["id"], "error": error}))

    pauses_s, paused = [], asyncio.Event()

    async def sleep(pause_s):
        pauses_s.append(pause_s)
        paused.set()
        await asyncio.Event().wait()

    async with client_of(handle, retry_timeout_s=1e5) as client:
        monkeypatch.setattr(servers, "asyncio", SimpleNamespace(sleep=sleep))
        waiting = asyncio.ensure_future(client.sessions("lobby", wait_s=1))
        await asyncio.wait_for(paused.wait(), BOUND_S)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert tasks.PAUSE_S / 2 <= pauses_s[0] <= 4500


async def test_polls_that_are_answered_at_once_are_slowed_down(monkeypatch):
    pauses_s = []

    async def sleep(pause_s):
        pauses_s.append(pause_s)

    async def handle(socket):
        for cursor in itertools.count():
            id_ = json.loads(await socket.recv())["id"]
            await socket.send(json.dumps({"id": id_, "result": {"sessions": [], "cursor": str(cursor)}}))

    async with client_of(handle) as client, aclosing(client.listings("lobby")) as listings:
        await anext(listings)
        monkeypatch.setattr(polls, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(polls, "time", SimpleNamespace(monotonic=lambda: 1000.0))
        for _ in range(40):
            await asyncio.wait_for(anext(listings), BOUND_S)
    assert pauses_s[:10] == [0.0] * 10
    assert pauses_s[30:] == sorted(pauses_s[30:])
    assert pauses_s[-1] > 1
