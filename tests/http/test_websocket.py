"""The interface over a WebSocket: handshake, messages, operations, subscriptions, and their limits (contract C9)."""

import asyncio
import base64
import contextlib
import json
import os
from operator import attrgetter

import hypothesis
import pytest
from hypothesis import strategies as st
from support.rpc import BOUND_S, RpcClient
from support.service import (
    NO_SUCH_CODE,
    NOT_FOUND,
    ORIGIN,
    OTHER,
    TIMEOUT_MS,
    Service,
    allowed_origin,
    head,
    invalid,
    refused,
    segment,
    with_origin,
)
from websockets.frames import Frame, Opcode

from tornado_signal.settings.origins import Origins
from tornado_signal.transport import listener, websocket
from tornado_signal.transport.state import Backlog

SECRET = "a secret of the offerer"


def open_socket(service, origin=ORIGIN, **options):
    """A client's connection."""
    return RpcClient(f"ws://127.0.0.1:{service.port}/ws", origin, **options)


async def until(condition):
    """Wait for what the server does on its own."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


# The handshake.


def handshake(**other):
    """The headers of one, with some of them changed."""
    key = base64.b64encode(os.urandom(16)).decode()
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"}
    changed = headers | {name.replace("_", "-"): value for name, value in other.items()}
    return [(name, value) for name, value in changed.items() if value is not None]


@pytest.mark.parametrize(
    "other",
    [
        {"Upgrade": None},
        {"Upgrade": "h2c"},
        {"Connection": "keep-alive"},
        {"Sec_WebSocket_Key": None},
        {"Sec_WebSocket_Key": "short"},
        {"Sec_WebSocket_Version": "12"},
        {"Sec_WebSocket_Version": None},
    ],
    ids=str,
)
async def test_what_is_no_handshake(other, service):
    """A GET without a sound handshake is a 400 in JSON, and the connection goes on with requests."""
    async with service.connect() as connection:
        for target, status in (("/ws", 400), ("/health", 200)):
            await connection.send(head("GET", target, with_origin(ORIGIN, handshake(**other))))
            response = await connection.receive()
            assert response.status == status
            if status == 400:
                assert refused(response) == (400, invalid("Upgrade"))
                assert allowed_origin(response) == ORIGIN


async def test_who_may_connect(start_service):
    """The Origin of the handshake is checked as any request's, and other methods are not for this path."""
    service = await start_service(allowed_origins=Origins(frozenset({ORIGIN})))
    for origin, expected in ((None, (400, invalid("Origin"))), (OTHER, (403, "Origin not allowed"))):
        assert refused(await service.call("GET", "/ws", origin=origin, headers=handshake())) == expected
    response = await service.call("POST", "/ws", {}, headers=handshake())
    assert (response.status, response.headers["Allow"]) == (405, "GET, OPTIONS")
    async with open_socket(service) as client:
        assert (await client.call("health"))["status"] == "ok"
    counted = {("/ws", 405): 1, ("/ws", 101): 1, ("/health", 200): 1}
    assert service.site.log.metrics.by_origin == {(ORIGIN, *kind): number for kind, number in counted.items()}


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(None, None), (["signal.v1"], "signal.v1"), (["x", "signal.v1"], "signal.v1"), (["x"], None)],
)
async def test_subprotocols(offered, chosen, service):
    """None is needed; ours is chosen when it is offered, whatever else is."""
    async with open_socket(service, subprotocols=offered) as client:
        assert client.socket.subprotocol == chosen
        assert "version" in await client.call("version")


async def test_what_comes_before_the_answer(service):
    """Frames that do not wait for the answer to the handshake are the end of the connection, not requests."""
    async with service.connect() as connection:
        await connection.send(head("GET", "/ws", with_origin(ORIGIN, handshake())) + b"GET /health HTTP/1.1\r\n" * 2)
        assert await connection.receive() is None


# Operations: what HTTP answers.

TEXTS = st.sampled_from(["a", "b", "", "é😀", "\ud800", 1, None, [], "x" * 5000])
CODES = st.one_of(st.integers(0, 3), st.sampled_from([NO_SUCH_CODE, "nonsense", "", 5, None]))
SIDES = st.sampled_from(["offerer", "answerer", "offerer", "answerer", "nobody", None, 3])
NUMBERS = st.sampled_from([1, 2, 1000, 0, -1, 1.5, "x", 2**60])


def some(**fields):
    """Fields of which any may be missing."""
    return st.fixed_dictionaries({}, optional=fields)


CALLS = st.one_of(
    st.tuples(st.just("topics"), some(page=NUMBERS, limit=NUMBERS)),
    st.tuples(st.just("sessions"), some(topic=st.sampled_from(["a", "b/c", "é", ""]), limit=NUMBERS)),
    st.tuples(
        st.just("offer"),
        st.fixed_dictionaries(
            {"topic": st.sampled_from(["a", "b/c", "é"]), "info": TEXTS, "offer": TEXTS}, optional={"secret": TEXTS}
        ),
    ),
    st.tuples(st.just("answer"), some(code=CODES, side=SIDES, answer=TEXTS, secret=st.just(SECRET))),
    st.tuples(st.just("answer"), some(code=CODES, side=SIDES, candidate=TEXTS)),
    st.tuples(st.just("answer"), some(code=CODES, side=SIDES, candidates=st.lists(TEXTS, max_size=3))),
    st.tuples(st.sampled_from(["poll", "refresh", "withdraw"]), some(code=CODES, side=SIDES, secret=TEXTS)),
    st.tuples(st.sampled_from(["version", "health", "iceServers"]), st.just({})),
)
PATHS = {"version": "/", "iceServers": "/ice-servers"}


async def over_http(service, name, params):
    """The answer of an operation over HTTP: status and JSON."""
    body = dict(params)
    topic = body.pop("topic", None)
    path = PATHS.get(name, f"/{name}" if topic is None else f"/{segment(topic)}/{name}")
    if name in ("topics", "sessions", "version", "health", "iceServers"):
        query = "&".join(f"{key}={json.dumps(value).strip(chr(34))}" for key, value in body.items())
        response = await service.call("GET", f"{path}?{query}")
    else:
        response = await service.call("POST", path, body)
    return response.status, response.body if response.status == 200 else response.json["error"]


async def over_socket(client, name, params):
    """The same over a WebSocket, the result as the bytes that came."""
    response = await client.ask(name, **params)
    if "error" in response:
        return response["error"]["code"], response["error"]["message"]
    return 200, json.dumps(response["result"], ensure_ascii=False, separators=(",", ":")).encode()


@hypothesis.given(calls=st.lists(CALLS, min_size=1, max_size=15))
@hypothesis.settings(max_examples=40)
def test_every_answer_is_that_of_http(calls, tmp_path_factory):
    """The same operations over HTTP and over a WebSocket have the same answers, errors included."""

    async def both():
        path = tmp_path_factory.mktemp("both")
        services = [Service(path / name, codes="content") for name in ("http", "socket")]
        for service in services:
            await service.start()
        async with open_socket(services[1]) as client:
            codes = []
            for name, params in calls:
                if isinstance(params.get("code"), int) and params["code"] < len(codes):
                    params = params | {"code": codes[params["code"]]}
                if name == "sessions" and not params.get("topic"):
                    continue  # without one it is another path
                expected = await over_http(services[0], name, params)
                assert await over_socket(client, name, params) == expected, (name, params)
                if name == "offer" and expected[0] == 200:
                    codes.append(json.loads(expected[1])["code"])
        for service in services:
            await service.stop()

    asyncio.run(both())


# Messages.


@pytest.mark.parametrize(
    ("message", "code", "id_"),
    [
        ("nonsense", -32700, None),
        ("{", -32700, None),
        ("[" * 100_000, -32700, None),
        ("1", -32600, None),
        ("[]", -32600, None),
        ("{}", -32600, None),
        ('{"id": 1, "method": "version"}', -32600, None),
        ('{"jsonrpc": "1.0", "id": 1, "method": "version"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": [], "method": "version"}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 7, "method": 1}', -32600, None),
        ('{"jsonrpc": "2.0", "id": 7, "method": "version", "params": []}', -32602, 7),
        ('{"jsonrpc": "2.0", "id": "é", "method": "nonsense"}', -32601, "é"),
        (json.dumps([{"jsonrpc": "2.0", "id": 1, "method": "version"}] * 101), -32600, None),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_what_is_no_request(message, code, id_, service):
    """JSON-RPC's own errors, and the connection goes on."""
    async with open_socket(service) as client:
        found = client.expect(id_)
        await client.socket.send(message)
        response = await asyncio.wait_for(found, BOUND_S)
        assert (response["jsonrpc"], response["id"], response["error"]["code"]) == ("2.0", id_, code)
        assert (await client.call("health"))["status"] == "ok"


async def test_a_batch(service):
    """Requests in one message are answered in one; what is none has its error, and notifications are only done."""
    async with open_socket(service) as client:
        offer = {"topic": "lobby", "info": "i", "offer": "o"}
        batch = [
            {"jsonrpc": "2.0", "id": "a", "method": "version"},
            {"jsonrpc": "2.0", "method": "offer", "params": offer},
            3,
            {"jsonrpc": "2.0", "id": None, "method": "offer", "params": {}},
        ]
        response = await asyncio.wait_for(client.send_raw(batch, json.dumps(["a", None, None])), BOUND_S)
        assert [sorted(each.keys() - {"jsonrpc"}) for each in response] == [
            ["id", "result"],
            ["error", "id"],
            ["error", "id"],
        ]
        assert len((await client.call("sessions", topic="lobby"))["sessions"]) == 1
        await client.socket.send(json.dumps([{"jsonrpc": "2.0", "method": "offer", "params": offer}] * 2))
        while len((await client.call("sessions", topic="lobby"))["sessions"]) < 3:
            pass


async def test_the_order_of_a_session(service):
    """What changes a session takes effect as it was sent, and what reads it next sees that; waits hold up nothing."""
    async with open_socket(service) as client:
        code = (await client.call("offer", topic="lobby", info="i", offer="o"))["code"]
        waiting = client.send("poll", code=code, side="offerer", wait=60, since=None)
        texts = [str(number) for number in range(200)]
        sent = [client.send("answer", code=code, side="answerer", candidate=text) for text in texts]
        read = client.send("poll", code=code, side="offerer")
        assert [(await each)["result"] for each in sent] == [{"success": True}] * len(texts)
        assert (await read)["result"]["answerCandidates"] == texts
        assert (await waiting)["result"]["answerCandidates"][:1] == texts[:1]


async def test_a_long_listing(service):
    """A result of megabytes comes whole, in one message; what is sent meanwhile comes behind it."""
    offers = [f"{number}-" + "x" * 50_000 for number in range(60)]
    for offer in offers:
        await service.offer(offer=offer)
    async with open_socket(service) as client:
        listing, health = client.send("sessions", topic="lobby"), client.send("health")
        batch = [{"jsonrpc": "2.0", "id": id_, "method": "sessions", "params": {"topic": "lobby"}} for id_ in "ab"]
        both = client.send_raw(batch, json.dumps(["a", "b"]))
        for found in [(await listing)["result"], *(each["result"] for each in await both)]:
            assert [each["offer"] for each in found["sessions"]] == offers[::-1]
        assert (await health)["result"]["status"] == "ok"


# Subscriptions.


async def test_a_topic(service):
    """First the listing, then what comes and goes; after the end of the subscription nothing."""
    first = await service.offer(info="first")
    async with open_socket(service) as client:
        number = (await client.call("subscribe", topic="lobby"))["subscription"]
        assert (await client.event())[1]["info"] == "first"
        second = await service.offer(info="second")
        assert (await client.event())[1]["code"] == second
        await service.post("/answer", code=first, side="answerer", answer="a")
        kind, data, cursor = await client.event()
        assert (kind, data) == ("gone", {"code": first, "reason": "answered"})
        assert await client.call("unsubscribe", subscription=number) == {"success": True}
        assert await client.refused("unsubscribe", subscription=number) == (400, invalid("subscription"))
        await service.post("/withdraw", code=second, side="offerer")
        third = await service.offer(info="third")
        assert (await client.call("health"))["status"] == "ok"
        assert client.events.empty()
    async with open_socket(service) as client:
        await client.call("subscribe", topic="lobby", since=cursor)
        told = [await client.event() for _ in range(2)]
        assert [(kind, data["code"]) for kind, data, _ in told] == [("gone", second), ("session", third)]


async def test_a_session(service):
    """What the other side has sent and sends, until the session ends; resumed anywhere, nothing is lost or doubled."""
    async with open_socket(service) as client:
        code = (await client.call("offer", topic="lobby", info="i", offer="o", secret=SECRET))["code"]
        asked = {"code": code, "side": "offerer", "secret": SECRET}
        assert await client.refused("subscribe", **asked | {"secret": "another secret of some length"}) == (
            404,
            NOT_FOUND,
        )
        assert await client.refused("subscribe", **asked | {"since": "nonsense"}) == (400, invalid("since"))
        await client.call("subscribe", **asked)
        await service.post("/answer", code=code, side="answerer", candidates=["1", "2"])
        await service.post("/answer", code=code, side="answerer", answer="a")
        told = [await client.event() for _ in range(3)]
        assert [data for _, data, _ in told] == [{"candidate": "1"}, {"candidate": "2"}, {"answer": "a"}]
        for at, (_, _, cursor) in enumerate(told):
            async with open_socket(service) as other:
                await other.call("subscribe", **asked, since=cursor)
                await service.post("/answer", code=code, side="answerer", candidate=f"after {at}")
                rest = [*told[at + 1 :], *[None] * (at + 1)]
                found = [(await other.event())[1] for _ in rest]
                assert found == [data for _, data, _ in told[at + 1 :]] + [
                    {"candidate": f"after {number}"} for number in range(at + 1)
                ]
        await client.call("withdraw", code=code, side="offerer", secret=SECRET)
        last = [(await client.event())[:2] for _ in range(4)][-1]
        assert last == ("gone", {"code": code, "reason": "withdrawn"})


async def test_expiry_is_told(service):
    """The expiry of a session is an event of its topic and of itself."""
    async with open_socket(service) as client:
        code = (await client.call("offer", topic="lobby", info="i", offer="o"))["code"]
        await client.call("subscribe", topic="lobby")
        await client.event()
        service.clock.ms += TIMEOUT_MS
        await service.store.expiry.sweep(service.clock.ms)
        assert (await client.event())[:2] == ("gone", {"code": code, "reason": "expired"})


async def test_no_end_of_subscriptions(service):
    """A connection has a hundred of them; one more is refused, until one ends."""
    async with open_socket(service) as client:
        numbers = [(await client.call("subscribe", topic=f"t{each}"))["subscription"] for each in range(100)]
        error = (await client.ask("subscribe", topic="more"))["error"]
        assert (error["code"], error["data"]) == (429, {"retryAfter": 1})
        await client.call("unsubscribe", subscription=numbers[0])
        await client.call("subscribe", topic="more")
    await until(lambda: not service.site.limits.waiting)
    assert service.site.log.metrics.waiting["/:topic/events"] == 0


async def test_subscriptions_that_nobody_waits_for(service):
    """What is asked for without an id is done and not told; with the connection its subscriptions end, begun or not."""
    for offer in range(30):
        await service.offer(offer=f"{offer}" + "x" * 50_000)
    for _ in range(3):
        async with open_socket(service) as client:
            one = {"jsonrpc": "2.0", "method": "subscribe", "params": {"topic": "lobby"}}
            await client.socket.send(json.dumps([one] * 20))
            await client.socket.send(json.dumps(one))
            assert (await client.event())[0] == "session"
    await until(lambda: not service.site.limits.waiting)
    await until(lambda: not service.site.running)
    async with open_socket(service) as client:
        one = {"jsonrpc": "2.0", "id": 1, "method": "sessions", "params": {"topic": "lobby"}}
        client.socket.transport.pause_reading()
        await client.socket.send(json.dumps([one] * 9))
        await until(lambda: service.site.running)
        client.socket.transport.abort()
    await until(lambda: not service.site.running)


async def test_a_batch_has_a_turn_for_each_request(service):
    """Between the requests of a batch other clients have their turns."""
    async with open_socket(service) as client, open_socket(service) as other:
        batch = [{"jsonrpc": "2.0", "id": id_, "method": "topics"} for id_ in range(100)]
        asked = client.send_raw(batch, json.dumps(list(range(100))))
        turns, queue = [], service.site.queue
        begun, submit = asyncio.Event(), queue.submit

        def counting(key, begin, **how):
            turns.append(key)
            begun.set()
            submit(key, begin, **how)

        queue.submit = counting
        await begun.wait()
        assert "result" in await other.ask("health")
        assert len(await asked) == 100
        assert len(turns) >= 101


# Limits and ends.


async def test_frames_that_close(service):
    """What is no text, no UTF-8, too large or breaks the protocol has the code that says so."""
    size = service.settings.max_body_bytes
    for frames, code in [
        ([Frame(Opcode.BINARY, b"x")], 1003),
        ([Frame(Opcode.TEXT, b"\xff")], 1007),
        ([Frame(Opcode.TEXT, b"x" * (size + 1))], 1009),
        ([Frame(Opcode.TEXT, b"x" * size, fin=False), Frame(Opcode.CONT, b"x")], 1009),
        ([Frame(Opcode.CONT, b"x")], 1002),
        ([Frame(Opcode.TEXT, b"x", rsv1=True)], 1002),
        ([Frame(Opcode.TEXT, b"x", fin=False), Frame(Opcode.TEXT, b"y")], 1002),
        ([Frame(Opcode.PING, b"x" * 126)], 1002),
    ]:
        async with open_socket(service) as client:
            for frame in frames:
                client.socket.transport.write(serialized(frame))
            assert await client.closed() == code, (frames, code)
    async with open_socket(service) as client:
        client.socket.transport.write(serialized(Frame(Opcode.TEXT, b"{}"), mask=False))
        assert await client.closed() == 1002
    assert service.site.running == 0


def serialized(frame, mask=True):
    """A frame's bytes, without a look at whether it is a good one."""
    length = len(frame.data)
    first = (frame.fin << 7) | (frame.rsv1 << 6) | frame.opcode
    size = (
        bytes([length])
        if length < 126
        else b"\x7e" + length.to_bytes(2)
        if length < 65536
        else b"\x7f" + length.to_bytes(8)
    )
    if not mask:
        return bytes([first]) + size + frame.data
    return bytes([first, size[0] | 0x80]) + size[1:] + b"\0\0\0\0" + frame.data


async def test_fragments(service):
    """A message may come in many frames, with pings between them, each byte alone."""
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "health"}).encode()
    frames = [Frame(Opcode.TEXT, b"", fin=False), *[Frame(Opcode.CONT, bytes([each]), fin=False) for each in text]]
    frames[5:5] = [Frame(Opcode.PING, b"hello")]
    async with open_socket(service) as client:
        found = client.expect(1)
        for byte in b"".join(map(serialized, [*frames, Frame(Opcode.CONT, b"")])):
            client.socket.transport.write(bytes([byte]))
        assert (await asyncio.wait_for(found, BOUND_S))["result"]["status"] == "ok"


async def test_rates(start_service):
    """Each request counts, those of a batch too; one that goes on all the same loses its connection."""
    service = await start_service(unlimited_addresses=(), rate_per_address=5, burst_per_address=10)
    async with open_socket(service) as client:
        for _ in range(9):  # the handshake was one
            await client.call("health")
        error = (await client.ask("health"))["error"]
        assert (error["code"], error["message"], error["data"]) == (429, "Too many requests", {"retryAfter": 1})
        batch = [{"jsonrpc": "2.0", "id": number, "method": "health"} for number in range(100)]
        client.send_raw(batch, json.dumps(list(range(100))))
        assert await client.closed() == 1008


async def test_the_drain_waits_for_a_batch(service, monkeypatch):
    """The last response of a batch is not its end: the message with all of them is."""
    sent = []
    send = websocket.WebSocket.send

    def watched(self, message, **options):
        sent.append(message)
        return send(self, message, **options)

    monkeypatch.setattr(websocket.WebSocket, "send", watched)
    async with open_socket(service) as client:
        batch = [{"jsonrpc": "2.0", "id": number, "method": "health"} for number in range(100)]
        client.send_raw(batch, json.dumps(list(range(100))))
        async with asyncio.timeout(BOUND_S):
            while not service.site.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await service.site.drain()
        assert len(json.loads(sent[-1])) == 100


@pytest.fixture
def states(monkeypatch):
    """What the connections of the servers share, of each WebSocket that is opened."""
    found = []
    made = websocket.WebSocket.connection_made

    def noting(self, transport):
        found.append(self.state)
        made(self, transport)

    monkeypatch.setattr(websocket.WebSocket, "connection_made", noting)
    return found


async def test_messages_that_do_not_end(service, states):
    """The address that has sent the most of such loses its connections; others send as much as they like."""
    large = serialized(Frame(Opcode.TEXT, b" " * 200_000))
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(open_socket(service, local_addr=("127.0.0.2", 0)))
        states[0].unfinished = Backlog(1_000_000, attrgetter("unfinished_bytes"))
        senders = [await stack.enter_async_context(open_socket(service)) for _ in range(6)]
        for sender in senders:
            sender.socket.transport.write(large[:-1])
        await until(lambda: states[0].unfinished.ended)
        for _ in range(5):
            await other.call("offer", topic="lobby", info="i", offer="o" * 250_000)
        await until(lambda: sum(each.socket.close_code == 1006 for each in senders) == states[0].unfinished.ended)
    await until(lambda: not states[0].unfinished.bytes)


async def test_control_frames_are_no_messages(service, states):
    """However many pings and pongs have come, nothing is unfinished for that."""
    async with open_socket(service) as client:
        for _ in range(20):
            await client.socket.pong(b"x" * 100)
            await (await client.socket.ping())
        assert (await client.call("health"))["status"] == "ok"
        await client.socket.pong(b"x" * 100)
        await (await client.socket.ping())
        assert states[0].unfinished.bytes == 0


async def test_what_looks_like_a_pong(service, states):
    """Bytes of a message that come alone and are those of an empty pong are the message's."""
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "health"}).encode()
    head, key = serialized(Frame(Opcode.TEXT, text))[:2], bytes([text[0] ^ 0x8A, text[1] ^ 0x80, 0, 0])
    masked = bytes(each ^ key[place % 4] for place, each in enumerate(text))
    assert masked.startswith(b"\x8a\x80")
    async with open_socket(service) as client:
        found = client.expect(1)
        sent = 0
        for part in (head + key, masked[:6], masked[6:]):
            client.socket.transport.write(part)
            sent += len(part)
            await until(lambda sent=sent: found.done() or states[0].unfinished.bytes == sent)
        assert (await asyncio.wait_for(found, BOUND_S))["result"]["status"] == "ok"


async def test_what_comes_with_a_close(service, caplog):
    """What breaks the rules right before the client's own close is no error of the server's."""
    async with open_socket(service) as client:
        frames = [Frame(Opcode.BINARY, b"x"), Frame(Opcode.CLOSE, (1000).to_bytes(2))]
        client.socket.transport.write(b"".join(map(serialized, frames)))
        assert await client.closed() == 1000
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_what_is_refused_is_not_done(start_service):
    """Once a client is closed for asking too much, nothing of what it has sent before is begun."""
    service = await start_service(unlimited_addresses=(), rate_per_address=5, burst_per_address=10)
    async with open_socket(service) as client:
        batch = [{"jsonrpc": "2.0", "id": number, "method": "health"} for number in range(100)]
        for _ in range(10):
            await client.socket.send(json.dumps(batch))
        assert await client.closed() == 1008
    await until(lambda: not service.site.running)
    assert sum(service.site.log.metrics.requests.by_pattern()["/health"].counts) < 30


async def test_waits_of_a_server_that_stops(service):
    """Those that wait are answered; one that asks again is sent to the next server, not answered at once for ever."""
    code = await service.offer()
    async with open_socket(service) as client:
        waiting = client.send("poll", code=code, side="offerer", wait=60)
        await until(lambda: service.site.limits.waiting)
        service.store.end_watches()
        assert "result" in await asyncio.wait_for(waiting, BOUND_S)
        assert (await client.call("health"))["status"] == "ok"
        client.send("poll", code=code, side="offerer", wait=60)
        assert await client.closed() == 1012


async def test_one_that_does_not_read(service):
    """A client that leaves a megabyte of responses unread is closed; events wait until it reads."""
    code = await service.offer(offer="x" * 100_000)
    async with open_socket(service) as client:
        await client.call("subscribe", topic="lobby")
        client.socket.transport.pause_reading()
        for _ in range(300):
            client.send("poll", code=code, side="answerer")
        await until(lambda: not service.site.limits.waiting)
        client.socket.transport.resume_reading()
        assert await client.closed() in (1008, 1006)
    async with open_socket(service) as client:
        await client.call("subscribe", topic="lobby")
        client.socket.transport.pause_reading()
        codes = [code] + [await service.offer(offer="x" * 100_000) for _ in range(100)]
        client.socket.transport.resume_reading()
        assert [(await client.event())[1]["code"] for _ in codes] == codes


async def test_one_that_speaks_and_does_not_read(service, monkeypatch):
    """A client that goes on asking, and takes nothing of what waits for it, is gone after the same time."""
    monkeypatch.setattr(websocket, "PING_S", 0.2)
    monkeypatch.setattr(websocket, "SILENT_S", 2.0)
    for _ in range(100):
        await service.offer(offer="x" * 100_000)
    async with open_socket(service) as client:
        client.socket.transport.pause_reading()
        await client.socket.send(json.dumps({"jsonrpc": "2.0", "method": "subscribe", "params": {"topic": "lobby"}}))
        await until(lambda: service.site.limits.waiting == 1)
        async with asyncio.timeout(BOUND_S):
            while service.site.limits.waiting:
                await client.socket.send('{"jsonrpc": "2.0", "method": "health"}')
                await asyncio.sleep(0.2)
        client.socket.transport.abort()


async def test_silence(service, monkeypatch):
    """A client that answers pings stays, one that is silent is gone, and its subscriptions with it."""
    monkeypatch.setattr(listener, "DEADLINES_STEP", 1)
    monkeypatch.setattr(websocket, "PING_S", 0.2)
    monkeypatch.setattr(websocket, "SILENT_S", 2.0)
    async with open_socket(service) as lively, open_socket(service) as silent:
        for client in (lively, silent):
            await client.call("subscribe", topic="lobby")
        silent.socket.transport.pause_reading()
        await until(lambda: service.site.limits.waiting == 1)
        assert (await lively.call("health"))["status"] == "ok"
        silent.socket.transport.abort()
