"""The claims of a token, and the rights that they give."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ..errors import NotAllowed, Unauthorized
from .keys import Key

ACTIONS: Final = ("list", "offer", "answer")
ANY: Final = "any"
"""Stands for at least one of the actions."""
MAX_TOPIC: Final = 256  # code points, like those of the API
MAX_INFO: Final = 1024


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of the bearer of a token."""

    actions: frozenset[str]  # some of `ACTIONS`
    topics: frozenset[str] | None = None  # exact topics, or None for all topics
    prefixes: tuple[str, ...] = ()  # the beginnings of further topics
    info: str | None = None  # the only `info` of the bearer's offers, or None
    origin: str | None = None  # the only origin of the bearer's requests, or None
    subject: str = ""  # the claim `sub`, or an empty text
    begins_s: float = 0.0  # Unix time from which on the token is valid
    ends_s: float = math.inf  # its expiry, Unix time
    key: Key | None = None  # the key that verified it, or None for the rights without a token

    def allows(self, action: str) -> bool:
        return action in self.actions or (action == ANY and bool(self.actions))

    def covers(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics or topic.startswith(self.prefixes)

    def includes(self, other: "Grant") -> bool:
        return (
            self.actions >= other.actions
            and self.info in (None, other.info)
            and (
                self.topics is None
                or (
                    other.topics is not None
                    and all(map(self.covers, other.topics))
                    and all(prefix.startswith(self.prefixes) for prefix in other.prefixes)
                )
            )
        )

    def require_topic(self, topic: str) -> None:
        if not self.covers(topic):
            raise NotAllowed("topic")

    def require_info(self, info: str) -> None:
        """Check the `info` of an offer. Raise NotAllowed if the token has another one."""
        if self.info not in (None, info):
            raise NotAllowed("info")


def parse_claims(payload: bytes, key: Key, issuer: str, audience: str) -> Grant:
    """Return the grant of a token whose signature is valid. The caller checks its times.

    An empty `issuer` or `audience` stands for any. A claim that is repeated is invalid.
    """
    claims = _parse(payload)
    if issuer and claims.get("iss") != issuer:
        raise Unauthorized("token of another issuer")
    if audience and not _includes_audience(claims.get("aud"), audience):
        raise Unauthorized("token for another audience")
    if "exp" not in claims:
        raise Unauthorized("token without exp")
    topics, prefixes = _topics(_claim(claims, "topics", _is_list_of(_is_topic)))
    actions = _claim(claims, "actions", _is_list_of(ACTIONS.__contains__))
    times = {name: _claim(claims, name, _is_time) for name in ("exp", "nbf", "iat")}
    return Grant(
        frozenset(ACTIONS if actions is None else actions),
        topics,
        prefixes,
        _claim(claims, "info", lambda value: _is_text(value, MAX_INFO)),
        _claim(claims, "origin", _is_text),
        _claim(claims, "sub", _is_text) or "",
        max(times["nbf"] or 0, times["iat"] or 0),
        times["exp"],
        key,
    )


def _parse(payload: bytes) -> dict[str, Any]:
    def make(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a repeated member")
        return fields

    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        claims = json.loads(payload, object_pairs_hook=make, parse_constant=refuse)
    except (ValueError, RecursionError):
        claims = None
    if type(claims) is not dict:
        raise Unauthorized("token malformed")
    return claims


def _claim(claims: dict[str, Any], name: str, check: Callable[[Any], bool]) -> Any:
    if name not in claims:
        return None
    if not check(claims[name]):
        raise Unauthorized(f"token with invalid {name}")
    return claims[name]


def _is_text(value: object, most: int | None = None) -> bool:
    return type(value) is str and len(value) > 0 and (most is None or len(value) <= most)


def _is_topic(value: object) -> bool:
    return _is_text(value, MAX_TOPIC + 1)  # a `*` may follow


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 2**53  # type: ignore[operator]


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and all(type(each) is str and check(each) for each in value)


def _includes_audience(value: object, audience: str) -> bool:
    return value == audience or (type(value) is list and audience in value)


def _topics(names: list[str] | None) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """Return the exact topics and the prefixes of the claim. None stands for all topics."""
    if names is None or "*" in names:
        return None, ()
    exact = frozenset(name for name in names if not name.endswith("*"))
    return exact, tuple({name[:-1] for name in names if name.endswith("*")})
