"""Messages of the Python client, whole and in parts, over a channel that is not connected."""

import asyncio
import functools
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.needs("aiortc")
SDP = "v=0\r\na=max-message-size:262144\r\n"


class Channel:
    """A data channel without a connection. Sent data is in `sent`, and in the buffer until `flush`."""

    def __init__(self):
        self.sent, self.listeners, self.bufferedAmount, self.open = [], {}, 0, True
        self.readyState, self.ordered, self.maxRetransmits, self.maxPacketLifeTime = "open", True, None, None

    def on(self, name, listener):
        self.listeners[name] = listener

    def send(self, data):
        from aiortc import InvalidStateError

        if not self.open:
            raise InvalidStateError
        self.sent.append(data)
        self.bufferedAmount += len(data)

    def flush(self):
        self.bufferedAmount = 0
        self.listeners["bufferedamountlow"]()

    def close(self):
        self.open = False
        self.listeners["close"]()


class Connection:
    remoteDescription = SimpleNamespace(sdp=SDP)


def make(joins=1 << 40):
    from tornado_signal_client.messages import Messages, announce_joins

    connection, channel = Connection(), Channel()
    announce_joins(connection, joins)
    return Messages(connection, channel), channel


def send(sender, message):
    from tornado_signal_client.messages import encode

    encoded = encode(message)
    sender.check(encoded[1])
    return sender.send(*encoded)


def code_of(error):
    from tornado_signal_client import SignalError

    assert isinstance(error, SignalError)
    return error.code, error.retryable


async def all_sent(sending, channel):
    while not sending.done():
        assert channel.bufferedAmount < 2 << 20  # back-pressure
        channel.flush()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "message",
    [
        "\U0001f600é" * 100_000,
        bytes(range(256)) * 20_000,
        ["x" * 2_000_000],
        "\x1e\x1e" + "x" * 300_000,
        "\ufeff" * 200_000,
    ],
)
async def test_large_message_arrives_as_it_was_sent_and_in_order(message):
    from tornado_signal_client.messages import decode

    sender, channel = make()
    receiver, _ = make()
    sendings = [send(sender, each) for each in ("before", message, b"", "after")]
    assert not sendings[1].done()
    await all_sent(sendings[-1], channel)
    received = [taken for data in channel.sent if (taken := receiver.take(data)) is not None]
    assert [decode(each) for each in received] == ["before", message, b"", "after"]
    assert max(len(each.encode() if isinstance(each, str) else each) for each in channel.sent) <= 65_536


async def test_largest_message_has_64_mib():
    from tornado_signal_client import SignalError
    from tornado_signal_client.messages import MAX_MESSAGE

    sender, channel = make()
    with pytest.raises(SignalError, match="67108865 bytes, more than 67108864") as caught:
        send(sender, bytes(MAX_MESSAGE + 1))
    assert code_of(caught.value) == ("message-too-large", False)
    assert channel.sent == []
    await all_sent(send(sender, bytes(MAX_MESSAGE)), channel)
    assert sum(map(len, channel.sent[1:])) == MAX_MESSAGE


async def test_messages_wait_for_the_channel_to_open_and_are_split_only_in_one_that_is_reliable():
    from tornado_signal_client import SignalError

    sender, channel = make()
    channel.readyState, channel.ordered = "connecting", False
    sending = send(sender, "hello")
    with pytest.raises(SignalError, match="300000 bytes"):
        send(sender, bytes(300_000))
    await asyncio.sleep(0)
    assert (sending.done(), channel.sent) == (False, [])
    channel.readyState = "open"
    channel.listeners["open"]()
    await sending
    assert channel.sent == ["hello"]


@pytest.mark.parametrize("joins", [0, -1])
async def test_nothing_is_split_for_a_client_that_does_not_announce_it(joins):
    from tornado_signal_client import SignalError

    sender, channel = make(joins)
    with pytest.raises(SignalError, match="300000 bytes") as caught:
        send(sender, bytes(300_000))
    assert code_of(caught.value) == ("message-too-large", False)
    assert send(sender, bytes(200_000)).done()
    assert [*map(len, channel.sent)] == [200_000]


async def test_message_waits_behind_earlier_ones_of_its_recipient_up_to_64_mib():
    from tornado_signal_client.messages import BUFFER, MAX_MESSAGE, OVERHEAD

    slow, healthy = make(), make()
    size, sendings = 16_000, []
    while sum(sending.done() for sending in sendings) == len(sendings):
        sendings.append(send(slow[0], bytes([len(sendings) % 256]) * size))
        assert send(healthy[0], b"").done()
    in_buffer = len(sendings) - 1
    assert BUFFER < in_buffer * size <= BUFFER + size
    while not (last := send(slow[0], bytes(size))).done():
        sendings.append(last)
    assert code_of(last.exception()) == ("peer-slow", True)
    waiting = len(sendings) - in_buffer
    assert MAX_MESSAGE <= waiting * (size + OVERHEAD) <= MAX_MESSAGE + 2 * BUFFER
    assert send(healthy[0], b"").done()
    sendings[-1].cancel()
    await all_sent(sendings[-2], slow[1])
    await asyncio.sleep(0)
    assert len(slow[1].sent) == len(sendings) - 1  # without the cancelled one
    assert not send(slow[0], bytes(size)).cancelled()


async def test_slow_member_of_a_room_does_not_get_a_message_that_others_get():
    from tornado_signal_client import SignalError
    from tornado_signal_client.messages import MAX_WAITING_BYTES
    from tornado_signal_client.room import Room
    from tornado_signal_client.room_peer import Peer

    def make_peer(id):
        peer = Peer.__new__(Peer)
        peer._messages, peer.channel = make(joins=0)
        peer.id = id
        return peer

    room, slow, healthy = Room.__new__(Room), make_peer("slow"), make_peer("healthy")
    room.peers = {peer.id: peer for peer in (slow, healthy)}
    slow._messages._waiting_bytes, slow.channel.bufferedAmount = MAX_WAITING_BYTES + 1, 1 << 21
    with pytest.raises(ExceptionGroup, match="1 of 2 peers did not receive the message") as caught:
        await room.send({"a": 1})
    assert code_of(caught.value) == ("message-incomplete", False)
    (error,) = caught.value.exceptions
    assert (code_of(error), error.peer) == (("peer-slow", True), slow)
    for send_to_slow in (slow.send, functools.partial(room.send, to="slow"), functools.partial(room.send, to=slow)):
        with pytest.raises(SignalError, match="the peer is too slow") as caught:
            await send_to_slow("text")
        assert code_of(caught.value) == ("peer-slow", True)
    await healthy.send(b"bytes")
    await room.send("text", "healthy")
    assert (healthy.channel.sent, slow.channel.sent) == (['\x1e{"a":1}', b"bytes", "text"], [])
    with pytest.raises(SignalError, match="300000 bytes"):
        await healthy.send(bytes(300_000))
    healthy.channel.readyState = "closed"
    await healthy.send("lost")
    with pytest.raises(SignalError, match="healthy is not a connected member") as caught:
        await room.send("text", "healthy")
    assert code_of(caught.value) == ("peer-left", True)
    assert len(healthy.channel.sent) == 3


async def test_unfinished_messages_do_not_add_up_and_end_with_the_channel():
    from tornado_signal_client.messages import MAX_MESSAGE

    receiver, channel = make()
    for _ in range(1000):
        assert receiver.take(f'\x1e\x1e{{"size": {MAX_MESSAGE}, "text": false}}') is None
        assert receiver.take(b"x") is None
    assert receiver.take("a message") == "a message"
    assert receiver.take(b"bytes") == b"bytes"
    receiver.take('\x1e\x1e{"size": 10, "text": true}')
    assert receiver.take(bytes(11)) is None  # more than announced
    assert receiver.take(b"bytes") == b"bytes"
    receiver.take('\x1e\x1e{"size": 10, "text": true}')
    channel.close()
    assert receiver.take(bytes(10)) == bytes(10)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        '{"size": 5}',
        '{"size": -1, "text": true}',
        '{"size": 1.5, "text": true}',
        '{"size": 67108865, "text": true}',
        '{"size": "5", "text": true}',
    ],
)
async def test_invalid_header_is_a_message(header):
    receiver, _ = make()
    assert receiver.take(f"\x1e\x1e{header}") == f"\x1e\x1e{header}"
    assert receiver.take(b"x" * 5) == b"x" * 5


async def test_empty_message_in_parts_and_invalid_text_arrive():
    receiver, _ = make()
    assert receiver.take('\x1e\x1e{"size": 0, "text": false}') == b""
    receiver.take('\x1e\x1e{"size": 2, "text": true}')
    assert receiver.take(b"\xffa") == "\ufffda"


@pytest.mark.parametrize("way", ["event", "error"])
async def test_end_of_the_channel_in_the_middle_of_a_message_completes_the_sending(way):
    sender, channel = make()
    sendings = [send(sender, bytes(5_000_000)), send(sender, "after")]
    await asyncio.sleep(0)
    assert sender.sending
    channel.open = False
    if way == "event":
        channel.close()
    else:
        channel.flush()
    await asyncio.wait_for(asyncio.gather(*sendings), 60)
    assert channel.sent[-1] != "after"


@pytest.mark.parametrize("io_loop", [asyncio.SelectorEventLoop], indirect=True)
@pytest.mark.parametrize(("seconds", "limit_s"), [(0, 2), (10, 12), (1000, 60)])
async def test_closing_waits_while_data_is_received_at_most_a_minute(monkeypatch, io_loop, seconds, limit_s):
    from tornado_signal_client.link import drain

    loop, sleep = asyncio.get_running_loop(), asyncio.sleep
    messages, channel = make()
    channel.bufferedAmount, channel.close = seconds, lambda: None
    passed_s = 0

    async def second(_):
        nonlocal passed_s
        passed_s += 1
        channel.bufferedAmount = max(0, channel.bufferedAmount - 1)
        await sleep(0)

    monkeypatch.setattr(loop, "time", lambda time=loop.time: time() + passed_s)
    monkeypatch.setattr(asyncio, "sleep", second)
    closed = asyncio.Event()
    closed.wait = lambda: second_by_second(second)
    await drain(messages, channel, closed)
    assert limit_s - 1 <= passed_s <= limit_s + 1


async def second_by_second(second):
    while True:
        await second(1)
