"""A raw client of Nostr, and signed events (docs/nostr.md)."""

import hashlib
import json

from btclib_secp256k1 import ssa, xonly

from .y_webrtc import RawClient as Client

KIND = 20_001
SECRET = 5
PUBLIC = xonly.from_prvkey(SECRET)[0].hex()


class NostrClient(Client):
    async def read(self):
        """Return all messages up to the response to an invalid one, when everything sent before has been handled."""
        await self.send(["REQ", "invalid"])
        messages = []
        while (message := await self.receive())[:2] != ["CLOSED", "invalid"]:
            messages.append(message)
        return messages

    async def request(self, subscription, *filters):
        await self.send(["REQ", subscription, *filters])
        return await self.read()

    async def subscribe(self, subscription, *topics, **more):
        assert await self.request(subscription, {"#x": topics, **more}) == [["EOSE", subscription]]

    async def publish(self, event):
        await self.send(["EVENT", event])
        return await self.read()


def serialize(event):
    """Return what the id of an event is the hash of, as JavaScript writes it."""
    fields = [0, *(event[name] for name in ("pubkey", "created_at", "kind", "tags", "content"))]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace")


def make_event(topic="room", content="", **fields):
    """Return a signed event with an `x` tag, and with other fields if they are given."""
    event = {"pubkey": PUBLIC, "created_at": 1, "kind": KIND, "tags": [["x", topic]], "content": content, **fields}
    digest = hashlib.sha256(serialize(event)).digest()
    return {"id": digest.hex(), "sig": ssa.sign(digest, SECRET).hex(), **event, **fields}
