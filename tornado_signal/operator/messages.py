"""Signed messages between the processes that share a store. Rights to publish on Redis are not enough to forge one."""

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Final

from ..service import wire

SIGNATURE_BYTES: Final = 64  # in hexadecimal: the relay strips spaces at the start of a message
MAX_AGE_MS: Final = 60_000  # of a request; an older one is a repetition
MAX_SENDERS: Final = 10_000  # whose latest requests are known
PURPOSE: Final = b"messages between processes"

REQUEST: Final = {"from": str, "number": int, "name": str, "fields": dict, "by": str}
REPLY: Final = {"id": str, "process": str, "number": int}


class Messages:
    """Signs and checks messages.

    Only those who may read the store know its secret. The time is the store's, which all processes share.
    """

    def __init__(self, secret: Callable[[], bytes], now_ms: Callable[[], int]) -> None:
        self._secret = secret
        self._now_ms = now_ms
        self._started_ms = now_ms()  # an earlier request was for other processes, and can be repeated
        self._number = 0
        self._latest: dict[str, int] = {}  # the number of the latest request by sender

    def next_number(self) -> int:
        """Return a number for a request, larger than the one before. It is also about the time."""
        self._number = max(self._number + 1, self._now_ms())
        return self._number

    def sign(self, fields: dict[str, Any]) -> bytes:
        body = wire.encode(fields)
        return self._signature(body) + body

    def read_request(self, message: bytes) -> dict[str, Any] | None:
        """Return the fields of a request, or None if it is forged, repeated, invalid or older than this process."""
        fields = self._read(message, REQUEST)
        if fields is None or abs(self._now_ms() - fields["number"]) > MAX_AGE_MS:
            return None
        sender, number = fields["from"], fields["number"]
        if number < self._started_ms:
            return None
        if number <= self._latest.get(sender, 0):
            return None
        if len(self._latest) >= MAX_SENDERS:
            oldest = self._now_ms() - MAX_AGE_MS
            self._latest = {sender: latest for sender, latest in self._latest.items() if latest > oldest}
        self._latest[sender] = number
        return fields

    def read_reply(self, message: bytes) -> dict[str, Any] | None:
        """Return the fields of a reply, or None if it is forged or invalid."""
        return self._read(message, REPLY)

    def _read(self, message: bytes, types: dict[str, type]) -> dict[str, Any] | None:
        signature, body = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(body)):
            return None
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return None
        if type(fields) is not dict or any(type(fields.get(name)) is not kind for name, kind in types.items()):
            return None
        return fields

    def _signature(self, body: bytes) -> bytes:
        # The secret has other uses, and is another one after the store was emptied.
        return hmac.digest(hmac.digest(self._secret(), PURPOSE, hashlib.sha256), body, hashlib.sha256).hex().encode()
