"""What a member of a room is known by: an id, a name that a secret protects, and texts which nothing else can write.

The id of a member with a secret is a public key of Ed25519, so that everything it says can be checked against its id.
"""

import base64
import hashlib
import json
import secrets

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from .types import Fields

SIGNED = "@"  # what the id of a member with a secret begins with
SIGNATURE = 86  # characters
MAX_NAME = 256
SALT = "tornado-signal room\n"


class Identity:
    """One member of a room as it shows itself to the others.

    Args:
        topic: of the room, as on the server.
        me: its name; None for none.
        secret: what its id, and with it its name, is protected by; None for an id that is made up.

    Raises:
        ValueError: a name without a secret, or one that is empty or too long.

    Attributes:
        id: under which the others know it.
        name: its name.
        signed: whether it has a secret.
    """

    def __init__(self, topic: str, me: str | None, secret: str | None) -> None:
        if me is not None and secret is None:
            raise ValueError("a name needs a secret, which protects it")
        if me is not None and not _is_name(me):
            raise ValueError(f"a name has one to {MAX_NAME} characters")
        self.name = me
        self.signed = secret is not None
        self._topic = topic
        self._key: Ed25519PrivateKey | None = None
        if secret is None:
            self.id = secrets.token_urlsafe(16)
        else:
            self._key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256((SALT + secret).encode()).digest())
            self.id = SIGNED + _text_of(self._key.public_key().public_bytes_raw())

    def seal(self, fields: Fields, recipient: str = "") -> str:
        """What this member says, as text, to a member (its id), or in its beacon to all."""
        text = json.dumps({**fields, "me": self.name} if self.name is not None else fields)
        return text if self._key is None else _text_of(self._key.sign(self._signed(text, recipient))) + text

    def unseal(self, text: str, sender: str, recipient: str = "") -> Fields | None:
        """What another member says; None if it is nonsense, or does not come from the member that it names.

        `me` is there only if it is a name which the sender may have.

        Args:
            text: what has come.
            sender: the field with its id.
            recipient: the id of the member that it is for.
        """
        at = 0 if text.startswith("{") else SIGNATURE
        signature, text = text[:at], text[at:]
        try:
            fields = json.loads(text)
            member = fields[sender]
            if not isinstance(member, str) or member.startswith(SIGNED) != bool(signature):
                return None
            if signature:
                key = _bytes_of(member.removeprefix(SIGNED))
                if member != SIGNED + _text_of(key):  # else one key had several ids
                    return None
                Ed25519PublicKey.from_public_bytes(key).verify(_bytes_of(signature), self._signed(text, recipient))
        except (ValueError, TypeError, LookupError, RecursionError, InvalidSignature):
            return None
        if not signature or not _is_name(fields.get("me")):
            fields.pop("me", None)
        return dict(fields)

    def _signed(self, text: str, recipient: str) -> bytes:
        return f"{self._topic}\n{recipient}\n{text}".encode()


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != "" and len(name.encode("utf-16-le", "surrogatepass")) <= 2 * MAX_NAME


def _text_of(octets: bytes) -> str:
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
