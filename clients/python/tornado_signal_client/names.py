"""Identities of room members: an id, a protected name, and signed texts. Rooms with a password: encrypted texts.

The id of a member is a public key: of Ed25519 with a secret, otherwise of P-256. Its texts are verified against its id.
Pages over plain HTTP have random ids, whose texts are not signed.
"""

import base64
import hashlib
import hmac
import json
import secrets
import unicodedata
from collections.abc import Callable

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256

from .parsing import parse_object
from .types import Fields, T

KEYS = "@$"  # prefixes of ids that are public keys: of Ed25519 from a secret, and of P-256 from a random number
SIGNATURE = 86  # characters
MAX_NAME = 256
PBKDF2_ITERATIONS = 600_000  # about a third of a second
NONCE = 12  # bytes
HASH = "sha256"
SALT = "tornado-signal room\n"
VERSION = 2  # of the format
SKEW_MS = 60_000  # between the time that a beacon states and its publication. Another one is a copy
ECDSA = ec.ECDSA(SHA256())
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


class Identity:
    """The identity that a room member presents to the others.

    Raises:
        ValueError: the name has no secret, is empty or is too long.
    """

    def __init__(self, origin: str, topic: str, me: str | None, secret: str | None) -> None:
        if me is not None and secret is None:
            raise ValueError("a name needs a secret, which protects it")
        if me is not None and not _is_name(me):
            raise ValueError(f"a name has one to {MAX_NAME} characters")
        self.name = me
        self.topic = topic
        self._origin = origin
        self._key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey
        if secret is None:
            self._key = ec.derive_private_key(secrets.randbelow(ORDER - 1) + 1, ec.SECP256R1())
            numbers = self._key.public_key().public_numbers()
            if numbers.y % 2:  # the id stands for the point with an even y
                self._key = ec.derive_private_key(ORDER - self._key.private_numbers().private_value, ec.SECP256R1())
            self.id = "$" + text_of(numbers.x.to_bytes(32))
        else:
            self._key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256((SALT + secret).encode()).digest())
            self.id = "@" + text_of(self._key.public_key().public_bytes_raw())

    def seal(self, fields: Fields, recipient: str = "", code: str = "") -> str:
        """Return fields as signed text: a beacon, or mail to the beacon with a code of the member `recipient`."""
        text = json.dumps({**fields, "me": self.name} if self.name is not None else fields)
        signed = self._signed(text, recipient, code)
        if isinstance(self._key, Ed25519PrivateKey):
            return text_of(self._key.sign(signed)) + text
        r, s = decode_dss_signature(self._key.sign(signed, ECDSA))
        return text_of(r.to_bytes(32) + s.to_bytes(32)) + text

    def unseal(
        self, text: str, sender: str, decode: Callable[[Fields], T | None], recipient: str = "", code: str = ""
    ) -> T | None:
        """Return the record of another member's text, or None if it is malformed or the signature does not match.

        The fields contain `me` only if the text is signed and the name is valid.
        """
        at = 0 if text.startswith("{") else SIGNATURE
        signature, text = text[:at], text[at:]
        fields = parse_object(text)
        member = fields.get(sender)
        if not isinstance(member, str) or not member or is_proven(member) != bool(signature):
            return None
        if not signature or not _is_name(fields.get("me")):
            fields.pop("me", None)
        record = decode(fields)
        if record is not None and signature:
            try:
                _verify(member, bytes_of(signature), self._signed(text, recipient, code))
            except (ValueError, InvalidSignature):
                return None
        return record

    def _signed(self, text: str, recipient: str, code: str) -> bytes:
        return "\n".join((self.scope, recipient, code, text)).encode()

    @property
    def scope(self) -> str:
        """The lines of a signed text that name the format, the application and the room."""
        return "\n".join((f"tornado-signal room {VERSION}", self._origin, self.topic))


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
            if code is not None:
                nonces = self._nonces.setdefault(code, set())
                plain = "" if nonce in nonces else plain  # mail is accepted once
                nonces.add(nonce)
        self.ignored += not plain
        return plain

    def forget(self, code: str) -> None:
        self._nonces.pop(code, None)


def _purpose(code: str | None) -> bytes:
    """Return the associated data of a text, which is valid only as what it was encrypted for."""
    return b"beacon" if code is None else f"mail\n{code}".encode()


def is_proven(id: str) -> bool:
    """Return whether no other member can have an id, because it is a public key."""
    return id.startswith(tuple(KEYS))


def _verify(id: str, signature: bytes, signed: bytes) -> None:
    """Raise InvalidSignature if a signature does not match an id, or ValueError if that contains no public key."""
    kind, text = id[:1], id[1:]
    key = bytes_of(text)
    if text != text_of(key):
        raise ValueError("one key has one id")
    if kind == "@":
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    else:
        r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\2" + key)
        point.verify(encode_dss_signature(r, s), signed, ECDSA)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and len(name.encode("utf-16-le", "surrogatepass")) <= 2 * MAX_NAME


def text_of(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
