"""Ephemeral events of Nostr over raw WebSockets (docs/nostr.md)."""

import json

import pytest
from support.nostr import KIND, NostrClient, make_event
from support.rpc import until
from support.service import ORIGIN, request

from tornado_signal.protocols import nostr
from tornado_signal.protocols.connection import MAX_CHANNELS, MAX_NAME
from tornado_signal.protocols.endpoint import make_scope
from tornado_signal.protocols.nostr import MAX_FILTERS, MAX_KINDS, MAX_SUBSCRIPTION_ID, MAX_TAGS, MAX_TOPICS
from tornado_signal.relay import Channel

PATH = "/nostr"
OTHER_KIND = "only the ephemeral kinds 20000 to 29999 are relayed"


def open_socket(service, origin=ORIGIN, path=PATH, **options):
    return NostrClient(f"ws://127.0.0.1:{service.port}{path}", origin, **options)


def accepted(event):
    return ["OK", event["id"], True, ""]


def delivered(subscription, event):
    return ["EVENT", subscription, event]


async def test_event_reaches_all_subscribers_of_its_topic_including_the_publisher_and_is_not_stored(clients):
    first, second, third = clients
    await first.subscribe("a", "room", "other room", limit=0)  # a limit is that of stored events
    await second.subscribe("b", "room")
    for content in ('é "\\\n\t\0\x7f\u2028 😀', "Party \ud83c é \0"):
        event = make_event(content=content)
        sent = event | {"extra": 1, "clients": 2}
        assert await first.publish(sent) == [delivered("a", event), accepted(event)]
        assert await second.read() == [delivered("b", event)]
        assert await third.publish(sent) == [accepted(event)]
        assert (await first.read(), await second.read()) == ([delivered("a", event)], [delivered("b", event)])
    event = make_event(
        "other room", created_at=2**53, tags=[["x", "other room", "more"], ["p"], ["t", "a", "b"], ["x"]]
    )
    await third.publish(event)
    assert (await first.read(), await second.read()) == ([delivered("a", event)], [])
    assert await second.request("a", {"#x": ["room"], "since": 0, "limit": 10}) == [["EOSE", "a"]]


async def test_each_condition_of_a_filter_must_match(clients):
    first, second, _ = clients
    events = {
        "x": [["x", "a"]],
        "x2": [["x", "a"], ["x", "b"], ["x", "a"]],
        "t": [["t", "c"], ["nonce", "1"]],
        "xt": [["t", "c", "more"], ["x", "a"]],
        "xtp": [["x", "a"], ["p", "me"], ["t", "c"], ["e", ""], ["e"]],
        "none": [["q", "a"], ["r", "c"]],
        "most": [["z", str(number)] for number in range(MAX_TOPICS)],
    }
    made = {name: make_event(tags=tags, created_at=5_000) for name, tags in events.items()}
    made |= {name: make_event("room", kind=kind) for name, kind in {"low": 20_000, "high": 29_999, "own": KIND}.items()}
    for filters, matching in (
        ([{"#x": ["a"]}], "x x2 xt xtp"),
        ([{"#x": ["a", "b"]}], "x x2 xt xtp"),  # once, although the second one has both
        ([{"#t": ["c"]}], "t xt xtp"),
        ([{"#x": ["a"], "#t": ["c", "d"]}], "xt xtp"),
        ([{"#x": ["a", "b"], "#t": ["c"], "#p": ["me", "you"]}], "xtp"),
        ([{"#t": ["c"], "#X": ["a"]}], ""),
        ([{"#x": ["a"], "kinds": [20_002]}, {"#t": ["c"]}], "t xt xtp"),  # the second filter by the second topic
        ([{"#x": ["b"], "#p": ["me"]}, {"#p": ["me"]}], "xtp"),
        ([{"#x": ["a"], "since": 5_000, "until": 5_000}], "x x2 xt xtp"),
        ([{"#t": ["c"], "since": 5_601}, {"#x": ["b"], "until": 4_399}], ""),
        ([{"#t": ["c"], "since": 5_600.5}, {"#x": ["b"], "until": 4_400}], "x2"),
        ([{"#x": ["room"]}], "low high own"),
        ([{"#x": ["room"], "kinds": [20_000, 29_999]}], "low high"),
        ([{"#x": ["room"], "kinds": [20_000]}, {"#x": ["room"], "kinds": [20_003, KIND]}], "low own"),
    ):
        await first.request("a", *filters)
        for name, event in made.items():
            assert await second.publish(event) == [accepted(event)]
            expected = [delivered("a", event)] if name in matching.split() else []
            assert await first.read() == expected, (filters, name)


async def test_request_with_the_same_id_replaces_a_subscription_and_topics_of_both_miss_no_event(clients):
    first, second, _ = clients
    await first.subscribe("a", "left", "kept", kinds=[KIND])
    await first.subscribe("b", "left")
    await first.subscribe("a", "kept", "new", "kept")
    for topic, expected in (("left", ["b"]), ("kept", ["a"]), ("new", ["a"])):
        event = make_event(topic)
        await second.publish(event)
        assert await first.read() == [delivered(each, event) for each in expected]
    for number in range(100):
        await first.send(["REQ", "a", {"#x": ["kept", str(number)]}])
        await second.send(["EVENT", make_event("kept", content=str(number))])
    await second.read()
    contents = [message[2]["content"] for message in await first.read() if message[0] == "EVENT"]
    assert contents == [*map(str, range(100))]


async def test_closed_subscription_gets_nothing_and_each_open_one_counts_as_a_receiver(clients, service):
    first, second, _ = clients
    channel = Channel(make_scope("nostr", ORIGIN), "room")
    for name in ("a", "b", "c"):
        await first.subscribe(name, "room", "room", name)
    for closed, left in (("a", ["b", "c"]), ("a", ["b", "c"]), ("c", ["b"]), ("b", [])):
        await first.send(["CLOSE", closed])
        assert await first.read() == []
        assert service.application.relay.receivers(channel) == len(left)
        event = make_event()
        await second.publish(event)
        assert await first.read() == [delivered(each, event) for each in left]
    assert service.shared.limits.client("127.0.0.1").held == 0


OTHER_TAGS = f"an event has 1 to {MAX_TOPICS} single-letter tags, of 1 to {MAX_NAME} characters"
REFUSED_EVENTS = {
    f"blocked: {OTHER_KIND}": [make_event(kind=kind) for kind in (1, 19_999, 30_000)],
    "invalid: kind and created_at are whole numbers": [
        *(make_event(kind=kind) for kind in ("20001", 20001.0)),
        *(make_event(created_at=created_at) for created_at in (-1, 2**53 + 1, True)),
    ],
    "invalid: content is a string": [make_event(content=None)],
    f"blocked: {OTHER_TAGS}": [
        make_event(tags=[]),
        make_event(tags=[["x"], ["xx", "a"], ["", "a"], ["é", "a"], ["1", "a"]]),
        make_event(tags=[["x", str(n)] for n in range(MAX_TOPICS + 1)]),
        *(make_event(tags=[["x", name]]) for name in ("", "😀" * (MAX_NAME + 1), "\ud83c")),
    ],
    f"invalid: an event has at most {MAX_TAGS} tags, which are arrays of strings": [
        make_event(tags=tags)
        for tags in (None, {}, "x", ["x"], [[]], [["x", 1]], [["x", None]], [["x", "room"]] * (MAX_TAGS + 1))
    ],
    "invalid: pubkey has 64 and sig 128 hexadecimal digits": [
        make_event() | fields for fields in ({"pubkey": "f" * 63}, {"sig": "F" * 128})
    ],
    "invalid: the id is not the hash of the event": [
        make_event() | fields for fields in ({"content": "changed"}, {"id": "0" * 64})
    ],
    "invalid: the signature is wrong": [
        *(make_event() | {"sig": "0" * 128}, make_event(pubkey="f" * 64), make_event(pubkey="0" * 64))
    ],
}


async def test_other_events_are_refused_and_reach_no_client(clients, monkeypatch):
    first, second, _ = clients
    await first.subscribe("a", "room", "a", "b")
    for reason, events in REFUSED_EVENTS.items():
        for event in events:
            assert await second.publish(event) == [["OK", event["id"], False, reason]]
            assert await first.read() == [], event
    monkeypatch.setattr(nostr, "CHECKS_SIGNATURES", False)  # without the extra
    event = make_event() | {"sig": "0" * 128}
    assert await second.publish(event) == [accepted(event)]
    assert await first.read() == [delivered("a", event)]


TOPIC_LENGTH = f"invalid: #x has values of 1 to {MAX_NAME} characters"
KINDS = f"invalid: a filter has 1 to {MAX_KINDS} kinds"
USED = "use kinds and single-letter tags"
REFUSED_FILTERS = [
    ([], f"invalid: a subscription has 1 to {MAX_FILTERS} filters"),
    ([{"#x": ["a"]}] * (MAX_FILTERS + 1), f"invalid: a subscription has 1 to {MAX_FILTERS} filters"),
    *(([each], "invalid: a filter is an object") for each in (None, [], "x", 1)),
    *(([each], "unsupported: a filter without a single-letter tag") for each in ({}, {"kinds": [KIND], "since": 1})),
    *(([{"#a": ["b"], "#x": each}], TOPIC_LENGTH) for each in ([], "room", None, {})),
    *(([{"#x": ["a", each]}], TOPIC_LENGTH) for each in ("", 1, None, [], "😀" * (MAX_NAME + 1), "\ud83c")),
    *(([{"#x": ["a"], "until": each}], "invalid: since and until are numbers") for each in (None, "1", True, [])),
    ([{"#x": ["a"], "kinds": [1]}], f"unsupported: {OTHER_KIND}"),
    ([{"#x": ["a"], "kinds": [KIND, 30_000]}], f"unsupported: {OTHER_KIND}"),
    ([{"#x": ["a"], "kinds": [True]}], f"unsupported: {OTHER_KIND}"),
    ([{"#x": ["a"], "kinds": []}], KINDS),
    ([{"#x": ["a"], "kinds": KIND}], KINDS),
    ([{"#x": ["a"], "kinds": [KIND] * (MAX_KINDS + 1)}], KINDS),
    *(
        ([{"#x": ["a"]}, {"#x": ["a"], name: ["b"]}], f"unsupported: the condition {name[:64]}; {USED}")
        for name in ("authors", "#", "#xx", "#é", "x", "y" * 99)
    ),
]


async def test_other_filters_are_refused_and_end_the_subscription(clients):
    first, second, _ = clients
    for filters, reason in REFUSED_FILTERS:
        await first.subscribe("a", "room")
        assert await first.request("a", *filters) == [["CLOSED", "a", reason]]
        await second.publish(make_event())
        await second.publish(make_event("a"))
        assert await first.read() == [], filters


JUNK = [
    *("nonsense", "{", "", "[" * 100_000, b"\xff\xfe", b"\0", "1", "null", '"REQ"', "{}", "[]", "[[]]", "[null]"),
    *('{"type":"ping"}', '["AUTH","x"]', '["req","a",{}]', '["REQ"]', '["REQ",1]', '["REQ",null,{}]', '["REQ","",{}]'),
    *(json.dumps(["REQ", "s" * (MAX_SUBSCRIPTION_ID + 1), {"#x": ["room"]}]), '["CLOSE"]', '["CLOSE",[]]'),
    *('["EVENT"]', '["EVENT",1]', '["EVENT",{}]', '["EVENT",{"id":1}]', '["EVENT",{"id":"' + "F" * 64 + '"}]'),
    *(json.dumps(["EVENT", make_event(), 1]), '["EVENT",' + '{"a":' * 300 + "1" + "}" * 301 + "]"),
    *('["COUNT"]', '["COUNT",1,{}]', '["AUTH"]', '["AUTH",{"id":"x"}]'),
]


async def test_junk_gets_a_notice_and_unsupported_messages_the_response_that_their_sender_waits_for(clients, service):
    first, second, _ = clients
    for client in (first, second):
        await client.subscribe("a", "room")
    authentication = make_event(kind=22_242)
    for message, expected in (
        (["COUNT", "a", {"#x": ["room"]}], ["CLOSED", "a", "unsupported: nothing is stored, so nothing is counted"]),
        (["AUTH", authentication], ["OK", authentication["id"], False, "unsupported: no event needs authentication"]),
        *((junk, ["NOTICE", "invalid:"]) for junk in JUNK),
    ):
        await first.send(message)
        ((kind, text, *rest),) = await first.read()
        assert [kind, text[:8] if kind == "NOTICE" else text, *rest] == expected, message[:60]
        assert await second.read() == [], message[:60]
        event = make_event()
        assert await first.publish(event) == [delivered("a", event), accepted(event)]
        assert await second.read() == [delivered("a", event)]
    await until(lambda: not service.shared.running)


async def test_document_of_the_relay(service):
    for accept, origin in (("application/nostr+json", None), ("text/html, Application/Nostr+JSON;q=0.9", ORIGIN)):
        response = await service.raw(request("GET", PATH, origin=origin, headers=[("Accept", accept)]))
        assert (response.status, response.headers["Content-Type"]) == (200, "application/nostr+json")
        assert response.headers.get("Access-Control-Allow-Origin") == origin
        document = json.loads(response.body)
        assert document["supported_nips"] == [1, 11]
        assert document["limitation"]["max_subscriptions"] == MAX_CHANNELS
        assert document["limitation"]["restricted_writes"] is True
        assert document["retention"] == [{"kinds": [[20_000, 29_999]], "time": 0}]
        head = await service.raw(request("HEAD", PATH, origin=origin, headers=[("Accept", accept)]), "HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["Content-Length"] == response.headers["Content-Length"]
    response = await service.raw(request("GET", PATH))
    assert (response.status, json.loads(response.body)["error"][-7:]) == (400, "Upgrade")
    assert (await service.raw(request("GET", PATH + "/below"))).status == 404


async def test_each_value_of_each_filter_counts_as_a_channel(service):
    held = service.shared.limits.client("127.0.0.1")
    topics = [*map(str, range(MAX_CHANNELS // 2))]
    async with open_socket(service) as client:
        await client.subscribe("a", *topics)
        await client.subscribe("b", *topics[1:])
        assert held.held == MAX_CHANNELS - 1
        await client.request("b", {"#x": topics[1:]}, {"#x": ["1"], "#t": ["1"]})
        assert held.held == MAX_CHANNELS
        await client.subscribe("b", *topics)
        await client.send(["REQ", "c", {"#x": ["0"]}])
        assert await client.close_frame() == (1008, "too many channels of a connection")
    await until(lambda: held.idle)


@pytest.mark.parametrize(
    ("topics", "size", "units"), [(1, 40_000, [3]), (3, 100, [1, 2]), (3, 40_000, [3, 6]), (2, 15_000, [1, 1])]
)
async def test_each_further_topic_of_an_event_counts_by_its_size(topics, size, units, service, charged):
    event = make_event(content="x" * size, tags=[["x", str(number)] for number in range(topics)])
    async with open_socket(service) as client:
        await client.read()
        charged.clear()
        await client.send(["EVENT", event])
        assert await client.receive() == accepted(event)
    assert charged == units
