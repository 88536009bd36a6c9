"""Messages of other peers that a Python program does not read."""

import asyncio
from types import SimpleNamespace

import pytest

from tornado_signal_client import messages
from tornado_signal_client.messages import Inbox

LIMIT = 100_000


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(messages, "MAX_UNREAD_BYTES", LIMIT)


def make_room():
    """Return a room that waits for its ICE servers, and takes files."""
    from tornado_signal_client import SignalClient
    from tornado_signal_client.room import Room

    async def never():
        await asyncio.Event().wait()

    return Room(SignalClient(), never, "lobby", "", None, None, None, True, None, None, lambda room: None)


@pytest.mark.parametrize("data", ["x" * 1000, b"x" * 1000, "\U0001f600" * 250, ""])
async def test_items_beyond_the_limit_are_dropped_and_counted(data, small, caplog):
    received, count = Inbox(), 2000
    kept = [number for number in range(count) if received.put(number, data)]
    assert LIMIT / 2000 < len(kept) < LIMIT / 500
    assert received.dropped == count - len(kept)
    assert kept == list(range(len(kept)))
    assert len(caplog.records) == 1
    received.put_always("end")
    assert [await received.get() for _ in range(len(kept) + 1)] == [*kept, "end"]
    assert received.put("next", data)


@pytest.mark.needs("aiortc")
async def test_room_drops_messages_and_refuses_files_and_keeps_who_joined_and_left(small):
    from tornado_signal_client import FileOffered, Joined, Left, Message

    room, peer, refused = make_room(), SimpleNamespace(), []
    file = SimpleNamespace(name="a file", type="", cancel=lambda: refused.append(None))
    room._on_event(Joined(peer))
    for _ in range(1000):
        room._on_event(Message(peer, '\x1e{"a": 1}'))
    room._on_event(FileOffered(peer, file))
    room._on_event(Left(peer))
    assert refused == [None]
    await room.close()
    events = [event async for event in room]
    assert room.dropped == 1001 - len(events[1:-1]) > 500
    assert [type(event) for event in (events[0], events[-1])] == [Joined, Left]
    assert all(event == Message(peer, {"a": 1}) for event in events[1:-1])


@pytest.mark.needs("aiortc")
async def test_messages_of_a_room_are_those_of_its_events_and_files_are_refused():
    from tornado_signal_client import FileOffered, Full, Joined, Left, Message

    room = make_room()
    peer, refused = SimpleNamespace(), []
    file = SimpleNamespace(cancel=lambda: refused.append(file))
    for event in (Joined(peer), Message(peer, "text"), FileOffered(peer, file), Full(True)):
        room._events.put_always(event)
    room._events.put_always(Message(peer, '\x1e{"a": 1}'))
    room._events.put_always(Left(peer))
    await room.close()
    assert [message async for message in room.messages()] == [(peer, "text"), (peer, {"a": 1})]
    assert refused == [file]


@pytest.mark.needs("aiortc")
async def test_connection_counts_what_it_drops(small):
    from tornado_signal_client.link import Connection

    connection = Connection([], "answerer")
    for _ in range(1000):
        connection._receive("a message")
    assert connection.dropped > 500
    await connection.close()
    assert len([message async for message in connection]) == 1000 - connection.dropped
