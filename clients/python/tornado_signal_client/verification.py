"""Numbers that two people compare to exclude somebody in between (docs/room-protocol.md#verification)."""

import hashlib
import re
from typing import NamedTuple

from .errors import SignalError

EMOJI = (
    "🐶🐱🦁🐴🦄🐷🐘🐰🐼🐔🐧🐢🐟🐙🦋🌷🌳🌵🍄🌏🌙🌈🔥🍌🍎🍓🌽🍕🎂💎🤖🎩"
    "👓🔧🎅👍☔⌛⏰🎁💡📕🎈📎🎲🔒🔑🔨📷🏁🚂🚲⛵🚀🏆⚽🎸🎺🔔⚓🎧📁📌😀"
)
_FINGERPRINT = re.compile(r"^a=fingerprint:(.*?)\s*$", re.MULTILINE | re.IGNORECASE)
_OTHERS = re.compile(r"^a=fingerprint:(?!sha-256 ).*\n", re.MULTILINE | re.IGNORECASE)


class Verification(NamedTuple):
    """The number of a connection."""

    emoji: list[str]  # five
    digits: str  # twelve


def without_other_hashes(sdp: str) -> str:
    """Return a description of aiortc with the fingerprint of SHA-256 only."""
    return _OTHERS.sub("", sdp)


def verification(scope: str, members: list[tuple[str, str]]) -> Verification:
    """Return the number of a connection between members with these ids and descriptions, in any order.

    If a description has not exactly one fingerprint, the error is `not-verifiable`.
    """
    (first, first_id), (second, second_id) = sorted((_fingerprint_of(sdp), id) for id, sdp in members)
    text = "\n".join((scope, "verification", first, second, first_id, second_id))
    digest = hashlib.sha256(text.encode()).digest()
    digits = f"{int.from_bytes(digest[:8]) % 10**12:012}"
    return Verification([EMOJI[byte % len(EMOJI)] for byte in digest[8:13]], digits)


def _fingerprint_of(sdp: str) -> str:
    """Return the only fingerprint of a description. With several, it would not be known which one was checked.

    `sdp` is written by the WebRTC implementation. A received text could hide lines from this search.
    """
    found = {value.upper() for value in _FINGERPRINT.findall(sdp)}
    if len(found) == 1 and (match := re.fullmatch(r"SHA-256 ((?:[\dA-F]{2}:){31}[\dA-F]{2})", found.pop(), re.ASCII)):
        return match[1]
    raise SignalError("not-verifiable", "a description has not exactly one fingerprint with SHA-256")
