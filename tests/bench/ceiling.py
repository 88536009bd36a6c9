"""The bare ceiling: the speed of parser, event loop, JSON and LevelDB on this machine without the server's own code.

It reads and writes as many keys and values as the package, of the same sizes, on the event loop. Responses have the
API's form. It validates nothing and has no origins, long polls or topics: it is a reference, not a server.
"""

import asyncio
import os
import struct
import sys
import time
import uuid

import httptools
import orjson
import uvloop

from tornado_signal.stores.leveldb.binding import plyvel

# Sizes as in tornado_signal.stores.leveldb.layout: table, origin, code, part.
SESSION = b"S" + b"http://bench.example" + b"\0\0"
LISTING = b"L" + b"http://bench.example" + b"\0\0"
EXPIRY = b"E"
HEAD, OFFER, OFFER_CANDIDATE, ANSWER, ANSWER_CANDIDATE, END = (bytes((part,)) for part in range(6))
DESCRIPTION = {"offerer": ANSWER, "answerer": OFFER}  # the description that each side polls for
AFTER = {"offerer": END, "answerer": ANSWER}
CANDIDATE = {"offerer": OFFER_CANDIDATE, "answerer": ANSWER_CANDIDATE}
NAMES = {"offerer": ("answer", "answerCandidates"), "answerer": ("offer", "offerCandidates")}
ANSWERED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
LAST = 2**64 - 1
TIMEOUT_MS = 300_000
numbers = struct.Struct(">QQ").pack
number = struct.Struct(">Q").pack
head = struct.Struct(">QQQQH").pack


class Ceiling:
    """The store, one LevelDB database that is used on the event loop."""

    def __init__(self, path: str, sync: bool) -> None:
        self.sync = sync
        self.serial = 0
        sizes = {"bloom_filter_bits": 10, "write_buffer_size": 16 << 20, "lru_cache_size": 4 << 20}
        self.db = plyvel.DB(path, create_if_missing=True, **sizes)

    def get(self, path: bytes) -> dict:
        if path == b"/":
            return {"version": "ceiling"}
        if path == b"/health":
            return {"status": "ok", "timestamp": time.time_ns() // 1_000_000}
        prefix = LISTING + path.split(b"/")[1] + b"\0\0"
        listed = []
        with self.db.iterator(prefix=prefix, include_key=False) as entries:
            for value in entries:
                key = SESSION + value[:16]
                with self.db.iterator(start=key, stop=key + ANSWER, include_key=False) as parts:
                    fields, offer, *candidates = parts
                created_ms, expires_ms, _, _, length = struct.unpack_from(">QQQQH", fields)
                session = {"code": str(uuid.UUID(bytes=value[:16])), "info": fields[34 + length :].decode()}
                session |= {
                    "offer": offer.decode(),
                    "offerCandidates": [candidate.decode() for candidate in candidates],
                }
                listed.append(session | {"createdAt": created_ms, "expiresAt": expires_ms})
        return {"sessions": listed}

    def post(self, path: bytes, fields: dict) -> dict:
        if path == b"/poll":
            return self.poll(fields)
        if path == b"/answer":
            return self.answer(fields)
        return self.offer(path.split(b"/")[1], fields)

    def poll(self, fields: dict) -> dict:
        key = SESSION + bytes.fromhex(fields["code"].replace("-", ""))
        side = fields["side"]
        self.db.get(key + HEAD)
        start, stop = key + DESCRIPTION[side], key + AFTER[side]
        description = None
        candidates = []
        parts = self.db.raw_iterator()  # costs two thirds of an iterator with a start and a stop
        parts.seek(start)
        while parts.valid() and (part := parts.key()) < stop:
            if part == start:
                description = parts.value().decode()
            else:
                candidates.append(parts.value().decode())
            parts.next()
        first, second = NAMES[side]
        return {first: description, second: candidates}

    def answer(self, fields: dict) -> dict:
        key = SESSION + bytes.fromhex(fields["code"].replace("-", ""))
        session = self.db.get(key + HEAD)
        with self.db.write_batch(sync=self.sync) as batch:
            if "answer" in fields:
                self.db.get(key + ANSWER)
                created_ms, _, _, serial, length = struct.unpack_from(">QQQQH", session)
                batch.put(key + ANSWER, fields["answer"].encode())
                batch.delete(LISTING + session[34 : 34 + length] + b"\0\0" + numbers(LAST - created_ms, LAST - serial))
            else:
                self.serial += 1
                batch.put(key + CANDIDATE[fields["side"]] + number(self.serial), fields["candidate"].encode())
                batch.put(b"M", numbers(0, self.serial))
        return {"success": True}

    def offer(self, topic: bytes, fields: dict) -> dict:
        code = uuid.uuid4()
        key = SESSION + code.bytes
        now_ms = time.time_ns() // 1_000_000
        expires_ms = now_ms + TIMEOUT_MS
        self.serial += 1
        mine = head(now_ms, expires_ms, TIMEOUT_MS, self.serial, len(topic)) + topic + fields["info"].encode()
        listed = LISTING + topic + b"\0\0" + numbers(LAST - now_ms, LAST - self.serial)
        with self.db.write_batch(sync=self.sync) as batch:
            batch.put(key + HEAD, mine)
            batch.put(key + OFFER, fields["offer"].encode())
            batch.put(listed, code.bytes + number(expires_ms))
            batch.put(EXPIRY + number(expires_ms) + key[1:], b"")
            batch.put(b"M", numbers(now_ms, self.serial))
        return {"code": str(code)}


class Connection(asyncio.Protocol):
    def __init__(self, ceiling: Ceiling) -> None:
        self.ceiling = ceiling
        self.parser = httptools.HttpRequestParser(self)
        self.path = self.body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.path = url
        self.body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        store, path = self.ceiling, self.path
        fields = store.post(path, orjson.loads(self.body)) if self.body else store.get(path)
        body = orjson.dumps(fields)
        self.transport.write(ANSWERED % (len(body), body))


async def serve(path: str, sync: bool) -> None:
    ceiling = Ceiling(path, sync)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(ceiling), "127.0.0.1", 0, backlog=4096)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", file=sys.stderr, flush=True)
    await loop.create_future()


if __name__ == "__main__":
    _, data_dir, durability = sys.argv
    os.makedirs(data_dir, exist_ok=True)
    uvloop.run(serve(data_dir, durability == "fsync"))
