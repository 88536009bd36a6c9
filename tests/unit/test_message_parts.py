"""Messages in parts of the Python client, over a channel that is not connected."""

import asyncio
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.needs("aiortc")
SDP = "v=0\r\na=max-message-size:262144\r\n"


class Channel:
    """A data channel without a connection. Sent data is in `sent`, and in the buffer until `flush`."""

    def __init__(self):
        self.sent, self.listeners, self.bufferedAmount, self.open = [], {}, 0, True

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
    from tornado_signal_client.messages import decode, send

    sender, channel = make()
    receiver, _ = make()
    sendings = [send(each, [sender]) for each in ("before", message, b"", "after")]
    assert not sendings[1].done()
    await all_sent(sendings[-1], channel)
    received = [taken for data in channel.sent if (taken := receiver.take(data)) is not None]
    assert [decode(each) for each in received] == ["before", message, b"", "after"]
    assert max(len(each.encode() if isinstance(each, str) else each) for each in channel.sent) <= 65_536


async def test_largest_message_has_64_mib():
    from tornado_signal_client.messages import MAX_MESSAGE, send

    sender, channel = make()
    with pytest.raises(ValueError, match="67108865 bytes, and the connection takes 67108864"):
        send(bytes(MAX_MESSAGE + 1), [sender])
    assert channel.sent == []
    await all_sent(send(bytes(MAX_MESSAGE), [sender]), channel)
    assert sum(map(len, channel.sent[1:])) == MAX_MESSAGE


@pytest.mark.parametrize("joins", [0, -1])
async def test_nothing_is_split_for_a_client_that_does_not_announce_it(joins):
    from tornado_signal_client.messages import send

    sender, channel = make(joins)
    with pytest.raises(ValueError, match="300000 bytes"):
        send(bytes(300_000), [sender])
    send(bytes(200_000), [sender])
    assert [*map(len, channel.sent)] == [200_000]


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
    from tornado_signal_client.messages import send

    sender, channel = make()
    sendings = [send(bytes(5_000_000), [sender]), send("after", [sender])]
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
