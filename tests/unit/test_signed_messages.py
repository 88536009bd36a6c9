"""Messages between the processes of a store: signed, fresh and of the right form."""

import json

import pytest

from tornado_signal.operator.control import MAX_AGE_MS, Messages

NOW_MS = 1_900_000_000_000
REQUEST = {"from": "a", "name": "drain", "fields": {}, "by": "127.0.0.1"}


@pytest.fixture
def clock():
    return [NOW_MS]


@pytest.fixture
def make(clock):
    return lambda secret=b"the secret of the store", own_id="": Messages(lambda: secret, lambda: clock[0], own_id)


def signed(messages, **more):
    return messages.sign(REQUEST | {"number": messages.next_number()} | more)


def test_requests_are_read_once_and_in_order(make):
    sender, receiver = make(), make()
    first, second = (signed(sender) for _ in range(2))
    assert receiver.read_request(first)["name"] == "drain"
    assert receiver.read_request(first) is None
    assert receiver.read_request(second)["by"] == "127.0.0.1"
    assert receiver.read_request(first) is None
    assert receiver.read_request(signed(sender, **{"from": "b"}))["from"] == "b"


def test_messages_begin_with_no_space(make):
    messages = make()
    assert all(signed(messages)[:64].isalnum() for _ in range(1000))


def test_old_requests_and_those_from_before_the_start_are_refused(make, clock):
    sender, receiver = make(), make()
    captured, message = signed(sender), signed(sender)
    assert make().read_request(captured)
    clock[0] += 1
    restarted = make()
    assert restarted.read_request(captured) is None
    assert restarted.read_request(signed(sender))
    clock[0] += MAX_AGE_MS + 1
    assert receiver.read_request(message) is None
    assert receiver.read_request(signed(sender))


def test_own_requests_are_read_although_the_clock_was_ahead_at_the_start(make, clock):
    own, other = make(own_id="a"), make()
    clock[0] -= 300
    message = signed(own)
    assert other.read_request(message) is None
    assert own.read_request(message)
    assert own.read_request(message) is None


def test_forged_messages_are_refused(make):
    receiver = make()
    message = signed(make())
    forged = [json.dumps(REQUEST | {"number": NOW_MS}).encode(), signed(make(b"another")), b"", b"x", bytes(32)]
    forged += [message[:-1], message + b" ", message.replace(b"drain", b"block")]
    assert [receiver.read_request(each) for each in forged] == [None] * len(forged)
    assert [receiver.read_reply(each) for each in forged] == [None] * len(forged)
    assert receiver.read_request(message)


def test_signed_junk_and_requests_of_another_form_are_refused(make):
    messages = make()
    for body in (b"", b"[", b"[" * 100_000, b"[]", b"1", b"{}", b"\xff"):
        message = messages._signature(body) + body
        assert messages.read_request(message) is messages.read_reply(message) is None, body[:9]
    for more in ({"from": 1}, {"name": 0}, {"fields": []}, {"by": {}}, *({"number": n} for n in ("1", True, 2.5))):
        assert make().read_request(signed(make(), **more)) is None, more
