"""Messages and files of the Python client over channels that are not connected, and what a program does not read."""

import asyncio
import functools
import tracemalloc
from types import SimpleNamespace

import pytest

from tornado_signal_client import SignalClient, SignalError

files, link, messages, room, room_peer = (
    pytest.importorskip(f"tornado_signal_client.{name}") for name in ("files", "link", "messages", "room", "room_peer")
)
SDP = "v=0\r\na=max-message-size:262144\r\n"
MIB = 2**20
LIMIT = 100_000


class Channel:
    """A data channel without a connection. Sent data is in `sent`, and in the buffer until `flush`."""

    def __init__(self):
        self.sent, self.listeners, self.bufferedAmount, self.open = [], {}, 0, True
        self.readyState, self.protocol, self.ordered = "open", "", True
        self.maxRetransmits = self.maxPacketLifeTime = None

    def on(self, name, listener):
        self.listeners[name] = listener

    def send(self, data):
        if not self.open:
            raise messages.InvalidStateError
        self.sent.append(data)
        self.bufferedAmount += len(data)

    def flush(self):
        self.bufferedAmount = 0
        self.listeners["bufferedamountlow"]()

    def close(self):
        self.open, self.readyState = False, "closed"
        self.listeners["close"]()


class Connection:
    remoteDescription = SimpleNamespace(sdp=SDP)


def make(joins=1 << 40):
    connection, channel = Connection(), Channel()
    messages.announce_joins(connection, joins)
    return messages.Messages(connection, channel), channel


def send(sender, message):
    encoded = messages.encode(message)
    sender.check(encoded[1])
    return sender.send(*encoded)


def code_of(error):
    assert isinstance(error, SignalError)
    return error.code, error.retryable


async def all_sent(sending, channel):
    while not sending.done():
        assert channel.bufferedAmount < 2 << 20  # back-pressure
        channel.flush()
        await asyncio.sleep(0)


LARGE = ["\U0001f600é" * 100_000, bytes(range(256)) * 20_000, ["x" * 2_000_000]]
LARGE += ["\x1e\x1e" + "x" * 300_000, "\ufeff" * 200_000]


@pytest.mark.parametrize("message", LARGE)
async def test_large_message_arrives_as_it_was_sent_and_in_order(message):
    sender, channel = make()
    receiver, _ = make()
    sendings = [send(sender, each) for each in ("before", message, b"", "after")]
    assert not sendings[1].done()
    await all_sent(sendings[-1], channel)
    received = [taken for data in channel.sent if (taken := receiver.take(data)) is not None]
    assert [messages.decode(each) for each in received] == ["before", message, b"", "after"]
    assert max(len(each.encode() if isinstance(each, str) else each) for each in channel.sent) <= 65_536


async def test_largest_message_has_64_mib():
    sender, channel = make()
    with pytest.raises(SignalError, match="67108865 bytes, more than 67108864") as caught:
        send(sender, bytes(messages.MAX_MESSAGE + 1))
    assert code_of(caught.value) == ("message-too-large", False)
    assert channel.sent == []
    await all_sent(send(sender, bytes(messages.MAX_MESSAGE)), channel)
    assert sum(map(len, channel.sent[1:])) == messages.MAX_MESSAGE


@pytest.mark.parametrize("value", [{1, 2}, object(), float("nan"), [[]] * 2])
def test_value_without_json_is_an_error(value):
    if isinstance(value, list):
        value[0].append(value)
    with pytest.raises(SignalError) as caught:
        messages.encode(value)
    assert code_of(caught.value) == ("invalid-message", False)


@pytest.mark.parametrize("text", ["NaN", "1e400", "[" * 950 + "]" * 950, "{"])
def test_text_that_is_no_json_arrives_and_can_be_sent(text):
    assert messages.decode(f"\x1e{text}") == f"\x1e{text}"
    assert messages.decode(messages.encode(f"\x1e{text}")[0]) == f"\x1e{text}"


async def test_messages_wait_for_the_channel_to_open_and_are_split_only_in_one_that_is_reliable():
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
    sender, channel = make(joins)
    with pytest.raises(SignalError, match="300000 bytes") as caught:
        send(sender, bytes(300_000))
    assert code_of(caught.value) == ("message-too-large", False)
    assert send(sender, bytes(200_000)).done()
    assert [*map(len, channel.sent)] == [200_000]


async def test_message_waits_behind_earlier_ones_of_its_recipient_up_to_64_mib():
    slow, healthy = make(), make()
    size, sendings = 16_000, []
    while sum(sending.done() for sending in sendings) == len(sendings):
        sendings.append(send(slow[0], bytes([len(sendings) % 256]) * size))
        assert send(healthy[0], b"").done()
    in_buffer = len(sendings) - 1
    assert messages.BUFFER < in_buffer * size <= messages.BUFFER + size
    while not (last := send(slow[0], bytes(size))).done():
        sendings.append(last)
    assert code_of(last.exception()) == ("peer-slow", True)
    waiting = len(sendings) - in_buffer
    assert messages.MAX_MESSAGE <= waiting * (size + messages.OVERHEAD) <= messages.MAX_MESSAGE + 2 * messages.BUFFER
    assert send(healthy[0], b"").done()
    sendings[-1].cancel()
    await all_sent(sendings[-2], slow[1])
    await asyncio.sleep(0)
    assert len(slow[1].sent) == len(sendings) - 1  # without the cancelled one
    assert not send(slow[0], bytes(size)).cancelled()


async def test_slow_member_of_a_room_does_not_get_a_message_that_others_get():
    def make_peer(id):
        peer = room_peer.Peer.__new__(room_peer.Peer)
        peer._messages, peer.channel = make(joins=0)
        peer.id = id
        return peer

    lobby, slow, healthy = room.Room.__new__(room.Room), make_peer("slow"), make_peer("healthy")
    lobby.peers = {peer.id: peer for peer in (slow, healthy)}
    slow._messages._waiting_bytes, slow.channel.bufferedAmount = messages.MAX_WAITING_BYTES + 1, 1 << 21
    with pytest.raises(ExceptionGroup, match="1 of 2 peers did not receive the message") as caught:
        await lobby.send({"a": 1})
    assert code_of(caught.value) == ("message-incomplete", False)
    (error,) = caught.value.exceptions
    assert (code_of(error), error.peer) == (("peer-slow", True), slow)
    for send_to_slow in (slow.send, functools.partial(lobby.send, to="slow"), functools.partial(lobby.send, to=slow)):
        with pytest.raises(SignalError, match="the peer is too slow") as caught:
            await send_to_slow("text")
        assert code_of(caught.value) == ("peer-slow", True)
    await healthy.send(b"bytes")
    await lobby.send("text", "healthy")
    assert (healthy.channel.sent, slow.channel.sent) == (['\x1e{"a":1}', b"bytes", "text"], [])
    with pytest.raises(SignalError, match="300000 bytes"):
        await healthy.send(bytes(300_000))
    healthy.channel.readyState = "closed"
    await healthy.send("lost")
    with pytest.raises(SignalError, match="healthy is not a connected member") as caught:
        await lobby.send("text", "healthy")
    assert code_of(caught.value) == ("peer-left", True)
    assert len(healthy.channel.sent) == 3


async def test_unfinished_messages_do_not_add_up_and_end_with_the_channel():
    receiver, channel = make()
    for _ in range(1000):
        assert receiver.take(f'\x1e\x1e{{"size": {messages.MAX_MESSAGE}, "text": false}}') is None
        assert receiver.take(b"x") is None
    assert receiver.take("a message") == "a message"
    assert receiver.take(b"bytes") == b"bytes"
    receiver.take('\x1e\x1e{"size": 10, "text": true}')
    assert receiver.take(bytes(11)) is None  # more than announced
    assert receiver.take(b"bytes") == b"bytes"
    receiver.take('\x1e\x1e{"size": 10, "text": true}')
    channel.close()
    assert receiver.take(bytes(10)) == bytes(10)


SIZES = ["-1", "1.5", "67108865", '"5"']


@pytest.mark.parametrize("header", ["", "{", "[]", '{"size": 5}', *(f'{{"size": {n}, "text": true}}' for n in SIZES)])
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
@pytest.mark.parametrize(("seconds", "limit_s"), [(0, 4), (10, 14), (1000, 60)])
async def test_closing_waits_while_data_is_received_at_most_a_minute(monkeypatch, io_loop, seconds, limit_s):
    loop, sleep = asyncio.get_running_loop(), asyncio.sleep
    sender, channel = make()
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
    await link.drain(sender, channel, closed)
    assert limit_s - 1 <= passed_s <= limit_s + 1


async def second_by_second(second):
    while True:
        await second(1)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(messages, "MAX_UNREAD_BYTES", LIMIT)


def make_room():
    async def never():
        await asyncio.Event().wait()

    return room.Room(SignalClient(), never, "lobby", "", None, None, None, True, None, None, lambda room: None)


@pytest.mark.parametrize("data", ["x" * 1000, b"x" * 1000, "\U0001f600" * 250, ""])
async def test_items_beyond_the_limit_are_dropped_and_counted(data, small, caplog):
    received, count = messages.Inbox(), 2000
    kept = [number for number in range(count) if received.put(number, data)]
    assert LIMIT / 2000 < len(kept) < LIMIT / 500
    assert received.dropped == count - len(kept)
    assert kept == list(range(len(kept)))
    assert len(caplog.records) == 1
    received.put_always("end")
    assert [await received.get() for _ in range(len(kept) + 1)] == [*kept, "end"]
    assert received.put("next", data)


async def test_room_drops_messages_and_refuses_files_and_keeps_who_joined_and_left(small):
    lobby, peer, refused = make_room(), SimpleNamespace(), []
    file = SimpleNamespace(name="a file", type="", cancel=lambda: refused.append(None))
    lobby._on_event(room_peer.Joined(peer))
    for _ in range(1000):
        lobby._on_event(room_peer.Message(peer, '\x1e{"a": 1}'))
    lobby._on_event(room_peer.FileOffered(peer, file))
    lobby._on_event(room_peer.Left(peer))
    assert refused == [None]
    await lobby.close()
    events = [event async for event in lobby]
    assert lobby.dropped == 1001 - len(events[1:-1]) > 500
    assert [type(event) for event in (events[0], events[-1])] == [room_peer.Joined, room_peer.Left]
    assert all(event == room_peer.Message(peer, {"a": 1}) for event in events[1:-1])


async def test_messages_of_a_room_are_those_of_its_events_and_files_are_refused():
    lobby = make_room()
    peer, refused = SimpleNamespace(), []
    file = SimpleNamespace(cancel=lambda: refused.append(file))
    events = [room_peer.Joined(peer), room_peer.Message(peer, "text"), room_peer.FileOffered(peer, file)]
    events += [room_peer.Full(True), room_peer.Message(peer, '\x1e{"a": 1}'), room_peer.Left(peer)]
    for event in events:
        lobby._events.put_always(event)
    await lobby.close()
    assert [message async for message in lobby.messages()] == [(peer, "text"), (peer, {"a": 1})]
    assert refused == [file]


async def test_connection_counts_what_it_drops(small):
    connection = link.Connection([], "answerer")
    connection._use_channel(Channel())
    for _ in range(1000):
        connection._take("a message")
    assert connection.dropped > 500
    await connection.close()
    assert len([message async for message in connection]) == 1000 - connection.dropped


def incoming(size):
    channel = Channel()
    return channel, channel.listeners, files.IncomingFile(channel, "a file", "", size)


def block(number, size):
    return number.to_bytes(4, "big") * (size // 4)


async def accept(file):
    """Accept a file. Return its chunks and the task that waits for the first one."""
    chunks = aiter(file)
    reading = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    return chunks, reading


@pytest.mark.parametrize("size", [4, 65_536, MIB])
async def test_bytes_that_wait_for_the_program_take_little_memory(size):
    count = 64 * MIB // size if size > 4 else 100_000
    channel, handlers, file = incoming(count * size)
    chunks, reading = await accept(file)
    tracemalloc.start()
    try:
        for number in range(count):
            handlers["message"](block(number, size))
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
    received = b"".join([await reading] + [chunk async for chunk in chunks])
    assert received == b"".join(block(number, size) for number in range(count))
    assert channel.sent == ['{"accept": true}', '{"received": true}']


@pytest.mark.parametrize("pause", [1, 7, 40, 1000])
async def test_bytes_stay_in_order_if_the_program_is_slow_and_fast_in_turns(pause, monkeypatch):
    monkeypatch.setattr("tornado_signal_client.files.MAX_UNREAD_BYTES", 10_000)
    _, handlers, file = incoming(1000 * 1000)
    number = 0

    def send(count):
        nonlocal number
        for _ in range(min(count, 1000 - number)):
            handlers["message"](block(number, 1000))
            number += 1

    chunks, reading = await accept(file)
    send(pause)
    received = bytearray(await reading)
    send(pause)
    async for chunk in chunks:
        received += chunk
        send(1 if number % (2 * pause) < pause else 2)
    assert received == b"".join(block(number, 1000) for number in range(1000))


async def test_full_disk_cancels_the_transfer(monkeypatch):
    def full(**options):
        raise OSError("No space left on device")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", full)
    channel, handlers, file = incoming(4 * MIB)
    chunks, reading = await accept(file)
    for number in range(64):
        handlers["message"](block(number, 65_536))
    received = len(await reading)

    async def read():
        nonlocal received
        async for chunk in chunks:
            received += len(chunk)

    with pytest.raises(SignalError, match="cancelled"):
        await read()
    assert 0 < received <= MIB
    assert channel.sent == ['{"accept": true}', '{"cancel": "cancelled"}']


def outgoing(content):
    """Return a channel, its listeners and the task that sends a file over it."""
    channel = Channel()
    file = files.OutgoingFile(SimpleNamespace(createDataChannel=lambda *arguments, **options: channel))
    return channel, channel.listeners, asyncio.ensure_future(file.send(content, "a file", lambda sent: None))


def receive_too_early(channel, handlers):
    handlers["message"]('{"received": true}')


def begin_to_close(channel, handlers):
    """The other side closes the channel, which emits an event later."""
    channel.open, channel.readyState = False, "closing"
    channel.flush()


@pytest.mark.parametrize("misbehave", [receive_too_early, begin_to_close])
async def test_receiver_that_breaks_the_protocol_is_an_error_of_the_sender(misbehave):
    channel, handlers, sending = outgoing(bytes(4 * MIB))
    await asyncio.sleep(0)
    handlers["message"]('{"accept": true}')
    while channel.bufferedAmount < MIB:  # noqa: ASYNC110 (a thread reads the file)
        await asyncio.sleep(0)
    misbehave(channel, handlers)
    with pytest.raises(SignalError) as caught:
        await asyncio.wait_for(sending, 20)
    assert caught.value.code == "file-interrupted"
    assert channel.readyState == "closed"


async def test_empty_file_is_accepted_and_received_at_once():
    channel, handlers, sending = outgoing(b"")
    await asyncio.sleep(0)
    handlers["message"]('{"accept": true}')
    handlers["message"]('{"received": true}')
    await sending
    assert channel.readyState == "closed"
