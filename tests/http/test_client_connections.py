"""Connections of clients of all protocols: errors, the cost of messages, cancellation, memory, unusual JSON."""

import asyncio
import contextlib
import functools
import json
import logging
import math
import tracemalloc
from types import SimpleNamespace
from uuid import uuid4

import pytest
from support import json_vectors
from support.frame_vectors import CONT, MORE, PING, TEXT, frame
from support.nostr import make_event
from support.peerjs import open_peer
from support.rpc import BOUND_S, RpcClient, until
from support.service import HANDSHAKE, ORIGIN, OTHER, TIMEOUT_MS, head, invalid, with_origin
from support.y_webrtc import RawClient
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tornado_signal.protocols import matchbox, peerjs, rooms
from tornado_signal.protocols.connection import ProtocolConnection
from tornado_signal.service import other_protocols
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.system.hourly import INTERVAL_S, MAX_CAUSES, HourlyWarnings
from tornado_signal.transport import websocket
from tornado_signal.websocket import rpc

MESSAGES = {  # a message that is processed at once, and one whose work is awaited
    "/ws": ['{"jsonrpc":"2.0","id":1,"method":"health"}'],
    "/peerjs?id=a&token=t&key=k": ['{"type":"HEARTBEAT"}', '{"type":"LEAVE"}'],
    "/y-webrtc": ['{"type":"ping"}', '{"type":"subscribe","topics":["a"]}'],
    "/tracker": ['{"action":"scrape"}'],
    "/nostr": ['["REQ"]'],
}


ANSWERED = {  # paths of a protocol, and a message that each connection gets a response to
    "peerjs": (["/peerjs?id=a&token=t&key=k"], '{"type":"OFFER","dst":"a","payload":"hidden"}'),
    "y-webrtc": (["/y-webrtc"], '{"type":"ping","more":"hidden"}'),
    "tracker": (["/tracker", "/announce"], '{"action":"scrape","info_hash":"hidden of 20 letters"}'),
    "nostr": (["/nostr", "/nostr/"], '["REQ","hidden",{"#x":["hidden"],"more":1}]'),
    "rxdb": (["/rxdb"], '{"type":"signal","room":"a room","senderPeerId":"00","receiverPeerId":"00","data":"hidden"}'),
    "matchbox": (["/matchbox/room"], '{"Signal":{"receiver":"00","data":"hidden"}}'),
    "godot": (["/godot"], '{"type":4,"id":1,"data":"hidden"}'),
}
JOINS = {"/rxdb": '{"type":"join","room":"a room"}', "/godot": '{"type":0,"id":0,"data":""}'}
GREETINGS = {"/rxdb": 2, "/matchbox/room": 1, "/godot": 2}  # messages to a client that has joined


# A path, what each client sends first, and what one then sends to "second". Names have 20 letters, as in trackers.
ANNOUNCED = '{"action":"announce","info_hash":"swarm of twenty char","peer_id":"WHO"'
RELAYED = '{"type":"publish","topic":"room","data":"WHO"}'
MEETINGS = {
    "peerjs": ("/peerjs?id=WHO&token=t&key=k", "", '{"type":"OFFER","dst":"second--------------"}'),
    "y-webrtc": ("/y-webrtc", '{"type":"subscribe","topics":["room"]}', RELAYED),
    "tracker": ("/tracker", ANNOUNCED + "}", ANNOUNCED + ',"offers":[{"offer":1},{"offer":2}]}'),
    "nostr": ("/nostr", '["REQ","a",{"#x":["room"]}]', "of each an event"),
    "rxdb": ("/rxdb", "", ""),
    "matchbox": ("/matchbox/room", "", ""),
}


def open_socket(service, path, origin=ORIGIN):
    return RawClient(f"ws://127.0.0.1:{service.port}{path}", origin, max_queue=None)


@contextlib.asynccontextmanager
async def opened(service, path, origin=ORIGIN):
    """A connection that is ready to be used."""
    async with open_socket(service, path, origin) as socket:
        if path.startswith("/peerjs"):
            assert await socket.receive() == {"type": "OPEN"}
        if path in JOINS:
            await socket.send(JOINS[path])
        for _ in range(GREETINGS.get(path, 0)):
            await socket.receive()
        yield socket


@pytest.fixture(
    params=[(name, path) for name, (paths, _) in ANSWERED.items() for path in paths], ids=lambda each: each[1]
)
def protocol(request, monkeypatch):
    """The name of a protocol, a path of it, and a message that gets a response. Members write to themselves."""
    monkeypatch.setattr(matchbox, "uuid", SimpleNamespace(UUID=lambda int: "00", uuid4=uuid4))
    monkeypatch.setattr(rooms, "os", SimpleNamespace(urandom=lambda size: bytes(1)))
    name, path = request.param
    return name, path, ANSWERED[name][1]


async def test_paths_depend_on_settings_and_origin_and_a_stopping_server_closes_connections(
    protocol, start_service, caplog
):
    name, path, message = protocol
    others = [other for other in ANSWERED if other != name]
    needs = f"{invalid('Origin')}; programs that send none need --shared-protocols {name}"
    allowed = {"allowed_origins": AllowedOrigins(frozenset({ORIGIN}))}
    for settings, origin, status in (
        ({"protocols": others}, ORIGIN, 404),
        ({"shared_protocols": others}, None, 400),
        (allowed, OTHER, 403),
        (allowed, "null", 403),
    ):
        service = await start_service(**settings)
        with pytest.raises(InvalidStatus) as refusal:
            await open_socket(service, path, origin).__aenter__()
        assert refusal.value.response.status_code == status
        assert status != 400 or json.loads(refusal.value.response.body) == {"error": needs}
        more = ["/peerjs/id", "/peerjs/peers"] if name == "peerjs" and status != 403 else []
        for target in more + [path] * (status == 404):
            assert (await service.call("GET", target, origin=origin)).status == status
    assert needs in caplog.text
    async with opened(service, path) as socket:
        await service.shared.drain()
        await socket.send(message)
        assert await socket.closed() == 1013


def channels(service):
    return {*service.application.relay._groups, *service.application.relay._channels}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", MEETINGS)
async def test_clients_of_several_origins_meet_only_if_the_protocol_is_shared_and_leave_nothing(
    name, shared, start_service
):
    path, hello, sent = MEETINGS[name]
    service = await start_service(shared_protocols=[name] if shared else [])
    before, clients = channels(service), {}
    origins = {"second": OTHER, "first": ORIGIN, "third": None if shared else OTHER}
    async with contextlib.AsyncExitStack() as stack:
        for who, origin in [(who.ljust(20, "-"), origin) for who, origin in origins.items()]:
            clients[who] = await stack.enter_async_context(opened(service, path.replace("WHO", who), origin))
            if hello:
                await clients[who].send(hello.replace("WHO", who))
            if name in ("tracker", "nostr"):
                await clients[who].receive()
            await clients[who].ping()
        (_, second), *others = clients.items()
        for who, socket in others if sent else ():
            event = json.dumps(["EVENT", make_event("room", who)])
            await socket.send(event if name == "nostr" else sent.replace("WHO", who))
            await socket.ping()
        heard = [str(await second.receive()) for _ in range(1 + shared)]
        assert not sent or all(who in text for (who, _), text in zip(others[not shared :], heard, strict=True))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second.receive(), 0.05)
    await until(lambda: (service.shared.limits.client("127.0.0.1").idle, channels(service)) == (True, before))


async def test_every_message_counts_towards_the_rate(protocol, start_service):
    _, path, message = protocol
    service = await start_service(unlimited_addresses=(), rate_per_address=2)
    async with opened(service, path) as socket:
        answers = 0
        with contextlib.suppress(ConnectionClosed):
            while answers < 100:
                await socket.send(message)
                await socket.receive()
                answers += 1
        assert answers == 19 - (path in JOINS)  # the handshake also counts
        assert await socket.ended() == (1008, "too many requests of an address")


NUMBERS = [f"{number:020}" for number in range(1000)]  # rooms, topics, swarms, and peers of one


def announcement(name=NUMBERS[0], **more):
    return {"action": "announce", "info_hash": name, "peer_id": NUMBERS[0], "left": 1, **more}


SUBSCRIPTIONS = {  # paths, and a message for each of several names
    "/y-webrtc": lambda name: {"type": "subscribe", "topics": [name]},
    "/tracker": announcement,
    "/nostr": lambda name: ["REQ", name, {"#x": [name]}],
    "/rxdb": lambda name: {"type": "join", "room": name},
}
PER_ADDRESS, PER_CONNECTION = "too many held offers of an address", "too many channels of a connection"
RATE, SHARE = "too many requests of an address", "too many peers of an address in a swarm"
FULL = "too many members of a room"
LIMITS = [  # settings or constants, a path, messages beyond them, and the close reason
    *(
        (limit, path, [make(name) for name in NUMBERS[:40]], reason)
        for limit, reason in (
            ({"max_sessions_per_address": 3}, PER_ADDRESS),
            ({"connection.MAX_CHANNELS": 3}, PER_CONNECTION),
            ({"rate_per_address": 2}, RATE),
        )
        for path, make in SUBSCRIPTIONS.items()
    ),
    *(
        ({name: 0}, path, [json.loads(JOINS.get(path, '"KeepAlive"'))], reason)
        for name, reason in (("connection.MAX_MEMBERS_PER_ADDRESS", SHARE), ("rooms.MAX_MEMBERS", FULL))
        for path in ("/rxdb", "/matchbox/room", "/godot")
    ),
    ({"tracker.MAX_MEMBERS": 0}, "/tracker", [announcement()], "too many members of a swarm"),
    ({"rate_per_address": 2}, "/y-webrtc", [{"type": "subscribe", "topics": NUMBERS[:25]}], RATE),
    ({"rate_per_address": 1}, "/y-webrtc", [{"type": "unsubscribe", "topics": NUMBERS}], RATE),
    ({"rate_per_address": 2}, "/nostr", [["REQ", "a", {"#x": NUMBERS[:25]}]], RATE),
    ({"rate_per_address": 2}, "/tracker", [{"action": "scrape", "info_hash": NUMBERS[:25]}], RATE),
    ({"rate_per_address": 1}, "/tracker", [announcement(offers=[{}] * 9)], RATE),
    ({}, "/tracker", [announcement(offers=[{}] * 11)], "too many offers of an announcement"),
    (
        {},
        "/tracker",
        [announcement(peer_id=name) for name in NUMBERS[:11]],
        "too many peers of a connection in a swarm",
    ),
]


@pytest.mark.parametrize(("limits", "path", "messages", "reason"), LIMITS)
async def test_what_exceeds_a_limit_closes_the_connection_and_stays_nowhere(
    limits, path, messages, reason, start_service, monkeypatch
):
    for name in [name for name in limits if "." in name]:
        monkeypatch.setattr(f"tornado_signal.protocols.{name}", limits[name])
    service = await start_service(unlimited_addresses=(), **{name: limits[name] for name in limits if "." not in name})
    async with open_socket(service, path) as socket:
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                await socket.send(json.dumps(message))
        assert await socket.ended() == (1008, reason)
    groups, client = service.application.relay._groups, service.shared.limits.client("127.0.0.1")
    rooms = service.application.routes["/godot"].arguments["make_receiver"].args[-1]
    protocol = path.split("/")[1]
    await until(
        lambda: not (client.held or rooms or [group for group in groups if groups[group] and protocol in group.scope])
    )


async def test_binary_messages_are_accepted_every_reply_is_text_and_larger_ones_close(protocol, start_service):
    _, path, message = protocol
    service = await start_service(max_body_bytes=10_000)
    async with opened(service, path) as socket:
        for accepted in (message.encode(), message.ljust(10_000)):
            await socket.send(accepted)
            await socket.receive()
        await socket.send(message.ljust(10_001))
        assert await socket.closed() == 1009


async def test_messages_are_logged_and_counted_without_their_content(protocol, start_service, caplog):
    caplog.set_level("INFO")
    name, path, message = protocol
    service = await start_service(access_log=True, allowed_origins=AllowedOrigins(frozenset({ORIGIN})))
    async with opened(service, path) as socket:
        sent = [message, message] if path in JOINS else [message, "hidden", message]  # nonsense closes these
        for each in sent:
            await socket.send(each)
        for _ in range(3 if name in ("tracker", "nostr") else 2):
            await socket.receive()
    # The greetings of peerjs and matchbox also count, and the messages by which the others join.
    count = len(sent) + (name in ("peerjs", "matchbox", "rxdb", "godot"))
    endpoint = "/matchbox/{room}" if name == "matchbox" else f"/{name}"
    metrics = service.shared.log.metrics
    assert metrics.by_origin == {(ORIGIN, endpoint, 101): 1, (ORIGIN, endpoint, 200): count}
    assert metrics.defects == 0
    lines = [record.fields for record in caplog.records if record.getMessage() == "request"]
    assert sorted((line["method"], line["status"]) for line in lines) == [("GET", 101), *[("WS", 200)] * count]
    assert {line["endpoint"] for line in lines} == {endpoint}
    assert "hidden" not in str(lines)


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
@pytest.mark.parametrize("path", MESSAGES)
async def test_unexpected_error_closes_the_connection_and_ends_the_message(
    path, error, later, service, monkeypatch, caplog
):
    async def fail_later():
        raise error

    def fail(*arguments):
        if later:
            return fail_later()
        raise ZeroDivisionError

    async with open_socket(service, path) as socket:
        if path == "/ws":
            monkeypatch.setattr(rpc, "parse", lambda message: [])
        else:
            for kind in ProtocolConnection.__subclasses__():
                monkeypatch.setattr(kind, "received", fail)
        await socket.send(MESSAGES[path][0])
        await socket.send(MESSAGES[path][-1])
        assert await socket.closed() == 1013
    monkeypatch.undo()
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR]
    caplog.clear()
    await asyncio.wait_for(service.shared.drain(), BOUND_S)
    assert not service.shared.running


@pytest.mark.parametrize("path", MESSAGES)
async def test_large_message_is_charged_for_each_16_kib(path, service, charged):
    async with open_socket(service, path) as socket:
        await socket.ping()
        charged.clear()
        await socket.send('{"jsonrpc":"2.0","id":1,"method":"health"}'.ljust(33 * 1024))
        await until(lambda: charged)
        assert charged == [3]


async def test_large_body_is_charged_for_each_16_kib_and_at_most_a_burst(start_service):
    service = await start_service(unlimited_addresses=(), rate_per_address=1)
    client = service.shared.limits.client("127.0.0.1")
    for size, left in [(33, 7), (15, 6), (60, 2), (80, 2)]:
        offer = {"info": "i", "offer": "o".ljust(size * 1024)}
        response = await service.call("POST", "/lobby/offer", offer)
        assert (response.status, int(client.requests.tokens)) == (200 if size < 80 else 429, left)
    client.requests.tokens = 10.0
    assert (await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o".ljust(200 * 1024)})).status == 200
    assert int(client.requests.tokens) == 0


async def test_lone_surrogates_work_in_names_of_rooms_and_messages_to_such_ids_expire_at_once(service):
    async with open_socket(service, "/y-webrtc") as socket, opened(service, "/peerjs?id=a&token=t&key=k") as peer:
        await socket.send('{"type":"subscribe","topics":["\\ud83c"]}')
        await socket.send('{"type":"publish","topic":"\\ud83c","data":1}')
        assert (await socket.receive())["topic"] == "\ud83c"
        await peer.send('{"type":"OFFER","dst":"\\ud83c"}')
        assert await peer.receive() == {"type": "EXPIRE", "src": "\ud83c", "dst": "a"}


async def test_token_of_a_peerjs_client_is_not_kept_and_messages_for_absent_ids_are_unread_data(service):
    a = await open_peer(service.port, "a", "the token")
    (socket,) = service.server.state.connections
    slots = [name for each in type(socket.receiver).mro() for name in getattr(each, "__slots__", ())]
    assert "_token" in slots
    assert "the token" not in str([getattr(socket.receiver, name) for name in slots])
    unsent = service.server.state.unsent
    for _ in range(3):
        await a.send("OFFER", "absent", payload="x" * 30_000)
    await until(lambda: unsent.bytes > 60_000)
    assert unsent.bytes < peerjs.MAX_KEPT_BYTES
    b = await open_peer(service.port, "absent")
    assert len((await b.next())["payload"]) == 30_000
    await until(lambda: not unsent.bytes)
    await a.send("OFFER", "also absent", payload="x" * 30_000)
    await until(lambda: unsent.bytes > 30_000)
    a.abort()
    await until(lambda: not unsent.bytes)
    await b.close()


# Cancellation


async def test_cancelled_wait_ends_without_a_response_and_frees_its_place(service):
    code = await service.offer()
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        other = client.send("poll", code=code, side="offerer", wait=30)
        await until(lambda: service.shared.limits.waiting == 1)
        message = {"jsonrpc": "2.0", "method": "poll", "params": {"code": code, "side": "offerer", "wait": 30}}
        for id_ in ("x", 7.5, None):
            await client.socket.send(json.dumps(message | {"id": id_}))
            await until(lambda: service.shared.limits.waiting == 2)
            cancellation = {"jsonrpc": "2.0", "method": "cancel", "params": {"id": id_}}
            await client.socket.send(json.dumps(cancellation))
            await until(lambda: service.shared.limits.waiting == 1)
        # Also before it waits, and in a batch, whose other responses arrive.
        batch = [message | {"id": "y"}, {"jsonrpc": "2.0", "method": "health", "id": "z"}]
        arrived = client.expect(json.dumps(["z"]))
        await client.socket.send(json.dumps(batch))
        await client.socket.send(json.dumps(cancellation | {"params": {"id": "y"}}))
        assert [response["id"] for response in await asyncio.wait_for(arrived, BOUND_S)] == ["z"]
        # Also before it begins, because a change of its session is under way.
        params = {"code": code, "side": "offerer"}
        for sent in (
            {"jsonrpc": "2.0", "method": "answer", "params": params | {"candidate": "c"}},
            message | {"id": "y"},
            cancellation | {"params": {"id": "y"}},
        ):
            await client.socket.send(json.dumps(sent))
        assert "expiresAt" in await client.call("refresh", **params)
        await until(lambda: service.shared.limits.waiting == 1)
        assert await client.call("cancel", id="of no request") == {"success": True}
        assert (await client.refused("cancel", id=[]))[0] == 400
        assert service.shared.limits.waiting == 1
        service.clock.ms += TIMEOUT_MS
        await service.store.sweep(service.clock.ms)
        assert (await asyncio.wait_for(other, BOUND_S))["error"]["code"] == 404
    assert not service.shared.running


# Memory


async def upgraded(stack, service, path="/ws"):
    connection = await stack.enter_async_context(service.connect())
    await connection.send(head("GET", path, with_origin(ORIGIN, HANDSHAKE)))
    assert b" 101 " in await connection.reader.readuntil(b"\r\n\r\n")
    return connection


async def ping(connections):
    """Wait until the server has processed everything sent before."""
    for connection in connections:
        await connection.send(frame(PING, b"done?"))
    for connection in connections:
        await asyncio.wait_for(connection.reader.readuntil(b"done?"), BOUND_S)


@pytest.fixture
def traced():
    """The function that returns the bytes in memory since the last call of `tracemalloc.clear_traces`."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize("path", MESSAGES)
async def test_neither_the_query_of_a_handshake_nor_a_large_message_stays_in_memory(path, service, traced):
    message, target = MESSAGES[path][0].encode(), path.replace("id=a&token=t", "id=WHO")
    target += ("&" if "?" in path else "?") + "token=WHO"
    async with contextlib.AsyncExitStack() as stack:
        targets = [target.replace("WHO", str(number)).ljust(24_000, "x") for number in range(30)]
        connections = [await upgraded(stack, service, target) for target in targets]
        del targets
        assert traced() < len(connections) * 16_000
        data = frame(TEXT, message.ljust(256 * 1024)) + frame(TEXT, b"{".ljust(1500)) * 3
        tracemalloc.clear_traces()
        for connection in connections:
            await connection.send(data)
        await ping(connections)
        await until(lambda: not service.server.state.unfinished.bytes)
        assert traced() < len(connections) * 20_000


async def test_tiny_fragments_take_no_more_memory_than_is_counted(service, traced):
    async with contextlib.AsyncExitStack() as stack:
        connection = await upgraded(stack, service)
        fragments = frame(CONT | MORE, b"ab") * 20_000
        await connection.send(frame(TEXT | MORE, b"x"))
        tracemalloc.clear_traces()
        await connection.send(fragments)
        await until(lambda: service.server.state.unfinished.bytes >= 40_000)
        await ping([connection])
        assert traced() < 3 * 40_000


async def test_messages_sent_while_a_client_breaks_the_rules_are_dropped(service, monkeypatch):
    sockets = []

    def process(self, opcode, data):
        sockets.append(self)
        self.send(b"before")
        self.send_part(b"", first=True)
        self.receiver.frame_received()

    monkeypatch.setattr(websocket.WebSocket, "_process", process)
    async with contextlib.AsyncExitStack() as stack:
        connection = await upgraded(stack, service)
        await connection.send(frame(PING) + frame(CONT, b"x"))  # a violation
        await until(lambda: sockets and sockets[0]._closing)
        sockets[0].send(b"after")
        sockets[0].send_part(b"after", last=True)
        sockets[0].post(b"after")
        received = await asyncio.wait_for(connection.reader.read(), BOUND_S)
    assert received.startswith(b"\x81\x06before\x01\x00\x88")
    assert b"after" not in received


async def test_binary_message_closes_a_connection_of_the_api(service):
    async with open_socket(service, "/ws") as socket:
        await socket.send(b"{}")
        assert await socket.closed() == 1003


# JSON at the edges of RFC 8259

LAST = "the last"
MISSING = object()
ANNOUNCE = b'{"action":"announce","info_hash":"%b","peer_id":"%%b","offers":[{"offer":%%%%b,"offer_id":"%b"}]}'
ANNOUNCE %= b"h" * 20, b"o" * 20
PUBLICATION = b'{"type":"publish","topic":"r","%b":%%b}'
PROTOCOLS = {  # a path, the receiver's first messages, a message with a payload, and the payload's name
    "PeerJS": ("/peerjs?key=k&token=t&id=", [], b'{"type":"OFFER","dst":"b","payload":%b}', "payload"),
    "y-webrtc": ("/y-webrtc", [b'{"type":"subscribe","topics":["r"]}'], PUBLICATION % b"data", "data"),
    "ws-relay": ("/y-webrtc", [b'{"type":"subscribe","topic":"r"}'], PUBLICATION % b"payload", "payload"),
    "tracker": ("/tracker", [ANNOUNCE % (b"b" * 20) % b"1"], ANNOUNCE % (b"a" * 20), "offer"),
}


def is_text(message):
    """Return whether a message is UTF-8. Otherwise it must be binary."""
    with contextlib.suppress(UnicodeDecodeError):
        return bool(message.decode())


def finite(text):
    """Return a number, or None if it is infinite as a double. The protocols deliver null in its place."""
    value = float(text)
    return value if math.isfinite(value) else None


parse = functools.partial(json.loads, parse_int=finite, parse_float=finite)


@pytest.mark.parametrize("unusual", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_payload_is_delivered_if_it_is_json(protocol, unusual, service):
    path, hello, template, name = PROTOCOLS[protocol]
    paths = [path + (who if "id=" in path else "") for who in "ab"]
    found, expected = {}, {}
    async with open_socket(service, paths[0]) as sender, open_socket(service, paths[1]) as receiver:
        for message in (*hello, b'{"type":"ping"}'):
            await receiver.send(message.decode())
        await receiver.receive()  # its hello has been handled
        for message, value in json_vectors.messages(template, unusual=unusual):
            expected[message] = [parse(value)] if value else []
            await sender.send(message.decode() if is_text(message) else message)
            await sender.send((template % json.dumps(LAST).encode()).decode())
            found[message] = []
            while (
                received := parse(await asyncio.wait_for(receiver.socket.recv(), BOUND_S)).get(name, MISSING)
            ) != LAST:
                found[message] += [] if received is MISSING else [received]
    assert found == expected


# Clients of other protocols: the close reason or body, and the log, say what an endpoint expects.

OF_EACH = {
    "Godot": {"type": 0, "id": 0, "data": ""},
    "JSON-RPC": {"jsonrpc": "2.0", "id": 1, "method": "health"},
    "matchbox": "KeepAlive",
    "Nostr": ["REQ", "a", {"kinds": [20000]}],
    "PeerJS": {"type": "OFFER", "dst": "a", "payload": {}},
    "RxDB": {"type": "join", "room": "a room"},
    "WebTorrent": {"action": "announce", "info_hash": "a" * 20},
    "y-webrtc": {"type": "subscribe", "topics": ["a"]},
}
QUERIES = {"PeerJS": "?key=peerjs&id=a&token=b"}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("expected", OF_EACH)
async def test_endpoint_names_the_right_path_and_the_log_does_once(expected, service, caplog):
    path = other_protocols.PATHS[expected]
    for found in OF_EACH.keys() - {expected}:
        reason = f"{path} is for {expected}; for {found} use {other_protocols.PATHS[found]}"
        for _ in range(2):
            async with open_socket(service, path + QUERIES.get(expected, "")) as socket:
                await socket.send(json.dumps(OF_EACH[found]))
                assert await socket.ended() == (1008, reason)
        (warning,) = warnings(caplog)
        assert reason in warning
        caplog.clear()
        service.shared.client_warnings = HourlyWarnings()


@pytest.mark.parametrize(
    ("target", "headers", "status", "text"),
    [
        ("/socket.io/?EIO=4&transport=polling", [], 404, "Socket.IO is not served here"),
        ("/socket.io/?EIO=4&transport=websocket", HANDSHAKE, 404, "Socket.IO is not served here"),
        ("/signal/ws", HANDSHAKE, 404, "No WebSocket here: use /ws"),
        ("/lobby/sessions", HANDSHAKE, 200, "use /ws"),
    ],
)
async def test_other_client_at_a_path_reads_or_logs_what_is_expected(target, headers, status, text, service, caplog):
    for _ in range(2):
        response = await service.raw(head("GET", target, with_origin(ORIGIN, headers)))
        assert (response.status, response.json) == (status, {"sessions": []} if status == 200 else {"error": text})
    (warning,) = warnings(caplog)
    assert text in warning


def test_each_address_causes_one_warning_an_hour_and_memory_is_bounded():
    hourly = HourlyWarnings()
    assert [hourly.due("a", 0.0), hourly.due("a", 1.0), hourly.due("b", 2.0)] == [True, False, True]
    assert hourly.due("a", INTERVAL_S)
    due = [hourly.due(str(number), INTERVAL_S) for number in range(2 * MAX_CAUSES)]
    assert sum(due) == MAX_CAUSES - 2  # `a` and `b`
    assert hourly.due("b", INTERVAL_S + 2.0)
