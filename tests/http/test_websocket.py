"""The WebSocket API: handshake, messages, methods, subscriptions and limits (docs/websocket-api.md)."""

import asyncio
import contextlib
import ipaddress
import json
import socket
import tracemalloc
from operator import attrgetter

import pytest
from support.frame_vectors import CLOSE, CONT, MORE, PING, PONG, TEXT, frame
from support.rpc import BOUND_S, DOCUMENT, open_socket, until
from support.service import HANDSHAKE, ORIGIN, OTHER, allowed_origin, head, invalid, refused, with_origin
from websockets.exceptions import InvalidStatus

from tornado_signal.service.operations import declare
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import Settings
from tornado_signal.transport import listener, websocket
from tornado_signal.transport.parser import PIECE_BYTES
from tornado_signal.transport.state import MemoryBudget
from tornado_signal.websocket.connection import RpcConnection, make_methods

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


def request(method, /, *id_, **params):
    """Return a request, or a notification if `id_` is missing."""
    return (
        {"jsonrpc": "2.0", "method": method} | ({"id": id_[0]} if id_ else {}) | ({"params": params} if params else {})
    )


def send_batch(client, method, count):
    """Send a batch of equal requests and return the future of the responses."""
    return client.send_raw([request(method, number) for number in range(count)], json.dumps([*range(count)]))


def handshake(**changes):
    """Return the headers of a handshake with `changes`. A header changed to None is removed."""
    headers = dict(HANDSHAKE) | {name.replace("_", "-"): value for name, value in changes.items()}
    return [(name, value) for name, value in headers.items() if value is not None]


BAD_UPGRADE = (400, invalid("Upgrade"))
HANDSHAKES = [
    *((handshake(**{name: None}), BAD_UPGRADE) for name in ("Upgrade", "Sec_WebSocket_Key", "Sec_WebSocket_Version")),
    (handshake(Upgrade="h2c"), BAD_UPGRADE),
    (handshake(Connection="keep-alive"), BAD_UPGRADE),
    (handshake(Sec_WebSocket_Key="short"), BAD_UPGRADE),
    (handshake(Sec_WebSocket_Version="8"), (400, invalid("Sec-WebSocket-Version"))),
]


@pytest.mark.parametrize(("headers", "expected"), HANDSHAKES, ids=str)
async def test_invalid_handshake_is_400_and_the_connection_stays_open(headers, expected, service):
    async with service.connect() as connection:
        await connection.send(head("GET", "/ws", with_origin(ORIGIN, headers)))
        response = await connection.receive()
        assert (refused(response), allowed_origin(response)) == (expected, ORIGIN)
        assert response.headers.get("Sec-WebSocket-Version") == (None if expected == BAD_UPGRADE else "13")
        await connection.send(head("GET", "/health", with_origin(ORIGIN, headers)))
        assert (await connection.receive()).status == 200


async def test_handshake_checks_the_origin_and_the_method(start_service):
    service = await start_service(allowed_origins=AllowedOrigins(frozenset({ORIGIN})))
    for origin, expected in ((None, (400, invalid("Origin"))), (OTHER, (403, "Origin not allowed"))):
        assert refused(await service.call("GET", "/ws", origin=origin, headers=handshake())) == expected
    response = await service.call("POST", "/ws", {}, headers=handshake())
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    async with open_socket(service) as client:
        assert (await client.call("health"))["status"] == "ok"
    counted = {("/ws", 405): 1, ("/ws", 101): 1, ("/health", 200): 1}
    assert service.shared.log.metrics.by_origin == {(ORIGIN, *kind): number for kind, number in counted.items()}
    of_head, of_get = await service.call("HEAD", "/ws", headers=handshake()), await service.call("GET", "/ws")
    assert (of_head.status, of_head.body, of_get.status) == (400, b"", 400)
    assert of_head.headers["Content-Length"] == of_get.headers["Content-Length"]


async def test_subprotocol_is_selected_if_offered(service):
    chosen = {None: None, ("signal.v1",): "signal.v1", ("x", "signal.v1"): "signal.v1", ("x",): None}
    for offered, expected in (chosen | {("SIGNAL.V1",): None}).items():
        async with open_socket(service, subprotocols=offered) as client:
            assert client.socket.subprotocol == expected
            assert "version" in await client.call("version")


@pytest.mark.parametrize(
    ("polls", "early"),
    [(0, b"G"), (0, head("GET", "/health", with_origin(ORIGIN))), (0, b"\x81\x80"), (1, bytes(2 * PIECE_BYTES))],
    ids=["begun", "request", "frame", "too much after a poll"],
)
async def test_frames_before_the_101_close_the_connection(polls, early, service):
    service.server.state.unfinished.max_bytes = 0
    poll = head("GET", "/lobby/sessions?wait=0.1", with_origin(ORIGIN))
    async with service.connect() as connection:
        await connection.send(poll * polls + head("GET", "/ws", with_origin(ORIGIN, handshake())) + early)
        assert [(await connection.receive()).status for _ in range(polls)] == [200] * polls
        assert await connection.receive() is None
    assert service.server.state.cut_off["data before the response to a handshake"] == 1


INVALID_MESSAGES = [
    *((text, -32700, None) for text in ("nonsense", "{", "[" * 100_000)),
    *((text, -32600, None) for text in ("1", "[]", "{}", '{"id": 1, "method": "version"}')),
    ('{"jsonrpc": "1.0", "id": 1, "method": "version"}', -32600, None),
    *((f'{{"jsonrpc": "2.0", "id": {id_}, "method": "version"}}', -32600, None) for id_ in ("[]", 2**64, "1e400")),
    ('{"jsonrpc": "2.0", "id": 77, "method": 1}', -32600, None),
    ('{"jsonrpc": "2.0", "id": 77, "method": "version", "params": []}', -32602, 77),
    ('{"jsonrpc": "2.0", "id": "é", "method": "nonsense"}', -32601, "é"),
    *((json.dumps(text), -32600, None) for text in ([request("version", 1)] * 101, request("version", "x" * 127))),
]


async def test_invalid_messages_get_json_rpc_errors_and_ids_are_returned_unchanged(service):
    """Notifications get no response."""
    async with open_socket(service) as client:
        for message, code, id_ in INVALID_MESSAGES:
            future = client.expect(id_)
            await client.socket.send(message)
            response = await asyncio.wait_for(future, BOUND_S)
            assert (response["jsonrpc"], response["id"], response["error"]["code"]) == ("2.0", id_, code), message[:50]
        for id_ in (2**64 - 1, -(2**63), 1.5, "x" * 126, None):
            future = client.expect(id_)
            await client.socket.send('{"jsonrpc": "2.0", "method": "version", "params": [1]}')
            await client.socket.send(json.dumps(request("version", id_)))
            assert "version" in (await asyncio.wait_for(future, BOUND_S))["result"]


async def test_waiting_request_frees_the_unused_parts_of_its_message(service):
    code = await service.offer()
    async with open_socket(service) as client:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for number in range(2):
                unused = {"unused": [f"{number}-{item}" for item in range(10_000)]}
                client.send("poll", code=code, side="offerer", wait=60, **unused)
                batch = [request("poll", f"b{number}", code=code, side="offerer", wait=60, **unused)]
                client.send_raw(batch, json.dumps([f"b{number}"]))
                await until(lambda number=number: service.shared.limits.waiting == 2 * number + 2)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 1_000_000  # each of the four messages takes 800 kB


async def test_batch_gets_a_single_response_message_and_requests_take_effect_in_the_order_sent(service):
    async with open_socket(service) as client:
        offer = {"topic": "lobby", "info": "i", "offer": "o"}
        batch = [request("version", "a"), request("offer", **offer), 3, request("offer", None)]
        response = await asyncio.wait_for(client.send_raw(batch, json.dumps(["a", None, None])), BOUND_S)
        assert [[*(response.keys() - {"jsonrpc", "id"})] for response in response] == [["result"], ["error"], ["error"]]
        assert len((await client.call("sessions", topic="lobby"))["sessions"]) == 1
        await client.socket.send(json.dumps([request("offer", **offer)] * 2))
        while len((await client.call("sessions", topic="lobby"))["sessions"]) < 3:
            pass
        code = (await client.call("offer", topic="lobby", info="i", offer="o"))["code"]
        waiting = client.send("poll", code=code, side="offerer", wait=60, since=None)
        texts = [str(number) for number in range(200)]
        sent = [client.send("answer", code=code, side="answerer", candidate=text) for text in texts]
        read = client.send("poll", code=code, side="offerer")
        assert [(await future)["result"] for future in sent] == [{"success": True}] * len(texts)
        assert (await read)["result"]["answerCandidates"] == texts
        assert (await waiting)["result"]["answerCandidates"][:1] == texts[:1]


async def test_concurrent_subscribe_requests_respect_the_limit_of_100(service, monkeypatch):
    code = await service.offer()
    read = service.store.read

    async def read_later(*args, **options):  # reads take a while, as on Redis
        await asyncio.sleep(0.01)
        return await read(*args, **options)

    monkeypatch.setattr(service.store, "read", read_later)
    async with open_socket(service) as client:
        params = {"code": code, "side": "answerer"}
        futures = [client.send("subscribe", **params) for _ in range(150)]
        responses = await asyncio.wait_for(asyncio.gather(*futures), BOUND_S)
        numbers = [response["result"]["subscription"] for response in responses if "result" in response]
        assert len(numbers) == 100
        assert responses[-1]["error"]["data"] == {"retryAfter": 1}
        await client.call("unsubscribe", subscription=numbers[0])
        await client.call("subscribe", topic="more")
        await service.post("/withdraw", code=code, side="offerer")
        await until(lambda: service.shared.limits.waiting == 1)  # the other subscriptions have ended
        await client.call("subscribe", topic="lobby")


async def test_closing_a_connection_ends_its_subscriptions_and_requests(service):
    for offer in range(30):
        await service.offer(offer=f"{offer}" + "x" * 50_000)
    for _ in range(3):
        async with open_socket(service) as client:
            message = request("subscribe", topic="lobby")
            await client.socket.send(json.dumps([message] * 20))
            await client.socket.send(json.dumps(message))
            assert (await client.event())[0] == "session"
    await until(lambda: not service.shared.limits.waiting)
    await until(lambda: not service.shared.running)
    async with open_socket(service) as client:
        client.socket.transport.pause_reading()
        await client.socket.send(json.dumps([request("sessions", 1, topic="lobby")] * 9))
        await until(lambda: service.shared.running)
        client.socket.transport.abort()
    await until(lambda: not service.shared.running)


async def test_other_clients_are_served_between_the_requests_of_a_batch_and_a_drain_waits_for_all(service, opened):
    async with open_socket(service) as client, open_socket(service) as other_client:
        batch = send_batch(client, "topics", 100)
        turns, queue = [], service.shared.queue
        started, submit = asyncio.Event(), queue.submit

        def recording_submit(key, begin, **how):
            turns.append(key)
            started.set()
            submit(key, begin, **how)

        queue.submit = recording_submit
        await started.wait()
        assert "result" in await other_client.ask("health")
        assert len(await batch) == 100
        assert len(turns) >= 100  # one for each request. A message while nothing waits needs none
        written = opened[0]._transport.writes
        written.clear()
        send_batch(client, "topics", 100)
        async with asyncio.timeout(BOUND_S):
            while not service.shared.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await service.shared.drain()
        assert b"".join(written).count(b'"id":') == 100


class Recording:
    """A transport and its writes."""

    def __init__(self, transport):
        self._transport, self.writes = transport, []

    def write(self, data):
        self.writes.append(data)
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)


@pytest.fixture
def opened(monkeypatch):
    """The server's side of each opened WebSocket."""
    sockets = []
    connection_made = websocket.WebSocket.connection_made

    def recording(self, transport):
        sockets.append(self)
        connection_made(self, Recording(transport))

    monkeypatch.setattr(websocket.WebSocket, "connection_made", recording)
    return sockets


@pytest.mark.parametrize("part", [1000, 70_001])
async def test_messages_sent_ahead_arrive_whole_and_in_order(part, service, opened, monkeypatch):
    received, sizes = [], [0, 1, 125, 126, 2040, 2041, 3000, 65_535, 65_536, 5, 7, 20_000, 1]

    def message_received(self, message):
        received.append(message)
        opened[0].message_done(len(message))

    monkeypatch.setattr(RpcConnection, "message_received", message_received)
    messages = [bytes(number % 127 for number in range(size, 2 * size)) for size in sizes]
    frames = [frame(TEXT, message) for message in messages]
    frames[4:4] = [frame(TEXT | MORE, b"frag"), frame(PING, b"p"), frame(CONT, b"ment")]
    messages[4:4] = [b"fragment"]
    data = b"".join(frames * 3)
    async with open_socket(service) as client:
        for at in range(0, len(data), part):
            client.socket.transport.write(data[at : at + part])
            await asyncio.sleep(0)
        await until(lambda: len(received) >= 3 * len(messages))
        client.socket.transport.abort()
    assert received == messages * 3


@pytest.mark.parametrize(
    "before", [b"", b"\x89\x80....", b"\x01\x80...."], ids=["alone", "after a ping", "in a message"]
)
@pytest.mark.parametrize(
    ("payload", "deliberate"),
    [(b"", True), (b"\3\xe8", True), (b"\3\xe9", True), (b"\3\xe9bye", True), (b"\3\xf0", False), (b"\3\xed", False)],
)
async def test_close_frame_is_answered_in_kind(payload, deliberate, before, service, opened, monkeypatch):
    ends, lost = [], websocket.WebSocket.connection_lost

    def connection_lost(self, exc):
        ends.append((self.closed_by_client, self._close_code))
        lost(self, exc)

    monkeypatch.setattr(websocket.WebSocket, "connection_lost", connection_lost)
    async with open_socket(service) as client:
        client.socket.transport.write(before)
        await asyncio.sleep(0.02)
        opened[0].post(b"last")
        client.socket.transport.write(frame(CLOSE, payload))
        await until(lambda: ends)
        client.socket.transport.abort()
    frames = b"".join(opened[0]._transport.writes)
    assert b"\x81\x04last" in frames
    code = int.from_bytes(payload[:2], "big") if payload else 1005
    if code == 1005 and payload:  # which must not be sent
        assert frames[frames.index(b"\x88") :][2:4] == (1002).to_bytes(2, "big")
    else:
        assert frames.endswith(b"\x88%c%b" % (len(payload), payload))
        assert ends == [(deliberate, code)]


@pytest.mark.parametrize("kept_bytes", [1, 5, websocket.POSTED_BYTES])
async def test_posted_messages_share_a_write_and_precede_later_ones(kept_bytes, service, opened, monkeypatch):
    monkeypatch.setattr(websocket, "POSTED_BYTES", kept_bytes)
    async with open_socket(service) as client:
        writes = opened[0]._transport.writes
        opened[0].post(b"1")
        opened[0].post(b"2")
        await until(lambda: b"".join(writes) == b"\x81\x011\x81\x012")
        assert len(writes) == (2 if kept_bytes == 1 else 1)
        opened[0].post(b"3")
        opened[0].send(b"4")
        opened[0].post(b"5")
        opened[0].close()
        opened[0].post(b"6")
        assert await client.closed() == 1012
    written = b"".join(writes)
    assert written.startswith(b"\x81\x011\x81\x012\x81\x013\x81\x014\x81\x015\x88")
    assert b"\x81\x016" not in written


async def test_each_request_counts_towards_the_rate_limit_and_none_after_the_close(start_service):
    service = await start_service(unlimited_addresses=(), rate_per_address=1)
    async with open_socket(service) as client:
        for _ in range(9):  # the handshake also counts
            await client.call("health")
        error = (await client.ask("health"))["error"]
        assert (error["code"], error["message"], error["data"]) == (429, "Too many requests", {"retryAfter": 1})
        for _ in range(10):
            send_batch(client, "health", 100)
        assert await client.closed() == 1008
    await until(lambda: not service.shared.running)
    assert sum(service.shared.log.metrics.requests.by_pattern()["/health"].counts) < 30


@pytest.mark.parametrize("opcode", [PING, PONG])
async def test_control_frames_except_requested_pongs_count_towards_the_rate_limit(opcode, start_service, pass_time):
    service = await start_service(unlimited_addresses=(), rate_per_address=1)
    async with open_socket(service) as client:
        for _ in range(40):  # as often the client sends a pong
            await pass_time(21)
        await client.call("health")
        client.socket.transport.write(frame(opcode) * 100)
        assert await client.closed() == 1008


async def test_each_request_of_a_batch_is_charged_the_bytes_it_stores(start_service):
    service = await start_service(unlimited_addresses=(), max_bytes_per_address=100_000)
    async with open_socket(service) as client:
        batch = [request("offer", 0, topic="lobby", info="i", offer="x" * 60_000)]
        batch += [request("version", number) for number in range(1, 60)]
        rejections = 0
        for _ in range(2):
            responses = await asyncio.wait_for(client.send_raw(batch, json.dumps([*range(60)])), BOUND_S)
            rejections += "error" in responses[0]
        assert rejections == 1
        # Bytes are charged, not code points, and unused fields are free.
        assert "result" in await client.ask("offer", topic="lobby", info="i", offer="o", unused="x" * 60_000)
        assert await client.refused("offer", topic="lobby", info="i", offer="é" * 25_000) == (429, "Too many requests")


async def test_limits_apply_to_each_client_behind_a_proxy(start_service, opened):
    service = await start_service(trusted_proxies=LOOPBACK, max_connections_per_address=3)
    forwarded = {name: {"additional_headers": {"X-Forwarded-For": f"192.0.2.{name}"}} for name in (1, 2)}
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_socket(service, **forwarded[1])) for _ in range(3)]
        with pytest.raises(InvalidStatus, match="429"):
            await stack.enter_async_context(open_socket(service, **forwarded[1]))
        other = await stack.enter_async_context(open_socket(service, **forwarded[2]))
        await clients.pop().socket.close()
        await until(lambda: service.shared.limits.client("192.0.2.1").connections == 2)
        clients.append(await stack.enter_async_context(open_socket(service, **forwarded[1])))
        opened[0].state.unfinished = MemoryBudget(500_000, attrgetter("unfinished_bytes"))
        other.socket.transport.write(frame(TEXT, b" " * 100_000)[:-1])
        await until(lambda: opened[0].state.unfinished.bytes > 75_000)
        for client in clients:
            client.socket.transport.write(frame(TEXT, b" " * 190_000)[:-1])
        await until(lambda: opened[0].state.unfinished.ended)
        await until(lambda: any(client.socket.close_code == 1006 for client in clients))
        assert other.socket.close_code is None
    await until(lambda: service.shared.limits.client("192.0.2.1").idle)


async def test_what_a_lost_connection_is_asked_for_counts_nowhere(service, opened, monkeypatch):
    monkeypatch.setattr(RpcConnection, "message_received", lambda self, message: None)
    async with open_socket(service) as client:
        (lost,), state = opened, service.server.state
        for _ in range(2):
            client.socket.transport.write(frame(TEXT, b" " * 3000))
        await until(lambda: lost._running == 2)
        client.socket.transport.abort()
        await until(lambda: not state.connections)
    lost.message_done(3000)
    lost.add_kept(1000)
    lost.post(b"late")
    lost.close(websocket.CloseCode.POLICY_VIOLATION, "late")
    assert (state.unfinished.bytes, state.unsent.bytes, state.cut_off["late"], lost._posted) == (0, 0, 0, b"")


async def test_http_and_large_messages_that_wait_for_their_turn_share_the_budget_for_unfinished_ones(
    service, opened, monkeypatch
):
    monkeypatch.setattr(RpcConnection, "message_received", lambda self, message: None)
    ahead = head("GET", "/lobby/sessions?wait=60", with_origin(ORIGIN)) + head("GET", "/", with_origin(ORIGIN)) * 1000
    async with contextlib.AsyncExitStack() as stack:
        senders = [await stack.enter_async_context(open_socket(service)) for _ in range(3)]
        unfinished = opened[0].state.unfinished
        while (before := unfinished.bytes) < 150_000:
            await (await stack.enter_async_context(service.connect())).send(ahead)
            await until(lambda before=before: unfinished.bytes > before)
        unfinished.max_bytes = before + 50_000
        for sender in senders:
            sender.socket.transport.write(frame(TEXT, b" " * 20_000))
            await asyncio.sleep(0.02)
        await until(lambda: unfinished.ended)
        assert unfinished.bytes <= unfinished.max_bytes
        for sender in senders:
            sender.socket.transport.abort()
        await service.offer()  # ends the waits behind which requests are not read
    await until(lambda: not unfinished.bytes)


async def test_stopping_server_closes_a_client_that_waits_again(service):
    code = await service.offer()
    async with open_socket(service) as client:
        waiting = client.send("poll", code=code, side="offerer", wait=60)
        await until(lambda: service.shared.limits.waiting)
        service.store.end_watches()
        assert "result" in await asyncio.wait_for(waiting, BOUND_S)
        assert (await client.call("health"))["status"] == "ok"
        client.send("poll", code=code, side="offerer", wait=60)
        assert await client.closed() == 1012


async def test_client_that_does_not_read_is_closed_and_its_requests_are_dropped(service, opened, pass_time):
    code = await service.offer(offer="x" * 200_000)
    async with open_socket(service) as client:
        await client.call("subscribe", topic="lobby")
        client.socket.transport.pause_reading()
        polls = [request("poll", number, code=code, side="answerer") for number in range(100)]
        client.send_raw(polls, json.dumps([*range(100)]))
        await until(lambda: opened[0].state.unsent.bytes > websocket.MAX_UNSENT_BYTES)
        offered = client.send("offer", topic="other", info="i", offer="o")
        for _ in range(30):
            await pass_time(1)
        await until(lambda: not service.shared.limits.waiting)
        client.socket.transport.resume_reading()
        assert await client.closed() in (1008, 1006)
        with pytest.raises(ConnectionError):
            await offered
        assert await service.topics() == [("lobby", 1)]
    async with open_socket(service) as client:
        await client.call("subscribe", topic="lobby")
        client.socket.transport.pause_reading()
        codes = [code] + [await service.offer(offer="x" * 100_000) for _ in range(30)]
        client.socket.transport.resume_reading()
        assert [(await client.event())[1]["code"] for _ in codes] == codes


async def test_slow_silent_reader_stays_connected(service, pass_time):
    code = await service.offer(offer="x" * 200_000)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # otherwise the kernel reads ahead
    client.connect(("127.0.0.1", service.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    writer.write(head("GET", "/ws", with_origin(ORIGIN, handshake())))
    await reader.readuntil(b"\r\n\r\n")
    polls = [request("poll", number, code=code, side="answerer") for number in range(60)]
    writer.write(frame(TEXT, json.dumps(polls).encode()))
    for _ in range(48):
        await asyncio.wait_for(reader.readexactly(200_000), BOUND_S)
        await pass_time(1)
    await asyncio.wait_for(reader.readexactly(12 * 200_000), BOUND_S)
    writer.close()


async def test_client_that_is_silent_or_never_reads_is_closed_and_one_that_answers_pings_stays(
    service, monkeypatch, pass_time
):
    monkeypatch.setattr(listener, "DEADLINES_STEP", 1)
    for _ in range(100):
        await service.offer(offer="x" * 100_000)
    async with open_socket(service) as lively, open_socket(service) as silent, open_socket(service) as sending:
        for client in (lively, silent):
            await client.call("subscribe", topic="empty")
        for client in (silent, sending):
            client.socket.transport.pause_reading()
        await sending.socket.send(json.dumps(request("subscribe", topic="lobby")))
        await until(lambda: service.shared.limits.waiting == 3)
        for _ in range(20):
            if service.shared.limits.waiting > 1:
                await sending.socket.send(json.dumps(request("health")))
            await pass_time(4)
            await service.get("/health")
        assert service.shared.limits.waiting == 1
        assert (await lively.call("health"))["status"] == "ok"
        for client in (silent, sending):
            client.socket.transport.abort()


async def test_asyncapi_document_has_every_method_and_needs_no_origin(service):
    assert (await service.call("GET", "/asyncapi.json", origin=None)).json == json.loads(json.dumps(DOCUMENT))
    methods = set(make_methods(declare(Settings())))
    assert set(DOCUMENT["operations"]) == methods | {"event"}
    results = {f"{method}Result" for method in methods}
    assert set(DOCUMENT["components"]["messages"]) == methods | results | {"error", "event"}
