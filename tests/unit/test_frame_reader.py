"""The parser of WebSocket frames, compared with an independent one on generated streams."""

import importlib.util
import random
import sys

import pytest
from support.frame_vectors import MAX_BYTES, MORE, VECTORS, frame
from websockets.frames import Close, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tornado_signal.transport import frames
from tornado_signal.transport.frames import BINARY, CLOSE, CONTINUATION, PING, TEXT, FrameReader, InvalidFrame

STREAMS = 400  # with one seed
# Where the other parser differs, and why.
DIFFERENCES = {
    *(f"{size} bytes, length of 8" for size in (126, 65_535)),  # RFC 6455, 5.2: as few bytes as possible MUST be used
    *(f"{size} bytes, length of {form}" for size in ("no", 125) for form in (2, 8)),
    "ping with a length of 2",
    "close among fragments",  # closes with 1002; RFC 6455, 5.4: control frames MAY be injected
}
SMALL = {name: vector for name, vector in VECTORS.items() if len(vector.sent) < 70_000}
OPEN_AFTER = [vector.sent for vector in SMALL.values() if vector.code is None]


def make_stream(rng):
    """Return valid frames, then of a vector, which often closes, then valid ones. Return also the vector's name."""
    name = rng.choice([*SMALL])
    before, after = rng.choices(OPEN_AFTER, k=rng.randrange(6)), rng.choices(OPEN_AFTER, k=rng.randrange(2))
    return name, b"".join([*before, SMALL[name].sent, *after])


def cut(data, rng):
    at = 0
    while at < len(data):
        size = rng.choice([1, 3, 50, 100_000])
        yield data[at : at + size]
        at += size


def parse(pieces, binary=True):
    """Return the messages, the data of pings, and the code of the close frame to be sent."""
    reader, events = FrameReader(MAX_BYTES, binary=binary), []
    try:
        for piece in pieces:
            if (text := reader.read_text(piece)) is not None:
                events.append((TEXT, text))
                continue
            reader.receive(piece)
            while (received := reader.next()) is not None:
                opcode, data = received
                if opcode == CLOSE:
                    return [*events, frames.close_code(data)]
                if opcode in (TEXT, BINARY, PING):
                    events.append(received)
    except InvalidFrame as error:
        events.append(int(error.code))
    return events


def parse_by_websockets(pieces):
    protocol, events, message, opcode = ServerProtocol(state=OPEN, max_size=MAX_BYTES), [], b"", TEXT
    for piece in pieces:
        protocol.receive_data(piece)
        for event in protocol.events_received():
            data = bytes(event.data)
            if event.opcode in (Opcode.TEXT, Opcode.BINARY):
                opcode, message = int(event.opcode), b""
            if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                message += data
                if event.fin:
                    if opcode == TEXT and not is_utf8(message):  # which is left to its users
                        return [*events, 1007]
                    events.append((opcode, message))
            elif event.opcode is Opcode.PING:
                events.append((PING, data))
            elif event.opcode is Opcode.CLOSE:
                return [*events, int(Close.parse(data).code)]
        if protocol.close_sent is not None:
            return [*events, int(protocol.close_sent.code)]
    return events


def is_utf8(data):
    try:
        return bool(data.decode()) or True
    except UnicodeDecodeError:
        return False


def test_vectors_are_parsed_as_they_say():
    for name, vector in VECTORS.items():
        pings = [(PING, data) for data in vector.pings]
        messages = [(BINARY if vector.binary else TEXT, data) for data in vector.messages]
        assert parse([vector.sent]) == [*pings, *messages, *([vector.code] if vector.code else [])], name
        if vector.binary:
            assert parse([vector.sent], binary=False)[-1] == 1003, name


SEEDS = [seed if seed == 0 else pytest.param(seed, marks=pytest.mark.weekly) for seed in range(31)]


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_are_parsed_as_by_an_independent_parser(seed):
    rng = random.Random(seed)
    for number in range(STREAMS):
        name, data = make_stream(rng)
        pieces = [*cut(data, rng)]
        found = parse(pieces)
        assert found == parse([data]), (number, name)
        if name not in DIFFERENCES:
            assert found == parse_by_websockets(pieces), (number, name)


def test_listed_differences_to_the_other_parser_exist():
    found = {name for name, vector in VECTORS.items() if parse([vector.sent]) != parse_by_websockets([vector.sent])}
    assert found == DIFFERENCES


@pytest.mark.parametrize(
    "reads",
    [
        [frame(TEXT | MORE, b"a"), frame(TEXT, b"another within its fragments")],
        [b"\x81\xff\x00\x80" + bytes(4 + 128)],  # a length of 2**55, and as many bytes as its first two say
        [b"\x81\xfe\x00\x05" + bytes(4 + 5)],  # a length that is not in its shortest form
        [frame(CONTINUATION, b"of nothing")],
    ],
)
def test_read_that_looks_like_one_text_frame_is_checked(reads):
    assert parse(reads)[-1:] in ([1002], [1009])


def test_rest_of_a_frame_that_looks_like_one_text_frame_belongs_to_it():
    data = frame(BINARY, frame(TEXT, b"text"), key=bytes(4))
    assert parse([data[:6], data[6:]]) == [(BINARY, data[6:])]


def test_unparsed_data_of_a_large_read_alone_stays_in_memory():
    reader = FrameReader(1 << 20)
    reader.receive(frame(TEXT, b"x" * 200_000) + b"\x81")
    assert reader.next() == (TEXT, b"x" * 200_000)
    assert (reader.next(), reader.buffered_bytes) == (None, 1)
    reader.receive(frame(TEXT, b"y")[1:])
    assert (reader.next(), reader.next(), reader.buffered_bytes) == ((TEXT, b"y"), None, 0)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_frames_of_any_size_are_written_as_clients_read_them(size):
    data = random.Random(size).randbytes(size)
    key = b"\1\2\3\4"
    written = frames.make_frame(BINARY, data)
    head = len(written) - size
    masked = written[:1] + bytes([written[1] | 0x80]) + written[2:head] + key + frames.unmask(key, data)
    assert parse([masked]) == parse_by_websockets([masked]) == [(BINARY, data)]


@pytest.mark.parametrize(("code", "reason"), [(None, ""), (1000, ""), (1008, "é" * 100)])
def test_close_frames_are_valid_however_long_the_reason_is(code, reason):
    data = frames.close_data(code, reason)
    assert parse([frame(CLOSE, data)]) == parse_by_websockets([frame(CLOSE, data)]) == [code or 1005]


def test_data_is_unmasked_without_the_compiled_function_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "tornado.speedups", None)
    specification = importlib.util.find_spec("tornado_signal.transport.frames")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.unmask is not frames.unmask
    for size in (0, 1, 3, 4, 5, 1000):
        data = random.Random(size).randbytes(size)
        assert module.unmask(b"\1\xff\0\x80", data) == frames.unmask(b"\1\xff\0\x80", data)
