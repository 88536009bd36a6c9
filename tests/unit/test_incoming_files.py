"""Files of other peers that a Python program reads slowly. The test is the sender."""

import asyncio
import json
import tracemalloc

import pytest

pytestmark = pytest.mark.needs("aiortc")

MIB = 2**20


class Channel:
    """A data channel of aiortc whose other side is the test."""

    def __init__(self):
        self.handlers, self.sent = {}, []
        self.readyState = "open"

    def on(self, event, handler):
        self.handlers[event] = handler

    def send(self, text):
        self.sent.append(json.loads(text))

    def close(self):
        self.readyState = "closed"


def incoming(size):
    from tornado_signal_client.files import IncomingFile

    channel = Channel()
    return channel, channel.handlers, IncomingFile(channel, "a file", "", size)


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
    assert channel.sent == [{"accept": True}, {"received": True}]


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
    from tornado_signal_client import SignalError, files

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
    assert channel.sent == [{"accept": True}, {"cancel": "cancelled"}]
