"""Typed records of what other peers send. Each decoder returns a record, or None for a value of another form."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from .names import SKEW_MS, VERSION
from .shapes import conforms
from .types import Fields, Token

_DESCRIPTION: Final = {"type": str, "sdp": str, "joins": (int, None), "info": (str, None)}
_CANDIDATE: Final = {
    "candidate": str,
    "sdpMid": (str, None),
    "sdpMLineIndex": (int, None),
    "usernameFragment": (str, None),
}
_SIGNAL: Final = {"description": (_DESCRIPTION, None), "of": (int, None), "candidates": ([_CANDIDATE], None)}
_MAIL: Final = {**_SIGNAL, "from": str, "info": str, "code": str, "connection": (str, None), "alive": (str, None)}
_BEACON: Final = {"v": int, "id": str, "at": int, "now": int, "since": (int, None), "info": (str, None)}
_FILE: Final = {"name": str, "type": str, "size": int}
_CONTROL: Final = {"accept": (bool, None), "received": (bool, None), "cancel": (str, None)}
_PARTS: Final = {"size": int, "text": bool}


@dataclass(frozen=True)
class Description:
    """An offer or answer of WebRTC."""

    type: Literal["offer", "answer"]
    sdp: str
    joins: int
    info: str | None


@dataclass(frozen=True)
class Candidate:
    """A candidate in the form of WebRTC's RTCIceCandidateInit."""

    line: str
    mid: str | None
    index: int | None


@dataclass(frozen=True)
class Signal:
    """A message of the negotiation.

    Attributes:
        offer_number: the number of the offer that the description is or answers.
    """

    description: Description | None
    offer_number: float
    candidates: list[Candidate]


@dataclass(frozen=True)
class Mail:
    """Mail of a member.

    Attributes:
        alive: "ask" or "yes" in mail about signs of life.
        connection: the id of an attempt, or None.
    """

    sender: str
    name: str | None
    info: str
    code: str
    alive: str | None
    connection: str | None
    signal: Signal


@dataclass(eq=False)
class Beacon:
    """A listed beacon.

    Attributes:
        since_ms: the time at which the member entered, by the server's clock, or 0 in a first beacon.
        made_ms: the time at which the member made the beacon, by its own clock.
        published_ms: the time at which the beacon was published, by the server's clock.
        life: whether its member has given a sign of life, or was asked for one in vain.
    """

    id: str
    code: Token
    info: str
    name: str | None
    since_ms: float
    made_ms: float
    published_ms: float
    life: Literal["unknown", "alive", "silent"] = "unknown"

    @property
    def rank(self) -> tuple[float, float, float]:
        """The order of a member's beacons: the largest is used. The later one of equal ones is a stranger's copy."""
        return self.since_ms, self.made_ms, -self.published_ms

    @property
    def entry_ms(self) -> float:
        """The time at which the member entered, by the server's clock."""
        return min(self.since_ms or self.published_ms, self.published_ms)


def decode_description(value: object) -> Description | None:
    return _description(value) if conforms(value, _DESCRIPTION) else None


def _description(fields: Any) -> Description | None:
    if fields["type"] not in ("offer", "answer"):
        return None
    return Description(fields["type"], fields["sdp"], int(fields.get("joins") or 0), fields.get("info"))


def decode_candidate(value: object) -> Candidate | None:
    return _candidate(value) if conforms(value, _CANDIDATE) else None


def _candidate(fields: Any) -> Candidate:
    return Candidate(fields["candidate"], fields.get("sdpMid"), fields.get("sdpMLineIndex"))


def decode_signal(fields: Fields) -> Signal | None:
    if not conforms(fields, _SIGNAL):
        return None
    described = fields.get("description")
    description = None if described is None else _description(described)
    if described is not None and description is None:
        return None
    return Signal(description, fields.get("of") or 0, [_candidate(each) for each in fields.get("candidates") or ()])


def decode_mail(fields: Fields) -> Mail | None:
    signal = decode_signal(fields) if conforms(fields, _MAIL) else None
    if signal is None:
        return None
    optional = {name: fields.get(name) for name in ("alive", "connection")}
    return Mail(fields["from"], fields.get("me"), fields["info"], fields["code"], **optional, signal=signal)


def decode_beacon(fields: Fields, code: Token, info: str | None, published_ms: float) -> Beacon | None:
    """Return the beacon of a session. It is None for a copy of an old beacon and for other versions."""
    if not conforms(fields, _BEACON) or fields["v"] != VERSION:
        return None
    since_ms = fields.get("since") or 0
    info = fields.get("info") if info is None else info
    is_copy = abs(published_ms - fields["now"]) > SKEW_MS
    if info is None or is_copy or since_ms > published_ms + SKEW_MS:
        return None
    return Beacon(fields["id"], code, info, fields.get("me"), since_ms, fields["at"], published_ms)


def decode_file(fields: Fields) -> tuple[str, str, int] | None:
    """Return the name, media type and size of an offered file."""
    if not conforms(fields, _FILE) or not _is_count(fields["size"]):
        return None
    return fields["name"], fields["type"], int(fields["size"])


def decode_control(fields: Fields) -> Fields:
    """Return the fields of another message about a file, without those of another form."""
    return fields if conforms(fields, _CONTROL) else {}


def decode_parts(fields: Fields) -> tuple[int, bool] | None:
    """Return the size of a message in parts, and whether it is text."""
    if not conforms(fields, _PARTS) or not _is_count(fields["size"]):
        return None
    return int(fields["size"]), fields["text"]


def _is_count(number: float) -> bool:
    return number >= 0 and number % 1 == 0
