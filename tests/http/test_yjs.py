"""The signaling of y-webrtc and ws-relay over raw WebSockets (docs/y-webrtc.md)."""

import contextlib
import itertools

from support.rpc import until
from support.service import ORIGIN, request
from support.y_webrtc import RawClient, published
from tornado.httputil import HTTPHeaders

from tornado_signal.protocols.connection import MAX_NAME

PATH = "/y-webrtc"


def open_socket(service, origin=ORIGIN, path=PATH, **options):
    return RawClient(f"ws://127.0.0.1:{service.port}{path}", origin, **options)


async def test_subscribed_rooms_deliver_once_others_and_those_with_too_long_names_nothing(clients):
    """Names are limited in code points."""
    first, second, _ = clients
    longest = "😀" * MAX_NAME
    await first.subscribe("room", "room", "kept", longest, longest + "x")
    await first.subscribe("room")
    await second.publish("room", 1)
    await second.read()
    assert await first.read() == [published("room", 1, 1)]
    await first.send({"type": "unsubscribe", "topics": ["room", "never subscribed", 5]})
    await first.read()
    for room in ("room", "kept", longest, longest + "x"):
        await second.publish(room, 2)
    await second.read()
    assert await first.read() == [published("kept", 2, 1), published(longest, 2, 1)]


JUNK = [
    *("nonsense", "{", "", "1", "null", "[1]", '"subscribe"', "{}", "[" * 100_000, b"\xff\xfe", b"\0"),
    *('{"type":"foo"}', '{"type":["ping"]}', '{"type":null}', '{"type":"subscribe"}', '{"type":"unsubscribe"}'),
    *('{"type":"subscribe","topics":"room"}', '{"type":"subscribe","topics":{"0":"room"}}'),
    *('{"type":"subscribe","topics":[5,null,[],{},""]}', '{"type":"unsubscribe","topics":7}'),
    *('{"type":"publish"}', '{"type":"publish","topic":""}', '{"type":"publish","topic":["room"],"data":1}'),
    '{"type":"publish","topic":null,"data":1}',
    '{"type":"publish","topic":"room","data":' + "[" * 300 + "]" * 300 + "}",
    '{"type":"publish","topic":"room","payload":' + '{"a":' * 300 + "1" + "}" * 301,
    '{"type":"publish","topic":"room","data":' + "[" * 2000 + "]" * 2000 + "}",
]


async def test_junk_is_ignored_and_reaches_no_client(clients, service):
    first, second, _ = clients
    for client in (first, second):
        await client.subscribe("room")
    await first.send({"type": "subscribe", "topic": "room"})
    for number, junk in enumerate(JUNK):
        await first.send(junk)
        assert await first.read() == [], junk[:60]
        assert await second.read() == [], junk[:60]
        await first.publish("room", number)
        for client in (first, second):
            assert await client.read() == [published("room", number, 2)]
    await until(lambda: not service.shared.running)


async def test_ws_relay_delivers_topic_and_payload_only(clients):
    first, second, third = clients
    for client in (first, second):
        await client.send({"type": "subscribe", "topic": "t"})
        await client.read()
    payloads = ['{"peerId":"x"}', {"peerId": "x"}, None]
    for payload in payloads:
        await first.send({"type": "publish", "topic": "t", "payload": payload, "extra": 1})
    expected = [{"topic": "t", "payload": payload} for payload in payloads]
    assert await first.read() == expected
    assert await second.read() == expected
    await second.send({"type": "unsubscribe", "topic": "t"})
    await second.read()
    await third.send({"type": "publish", "topic": "t", "payload": "without a subscription"})
    await third.read()
    assert await first.read() == [{"topic": "t", "payload": "without a subscription"}]
    assert await second.read() == []
    await third.subscribe("t")  # the rooms of y-webrtc are others
    await first.publish("t", 1)
    await second.send({"type": "publish", "topic": "t", "payload": 2})
    await second.read()
    assert await first.read() == [{"topic": "t", "payload": 2}]
    assert await third.read() == [published("t", 1, 1)]


async def test_request_over_http_gets_okay_and_a_handshake_the_same_headers_as_that_of_the_api(service):
    methods, paths = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"), ("", "/", "/room", "/a/b")
    for method, origin, path in itertools.product(methods, (ORIGIN, None), paths):
        body = b"x" if method == "POST" else None
        response = await service.raw(request(method, PATH + path, body, origin), method)
        assert (response.status, response.headers["Content-Type"]) == (200, "text/plain")
        assert response.body == (b"" if method == "HEAD" else b"okay")
        assert response.headers["Content-Length"] == "4"
    headers = []
    for path in (PATH, "/ws"):
        async with open_socket(service, path=path) as client:
            headers.append({*map(str.lower, HTTPHeaders(dict(client.socket.response.headers.raw_items())))})
    assert headers[0] == headers[1]


async def test_paths_below_are_the_same_endpoint_except_for_requests_of_the_api(service):
    async with contextlib.AsyncExitStack() as stack:
        paths = ("", "/", "/room", "/room?x=/y", "/sessions", "/a/b/id", "/peers", "//")
        clients = [await stack.enter_async_context(open_socket(service, path=PATH + path)) for path in paths]
        for client in clients:
            await client.subscribe("room")
        await clients[0].publish("room", 1)
        for client in clients:
            assert await client.receive() == published("room", 1, len(paths))
    await service.offer(topic="y-webrtc")
    assert len(await service.sessions("y-webrtc")) == 1
    assert (await service.call("GET", f"{PATH}x/room")).status == 404


async def test_message_to_many_receivers_counts_as_several(clients, charged):
    for member in clients:
        await member.subscribe("room")
    charged.clear()
    await clients[0].publish("room", "x" * 150_000)
    assert len((await clients[1].receive())["data"]) == 150_000
    assert charged == [10, 6]  # it was large, and has three receivers
