"""The parser of WebSocket frames, compared with an independent one on generated streams."""

import importlib.util
import random
import sys

import pytest
from support.frame_vectors import VECTORS
from websockets.frames import Close, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from tornado_signal.transport import frames
from tornado_signal.transport.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, FrameReader, InvalidFrame

MAX_BYTES = 70_000
STREAMS = 1000  # with one seed
WORDS = ["x", "é", "😀", "\0", '{"jsonrpc":"2.0"}', "\ufffe"]
CODES = [1000, 1001, 1003, 1007, 1011, 3000, 4999]


def frame(opcode, data=b"", *, fin=True, rsv=0, mask=True, longer=0, key=None):
    """Return a client's frame, which may be invalid. `longer` is the least number of bytes of the extended length."""
    size, key = len(data), key or b"\x0b\xad\xbe\xef"
    longer = max(longer, 0 if size < 126 else 2 if size < 1 << 16 else 8)
    length = {0: bytes([size]) if not longer else b"", 2: b"\x7e", 8: b"\x7f"}[longer]
    head = bytes([fin << 7 | rsv << 4 | opcode, length[0] | mask << 7]) + (size.to_bytes(longer) if longer else b"")
    return head + (key + frames.unmask(key, data) if mask else data)


class Stream:
    """A generated stream of frames: valid messages and control frames, then a close or a fault, then more frames.

    Attributes:
        data: the bytes.
        fault: the name of the fault, or empty.
    """

    def __init__(self, rng):
        self.rng = rng
        self.fault = ""
        parts = [self.valid() for _ in range(rng.randrange(6))]
        end = rng.random()
        if end < 0.5:
            self.fault = rng.choice([*FAULTS])
            parts.append(FAULTS[self.fault](self))
        elif end < 0.8:
            parts.append(self.close())
        self.data = b"".join([*parts, *(self.valid() for _ in range(rng.randrange(2)))])

    def text(self):
        rng = self.rng
        size = rng.choice([0, 1, 5, 30, 30, 30, 120, 126, 300] if rng.random() < 0.99 else [65_535, 65_536])
        return "".join(rng.choices(WORDS, k=size)).encode()[:size].decode(errors="ignore").encode()

    def key(self):
        return self.rng.randbytes(4) or None

    def control(self):
        return frame(self.rng.choice([PING, PONG]), self.rng.randbytes(self.rng.choice([0, 4, 125])), key=self.key())

    def fragments(self, data, opcode=TEXT):
        """Return the frames of a message in fragments, with control frames between them."""
        cuts = sorted(self.rng.choices(range(len(data) + 1), k=self.rng.randrange(1, 4)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        last = len(pieces) - 1
        return b"".join(
            frame(opcode if not at else CONTINUATION, piece, fin=at == last, key=self.key())
            + (self.control() if at < last and self.rng.random() < 0.3 else b"")
            for at, piece in enumerate(pieces)
        )

    def valid(self):
        kind = self.rng.random()
        if kind < 0.5:
            return frame(TEXT, self.text(), key=self.key())
        if kind < 0.7:
            return self.control()
        if kind < 0.8:
            return frame(BINARY, self.rng.randbytes(20))
        return self.fragments(self.text())

    def close(self):
        reason = "".join(self.rng.choices(WORDS[:3], k=4)).encode()
        return frame(CLOSE, self.rng.choice([b"", self.rng.choice(CODES).to_bytes(2) + reason]), key=self.key())


def begun(opcode=TEXT):
    return frame(opcode, b"begun", fin=False)


FAULTS = {
    "no mask": lambda stream: frame(stream.rng.choice([TEXT, CONTINUATION, PING, CLOSE]), b"", mask=False),
    "reserved bit": lambda stream: frame(stream.rng.choice([TEXT, PING]), b"x", rsv=stream.rng.choice([1, 2, 4])),
    "opcode": lambda stream: frame(stream.rng.choice([3, 4, 5, 6, 7, 11, 12, 13, 14, 15]), b"x"),
    "continuation of nothing": lambda stream: frame(CONTINUATION, b"x", fin=stream.rng.random() < 0.5),
    "message among fragments": lambda stream: begun() + frame(stream.rng.choice([TEXT, BINARY]), b"x"),
    "fragmented control frame": lambda stream: frame(stream.rng.choice([PING, PONG, CLOSE]), fin=False),
    "large control frame": lambda stream: frame(stream.rng.choice([PING, PONG, CLOSE]), b"\3\xe8" + b"x" * 124),
    "text that is not UTF-8": lambda stream: frame(TEXT, stream.text() + b"\xed\xa0\x80"),
    "fragments that are not UTF-8": lambda stream: stream.fragments(stream.text() + b"\xf0\x9f\x98"),
    "close of a byte": lambda stream: frame(CLOSE, b"\3"),
    "close code": lambda stream: frame(
        CLOSE, stream.rng.choice([0, 999, 1004, 1005, 1006, 1015, 2999, 5000]).to_bytes(2)
    ),
    "close reason": lambda stream: frame(CLOSE, b"\3\xe8\xff"),
    "too large": lambda stream: frame(TEXT, b"x" * (MAX_BYTES + 1)),
    "too large in fragments": lambda stream: begun() + frame(CONTINUATION, b"x" * MAX_BYTES),
    "negative length": lambda stream: b"\x81\xff" + b"\xff" * 8 + b"mask",
    "length of 2 bytes": lambda stream: frame(stream.rng.choice([TEXT, BINARY]), b"x" * 125, longer=2),
    "length of 8 bytes": lambda stream: frame(stream.rng.choice([TEXT, BINARY]), b"x" * 65_535, longer=8),
    "close 1014": lambda stream: frame(CLOSE, (1014).to_bytes(2)),
    "close among fragments": lambda stream: begun() + stream.close(),
}
# Where the other one differs, and why.
DIFFERENCES = {
    "length of 2 bytes",  # accepts it; RFC 6455, 5.2: the minimal number of bytes MUST be used
    "length of 8 bytes",
    "close among fragments",  # closes with 1002; RFC 6455, 5.4: control frames MAY be injected
}


def cut(data, rng):
    """Yield the data in pieces of random sizes."""
    at = 0
    while at < len(data):
        size = rng.choice([1, 3, 50, 100_000])
        yield data[at : at + size]
        at += size


def parse(pieces, max_bytes=MAX_BYTES):
    """Return the messages, the data of pings, and the code of the close frame to be sent."""
    reader, events = FrameReader(max_bytes, binary=True), []
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


SEEDS = [seed if seed == 0 else pytest.param(seed, marks=pytest.mark.weekly) for seed in range(31)]


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_are_parsed_as_by_an_independent_parser(seed):
    rng = random.Random(seed)
    for number in range(STREAMS):
        stream = Stream(rng)
        pieces = [*cut(stream.data, rng)]
        found = parse(pieces)
        assert found == parse([stream.data]), (number, stream.fault)
        if stream.fault not in DIFFERENCES:
            assert found == parse_by_websockets(pieces), (number, stream.fault)


def test_listed_differences_to_the_other_parser_exist():
    for fault, make in FAULTS.items():
        data = make(Stream(random.Random(fault)))
        assert (parse([data]) != parse_by_websockets([data])) == (fault in DIFFERENCES), fault


@pytest.mark.parametrize("size", [1 << 20, 1000, 1])
def test_vectors_are_parsed_alike_however_they_are_split(size):
    for name, (sent, messages, pings, code, _) in VECTORS.items():
        if len(sent) <= 1000 * size:
            events = parse([sent[at : at + size] for at in range(0, len(sent), size)], 262_144)
            data = [event[1] for event in events if event != code]
            assert sorted(data) == sorted([*messages, *pings]), name
            assert events[len(data) :] == ([] if code is None else [code]), name


@pytest.mark.parametrize(
    "reads",
    [
        [frame(TEXT, b"a", fin=False), frame(TEXT, b"another within its fragments")],
        [b"\x81\xff\x00\x80" + bytes(4 + 128)],  # a length of 2**55, and as many bytes as its first two say
        [b"\x81\xfe\x00\x05" + bytes(4 + 5)],  # a length that is not in its shortest form
        [frame(CONTINUATION, b"of nothing")],
    ],
)
def test_read_that_looks_like_one_text_frame_is_checked(reads):
    assert parse(reads)[-1:] in ([1002], [1009])


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
