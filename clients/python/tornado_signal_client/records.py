"""Typed records of what other peers send. The names of fields are those of docs/room-protocol.md and WebRTC."""

from dataclasses import dataclass
from typing import Final, Literal, NotRequired, TypedDict

from .names import SKEW_MS, VERSION
from .parsing import conforms
from .types import Fields, Token

_BEACON: Final = {"v": int, "id": str, "at": int, "now": int, "since": NotRequired[int], "info": NotRequired[str]}


class Description(TypedDict):
    """An offer or answer of WebRTC."""

    type: Literal["offer", "answer"]
    sdp: str
    joins: NotRequired[int]
    info: NotRequired[str]


class Candidate(TypedDict):
    """A candidate in the form of WebRTC's RTCIceCandidateInit."""

    candidate: str
    sdpMid: NotRequired[str]
    sdpMLineIndex: NotRequired[int]
    usernameFragment: NotRequired[str]


class Signal(TypedDict):
    """A message of the negotiation. `of` is the number of the offer that the description is or answers."""

    description: NotRequired[Description]
    of: NotRequired[int]
    candidates: NotRequired[list[Candidate]]


class Mail(TypedDict("From", {"from": str}), Signal):
    """Mail of a member. It is a signal of the attempt `connection`, or about life if `alive` is "ask" or "yes"."""

    me: NotRequired[str]
    info: str
    code: str
    alive: NotRequired[str]
    connection: NotRequired[str]


class File(TypedDict):
    """The header of a file."""

    name: str
    type: str
    size: int


class Control(TypedDict):
    """Another message about a file."""

    accept: NotRequired[bool]
    received: NotRequired[bool]
    cancel: NotRequired[str]


class Parts(TypedDict):
    """The header of a message in parts."""

    size: int
    text: bool


@dataclass(eq=False)
class Beacon:
    """A listed beacon."""

    id: str
    code: Token
    info: str
    name: str | None
    since_ms: float  # when the member entered, by the server's clock, or 0 in a first beacon
    made_ms: float  # when the member made the beacon, by its own clock
    published_ms: float  # when the beacon was published, by the server's clock
    life: Literal["unknown", "alive", "silent"] = "unknown"  # silent: asked for a sign of life in vain

    @property
    def rank(self) -> tuple[float, float, float]:
        """The order of a member's beacons: the largest is used. The later one of equal ones is a stranger's copy."""
        return self.since_ms, self.made_ms, -self.published_ms

    @property
    def entry_ms(self) -> float:
        """The time at which the member entered, by the server's clock."""
        return min(self.since_ms or self.published_ms, self.published_ms)


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


def is_size(number: float) -> bool:
    """Return whether a number can be a size in bytes."""
    return number >= 0 and number % 1 == 0
