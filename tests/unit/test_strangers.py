"""Texts of strangers: with any JSON value at any place, each becomes a typed record or nothing."""

import asyncio
import dataclasses
import itertools
import json
import math
import tracemalloc
from types import SimpleNamespace
from typing import NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal_client import parsing, records
from tornado_signal_client.names import Cipher, Identity
from tornado_signal_client.parsing import parse_json, parse_object

CODE = "6f0c2a8e-9d0b-4a3e-8a4e-0b1c2d3e4f50"
NOW_MS = 1_800_000_000_000
READER = Identity("https://app.example", "room~lobby", None, None)
DESCRIPTION = {"type": "offer", "sdp": "v=0", "joins": 10, "info": "a"}
CANDIDATE = {"candidate": "candidate:1", "sdpMid": "0", "sdpMLineIndex": 0, "usernameFragment": None}
SIGNAL = {"description": DESCRIPTION, "of": 1, "candidates": [CANDIDATE]}
BEACON = {"v": 2, "id": "!", "at": 1, "now": NOW_MS, "since": 1, "me": "a", "info": "a"}
MAIL = {"from": "!", "info": "a", "code": CODE, "connection": "1", "alive": "ask", **SIGNAL}
FILE = {"name": "a", "type": "text/plain", "size": 10}
CONTROL = {"accept": True, "received": True, "cancel": "refused"}
SESSION = {"code": CODE, "info": "a", "offer": "a", "offerCandidates": ["a"], "createdAt": NOW_MS, "expiresAt": NOW_MS}
EVENT = {"method": "event", "params": {"subscription": 1, "type": "session", "data": SESSION, "cursor": "a"}}
RESPONSE = {"id": 1, "result": {"sessions": [SESSION], "cursor": "a"}}
REFUSAL = {"id": 1, "error": {"code": 429, "message": "a", "data": {"retryAfter": 1}}}

# Texts of JSON, some of which no JSON encoder returns.
EXTREMES = [
    *["[" * depth + "]" * depth for depth in (2, 300, 20_000)],
    '{"a":' * 20_000 + "1" + "}" * 20_000,
    *["9007199254740992", "-9007199254740992", "1e308", "-1e308", "1e999", "-0.0", "1" + "0" * 400, "1" * 5000],
    *["NaN", "Infinity", "true", "null", "{}", "[]", '""', '"2"', "0.5", '{"toString": 0, "valueOf": 0}'],
    *[r'"\ud800"', r'"\u0000"', '"offer"', '"answer"', '"rollback"', '"ask"', '"$"', '"@"', '{"type": "offer"}'],
]
SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SIMPLE, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
JSON = st.sampled_from(EXTREMES) | VALUES.map(json.dumps)
PLACE = "the place of a value"


def places(value):
    """Yield copies of a value. Each has `PLACE` at another place, or as another key."""
    yield PLACE
    if isinstance(value, dict):
        for key, each in value.items():
            yield from ({**value, key: changed} for changed in places(each))
            yield {**value, PLACE: each}
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from ([*value[:number], changed, *value[number + 1 :]] for changed in places(each))


def texts(value):
    """Return a strategy for a text with any value at any place."""
    copies = [json.dumps(copy) for copy in places(value)]
    return st.builds(lambda copy, text: copy.replace(json.dumps(PLACE), text), st.sampled_from(copies), JSON)


def check(record):
    """Check that a record contains other records, texts, and numbers that every implementation can count."""
    if dataclasses.is_dataclass(record):
        check([getattr(record, field.name) for field in dataclasses.fields(record)])
    elif isinstance(record, list | tuple):
        for value in record:
            check(value)
    elif isinstance(record, int | float) and not isinstance(record, bool):
        assert abs(record) < 2**53
    else:
        assert record is None or isinstance(record, str | bool)


def read_beacon(text):
    return READER.unseal(text, "id", lambda fields: records.decode_beacon(fields, CODE, None, NOW_MS))


def read_mail(text):
    return declared(READER.unseal(text, "from", lambda fields: parsing.checked(fields, records.Mail)), records.Mail)


def declared(value, shape):
    """Return the values of the fields that a program can read from an object of JSON, in their order."""
    if get_origin(shape) is NotRequired:
        return None if value is None else declared(value, get_args(shape)[0])
    if get_origin(shape) is list:
        return [declared(each, get_args(shape)[0]) for each in value]
    if not is_typeddict(shape):
        return value
    fields = get_type_hints(shape, include_extras=True)
    return None if value is None else [declared(value.get(name), each) for name, each in fields.items()]


def read(shape):
    return lambda text: declared(parsing.checked(parse_object(text), shape), shape)


READERS = {
    "beacon": (read_beacon, BEACON),
    "mail": (read_mail, MAIL),
    "negotiation": (read(records.Signal), SIGNAL),
    "description": (read(records.Description), DESCRIPTION),
    "candidate": (read(records.Candidate), CANDIDATE),
    "message in parts": (read(records.Parts), {"size": 10, "text": True}),
    "file": (read(records.File), FILE),
    "message about a file": (read(records.Control), CONTROL),
}


@pytest.mark.parametrize(("read", "value"), READERS.values(), ids=READERS)
@given(data=st.data())
def test_text_becomes_a_typed_record_or_nothing(read, value, data):
    assert read(json.dumps(value))
    check(read(data.draw(texts(value))))


@given(text=texts(BEACON) | texts(MAIL) | st.text())
def test_any_text_is_unsealed_or_ignored(text):
    for sealed in (text, "A" * 86 + text):
        for sender in ("id", "from"):
            assert isinstance(READER.unseal(sealed, sender, dict), dict | None)


@pytest.mark.parametrize("value", [EVENT, RESPONSE, REFUSAL], ids=["event", "response", "refusal"])
@given(data=st.data())
def test_message_of_a_server_is_typed_or_foreign(value, data):
    from tornado_signal_client.rpc import RpcConnection, _PendingRequest

    async def receive(text):
        connection = RpcConnection("", SimpleNamespace(recv=asyncio.Event().wait, heard_s=math.inf))
        queue = connection._subscriptions[1] = asyncio.Queue()
        pending = asyncio.get_running_loop().create_future()
        connection._pending[1] = call = _PendingRequest(pending, 0, "sessions", {}, None)
        connection._last_id = 1
        try:
            connection._process(parse_json(text), len(text))
        except (ValueError, LookupError, TypeError):  # the connection is closed
            return
        finally:
            connection._reader.cancel()
        if pending.done() and call.accepts(response := pending.result()) and "result" in response:
            for session in response["result"]["sessions"]:
                assert type(session["createdAt"]) in (int, float)
        if not queue.empty() and (data := queue.get_nowait()[0].data) is not None:
            assert not parsing.conforms(data, parsing.TOPIC_EVENTS["session"]) or isinstance(data["offer"], str)

    asyncio.run(receive(data.draw(texts(value))))


@pytest.fixture
def room():
    """A room that is not connected to a server, with its event loop and the code of its beacon."""
    from tornado_signal_client import SignalClient
    from tornado_signal_client.mailbox import Mailbox
    from tornado_signal_client.room import Room
    from tornado_signal_client.types import Token

    async def never(*args):
        await asyncio.Event().wait()

    async def start():
        client = SignalClient("http://127.0.0.1:9", retry_timeout_s=0)
        room = Room(client, never, "lobby", "", "b", "b", None, True, 2, None, lambda room: None)
        room.own_code = Token(CODE, "http://127.0.0.1:9")
        room._mail.current = Mailbox(room.own_code, NOW_MS, 0)
        room._mail.current.reading = asyncio.create_task(never())
        room.closers = []
        return room

    async def close(room):
        await room.close()
        await asyncio.gather(*(close() for close in room.closers))

    with asyncio.Runner() as runner:
        room = runner.run(start())
        room.runner = runner
        yield room
        runner.run(close(room))


def handlers(room):
    """Return the handlers of everything that other peers send, each with an example of what they handle."""
    from tornado_signal_client.files import IncomingFile, OutgoingFile, on_header
    from tornado_signal_client.link import Connection
    from tornado_signal_client.messages import MARK, PARTS, Messages, decode
    from tornado_signal_client.room_peer import Member, Peer

    def nothing(*args):
        pass

    async def send(mail, member):
        pass

    channel = SimpleNamespace(
        on=nothing, once=nothing, send=nothing, close=nothing, readyState="open", protocol="", bufferedAmount=0
    )
    peer = Peer(Member("!", "", None), "1", [], READER, send, nothing, nothing, nothing)
    connection = Connection([], "offerer")
    room.closers += [peer._finish, connection.close]
    outgoing = OutgoingFile(SimpleNamespace(createDataChannel=lambda *args, **options: channel))
    messages = Messages(peer.connection, channel)

    codes = itertools.count()

    def list_beacon(text):
        room._on_listed({**SESSION, "code": f"{next(codes)}", "offer": text})

    async def add(text):
        await connection._add_candidates([text])

    return {
        "beacon": (list_beacon, BEACON),
        "mail": (lambda text: room._on_mail(text, room.own_code), MAIL),
        "negotiation": (peer._receive_description, SIGNAL),
        "message in parts": (lambda text: messages.take(PARTS + text), {"size": 10, "text": True}),
        "message": (lambda text: decode(MARK + text), [1]),
        "header of a file": (lambda text: on_header(channel, nothing, text), FILE),
        "received file": (lambda text: IncomingFile(channel, "a", "", 9)._receive(text), CONTROL),
        "sent file": (outgoing._on_message, CONTROL),
        "candidate": (add, CANDIDATE),
    }


@pytest.mark.needs("aiortc")
def test_no_text_of_a_peer_raises_in_its_handler(room):
    async def start():
        return handlers(room)

    async def handle(kind, text):
        if asyncio.iscoroutine(result := all_handlers[kind][0](text)):
            await result
        room._assign_places()
        await asyncio.sleep(0)

    all_handlers = room.runner.run(start())
    for kind, (_, value) in all_handlers.items():
        room.runner.run(handle(kind, json.dumps(value)))
        given(st.just(kind), texts(value))(lambda kind, text: room.runner.run(handle(kind, text)))()
    assert "!" in room._roster.members


@pytest.mark.needs("aiortc")
def test_beacons_of_new_and_old_members_are_verified_before_hundreds_of_wrongly_signed_ones(room, monkeypatch):
    from tornado_signal_client import names

    async def check():
        checking = asyncio.create_task(room._check(room._mail.current))
        while room._unchecked:
            batches.append(len(verified))
            await asyncio.sleep(0)
            assert not verified or {old.id, new.id} <= room._roster.members.keys()
        batches.append(len(verified))
        checking.cancel()

    def count(*arguments):
        verified.append(arguments)
        verify(*arguments)

    verified, batches, verify = [], [], names._verify
    monkeypatch.setattr(names, "_verify", count)
    monkeypatch.setattr(room._attempts, "renew_ice_servers", lambda: asyncio.sleep(0))
    strangers = [Identity("", "", None, None) for _ in range(500)]  # of another application
    old, new = (Identity(room._client.origin, "room~lobby", None, None) for _ in range(2))
    for number, each in enumerate((old, *strangers, new)):
        beacon = {"v": 2, "id": each.id, "at": 1, "now": NOW_MS}
        room._unchecked[number] = SESSION | {"code": str(number), "offer": each.seal(beacon)}
    room._changed.set()
    room.runner.run(check())
    assert (len(verified), len(room._roster.members)) == (502, 2)
    assert max(later - before for before, later in itertools.pairwise(batches)) < 50


@pytest.mark.needs("aiortc")
def test_room_with_a_password_ignores_and_counts_what_strangers_list_and_send(room):
    identity = room._mail.identity
    cipher = room._mail.cipher = Cipher(room._client.origin, identity.topic, "p")
    identity.topic = cipher.topic
    member = Identity(room._client.origin, cipher.topic, None, None)
    beacon = member.seal({"v": 2, "id": member.id, "at": 1, "now": NOW_MS, "info": "a"})
    offers = beacon, cipher.seal(beacon), cipher.seal(beacon)[:-1], "no cipher"
    for number, offer in enumerate(offers):
        room._on_listed({**SESSION, "code": f"{number}", "offer": offer})
    assert ([*room._listed], room.ignored) == (["1"], 3)
    text = member.seal({"from": member.id, "info": "a", "code": "1"}, identity.id, CODE)
    mail = cipher.seal(text, CODE)
    accepted = [room._on_mail(each, room.own_code) for each in (text, mail, mail, mail[:-2], offers[1], "no JSON")]
    assert (accepted, room.ignored) == ([False, True, False, False, False, False], 8)


@pytest.mark.needs("aiortc")
def test_thousands_of_waiting_members_are_not_copied_for_each_attempt():
    from tornado_signal_client.room_peer import Member
    from tornado_signal_client.roster import Roster

    roster, ids = Roster(lambda previous, owner: None), {str(number) for number in range(10_000)}
    for id in sorted(ids):
        roster.enqueue(Member(id, "", None))
    tracemalloc.start()
    try:
        assert roster.next()
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
    while member := roster.next():
        roster.discard(member)
        ids.remove(member.id)
    assert not ids


@pytest.mark.needs("aiortc")
async def test_member_that_loses_its_name_no_longer_waits_for_an_attempt(monkeypatch):
    from tornado_signal_client import attempts
    from tornado_signal_client.room_peer import Member

    def member(id, named_ms):
        member = Member(id, "", "Alice")
        member.code, member.named_ms = CODE, named_ms
        return member

    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 0)
    mail = SimpleNamespace(identity=SimpleNamespace(id=""))
    waiting = attempts.Attempts(None, None, mail, None, lambda member: roster.owner(member) is member, None, None)
    roster = waiting.roster
    for each in (member("late", 2), member("early", 1)):
        roster.add(each, "Alice")
        waiting.start(each)
    assert roster.next().id == "early"
    roster.discard(roster.next())
    assert roster.next() is None


@pytest.mark.needs("aiortc")
async def test_offer_that_has_waited_starts_no_attempt_after_the_end(monkeypatch):
    from tornado_signal_client import attempts
    from tornado_signal_client.room_peer import Member

    connected = []
    monkeypatch.setattr(attempts.Attempts, "_connect", lambda waiting, member, attempt: connected.append(attempt))
    mail = SimpleNamespace(identity=SimpleNamespace(id="b"))
    waiting = attempts.Attempts(None, None, mail, None, lambda member: True, None, None)
    offer = {"from": "a", "info": "", "of": 1, "description": {"type": "offer"}, "code": ""}
    for attempt in ("before", "after"):
        member = Member("a", "", None)
        member.later_offer = offer, attempt, attempts.Token(CODE, None)
        waiting._on_late(SimpleNamespace(_member=member))
        waiting.ended = True
    assert connected == ["before"]
