"""Rooms with a password: their topics and their encryption. docs/room-protocol.md describes the format."""

import hashlib
import hmac
import secrets
import unicodedata

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .names import bytes_of, text_of

PBKDF2_ITERATIONS = 600_000  # of PBKDF2; about a third of a second
NONCE = 12  # bytes
HASH = "sha256"


class Cipher:
    """The key of a room with a password. Half of a surrogate pair in the password is a ValueError."""

    def __init__(self, origin: str, topic: str, password: str) -> None:
        secret = unicodedata.normalize("NFC", password).encode()
        salt = f"tornado-signal password 2\n{origin}\n{topic}".encode()
        root = hashlib.pbkdf2_hmac(HASH, secret, salt, PBKDF2_ITERATIONS)
        prefix, _, _ = topic.partition("~")
        self.topic = f"{prefix}~{text_of(hmac.digest(root, topic.encode(), HASH))}"
        self.ignored = 0
        self._key = AESGCM(hmac.digest(root, b"key", HASH))
        self._nonces: dict[str, set[bytes]] = {}  # of the mail to each of this member's beacons

    def seal(self, text: str, code: str | None = None) -> str:
        """Encrypt a beacon, or mail to the beacon with a code."""
        nonce = secrets.token_bytes(NONCE)
        return text_of(nonce + self._key.encrypt(nonce, text.encode(), _purpose(code)))

    def unseal(self, text: str, code: str | None = None) -> str:
        """Decrypt a beacon, or mail to the beacon with a code. Return an empty text for anything else."""
        try:
            octets = bytes_of(text)
            if text_of(octets) != text:  # each text has one form, so a copy is known
                raise ValueError("another form")
            nonce = octets[:NONCE]
            plain = self._key.decrypt(nonce, octets[NONCE:], _purpose(code)).decode()
        except (ValueError, InvalidTag):
            plain = ""
        else:
            if code is not None and self._is_repeated(code, nonce):
                plain = ""
        self.ignored += not plain
        return plain

    def forget(self, code: str) -> None:
        """Forget the mail to a beacon that is no longer read."""
        self._nonces.pop(code, None)

    def _is_repeated(self, code: str, nonce: bytes) -> bool:
        """Return whether mail with this nonce was received before."""
        nonces = self._nonces.setdefault(code, set())
        repeated = nonce in nonces
        nonces.add(nonce)
        return repeated


def _purpose(code: str | None) -> bytes:
    """Return the associated data of a text, which is valid only as what it was encrypted for."""
    return b"beacon" if code is None else f"mail\n{code}".encode()
