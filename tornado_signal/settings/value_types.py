"""Value types: a description of the allowed values, and a parser of text and TOML values."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeVar
from urllib.parse import urlsplit

from .addresses import Network, canonical_network
from .origins import PATTERN

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
Word = TypeVar("Word", bound=str)

UNIX_PREFIX = "unix:"
"""Prefix of the address of a Unix socket, before its path."""


@dataclass(frozen=True)
class ValueType(Generic[T_co]):
    """The type of a value."""

    allowed: str  # a description of the allowed values
    # Parses the text of a flag or an environment variable, or a TOML value. Raises ValueError.
    parse: Callable[[object], T_co]
    bare_flag: str | None = None  # the value of a flag without one, as text. None if a value is required


@dataclass(frozen=True)
class VariableSecret:
    """A secret in an environment variable, in place of the path of a file."""

    variable: str  # the name of the variable
    content: bytes = field(repr=False)

    def __str__(self) -> str:
        return f"environment variable {self.variable}"


class InvalidEntry(ValueError):
    """An entry of a list is invalid. `entry` is its value."""

    def __init__(self, entry: object) -> None:
        super().__init__(entry)
        self.entry = entry


def integer(low: int, high: int) -> ValueType[int]:
    """Return the type of integers from `low` to `high`, as decimal digits or a TOML integer."""

    def parse(raw: object) -> int:
        # int() alone would also accept signs, spaces, underscores and non-ASCII digits.
        number = int(raw) if isinstance(raw, str) and re.fullmatch("[0-9]{1,18}", raw) else raw
        # bool is a subclass of int in Python, but true is not a number in TOML.
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise ValueError
        return number

    return ValueType(f"a whole number from {low} to {high}", parse)


def matching(pattern: str, allowed: str) -> ValueType[str]:
    """Return the type of strings that fully match `pattern`."""

    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(pattern, raw):
            raise ValueError
        return raw

    return ValueType(allowed, parse)


def one_of(*words: Word) -> ValueType[Word]:
    """Return the type of a value that is one of these words."""

    def parse(raw: object) -> Word:
        for word in words:
            if raw == word:
                return word
        raise ValueError

    return ValueType(" or ".join(words), parse)


def list_of(item: ValueType[T]) -> ValueType[tuple[T, ...]]:
    """Return the type of non-empty lists: a TOML list, or text with commas and optional spaces."""

    def parse(raw: object) -> tuple[T, ...]:
        items = [part.strip() for part in raw.split(",")] if isinstance(raw, str) else raw
        if not isinstance(items, list) or not items:
            raise ValueError
        values = []
        for part in items:
            try:
                values.append(item.parse(part))
            except ValueError:
                raise InvalidEntry(part if len(items) > 1 else raw) from None
        return tuple(values)

    return ValueType(f"{item.allowed}; several separated by commas", parse)


def converted(convert: Callable[[T], U], item: ValueType[T]) -> ValueType[U]:
    """Return the type of `item` values that `convert` converts. It may raise ValueError."""
    return ValueType(item.allowed, lambda raw: convert(item.parse(raw)))


def keyword_or(word: str, value: U, item: ValueType[T]) -> ValueType[T | U]:
    """Return the type of `item` values and a keyword that stands for `value`.

    The keyword lets a flag reset a value of the environment, and the environment one of the file.
    """
    return ValueType(
        f"{word}, or {item.allowed}", lambda raw: value if raw == word else item.parse(raw), item.bare_flag
    )


def none_or(value: U, item: ValueType[T]) -> ValueType[T | U]:
    """Return the type of `item` values and the keyword `none`, which stands for `value`."""
    return keyword_or("none", value, item)


def _address(name: str) -> str:
    if name.startswith(UNIX_PREFIX):
        # The kernel reserves 108 bytes for it, including the final NUL.
        if not 0 < len(name.removeprefix(UNIX_PREFIX).encode(errors="surrogateescape")) < 108 or "\0" in name:
            raise ValueError
    elif not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]*", name):
        ipaddress.ip_address(name)
    return name


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not 0 < int(port) < 65536:
        raise ValueError
    return host.strip("[]"), int(port)


def _url(url: str) -> str:
    _ = urlsplit(url).port  # raises ValueError, like an invalid IPv6 address
    return url


def _normalized(origin: str) -> str:
    """Return an origin in the form that browsers send: in lower case and without the default port of its scheme."""
    scheme = origin.partition(":")[0].lower()
    port = {"http": ":80", "https": ":443"}.get(scheme)
    return origin if port is None else origin.lower().removesuffix(port)


def _switch(raw: object) -> bool:
    if raw in ("true", "false"):
        return raw == "true"
    if not isinstance(raw, bool):
        raise ValueError
    return raw


ADDRESS = converted(
    _address,
    matching(
        ".+", "an IP address or a host name, without a port; or unix: and the path of a socket, at most 107 bytes"
    ),
)
HOST = converted(_address, matching("(?!unix:).+", "an IP address or a host name, without a port"))
HOST_NAME = converted(str.lower, matching("[A-Za-z0-9][A-Za-z0-9._-]*", "a host name without a port"))
SWITCH = ValueType("true or false; a flag alone is true", _switch, bare_flag="true")
NAME = matching("[A-Za-z0-9._-]{1,128}", "a name of letters, digits, dots, underscores and hyphens")
PORT = integer(0, 65535)
COUNT = integer(1, 1_000_000_000)
SIZE = integer(1024, 2**53)
PATH = converted(Path, matching("[^\0]+", "a path"))
OPTIONAL_PATH: ValueType[Path | None] = none_or(None, PATH)
MODE = converted(lambda digits: int(digits, 8), matching("[0-7]{3}", "three octal digits, as for chmod"))
DURATION = converted(
    lambda text: int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[text[-1]],
    matching("[1-9][0-9]{0,6}[smhd]", "a time such as 90s, 15m, 1h or 7d"),
)
"""A time in seconds."""
# The admin listener does not support TLS.
URL = matching(r"http://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?", "http://HOST:PORT")
COLLECTOR = matching(
    r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*/?", "a URL without user and query"
)
NETWORK: ValueType[Network] = converted(
    lambda text: canonical_network(ipaddress.ip_network(text)),
    matching(".+", "an IP address, or a network such as 10.0.0.0/8 with no bits set after its prefix"),
)
PROXY: ValueType[Network | Literal["unix"]] = keyword_or("unix", "unix", NETWORK)
_HOST_PORT = r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
REDIS_NODE: ValueType[tuple[str, int]] = converted(
    _host_and_port,
    matching(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}", "an address such as 10.0.0.1:6379"),
)
PROTOCOL = one_of("peerjs", "y-webrtc", "tracker", "nostr", "rxdb", "matchbox", "godot")
ACTION = one_of("list", "offer", "answer")
TEXT = matching("[!-~]{1,512}", "1 to 512 ASCII characters without spaces")
STUN = matching(f"stuns?:{_HOST_PORT}", "the URL of a STUN server, such as stun:stun.example.com:3478")
TURN = matching(
    rf"turns?:{_HOST_PORT}(\?transport=(udp|tcp))?",
    "the URL of a TURN server, such as turn:turn.example.com:3478?transport=udp",
)
PROVIDERS = ("cloudflare", "metered", "twilio", "xirsys")
TURN_PROVIDER = converted(
    _url,
    matching(
        rf"({'|'.join(PROVIDERS)}):[A-Za-z0-9._-]{{1,128}}"
        rf"|(https://{_HOST_PORT}|http://(localhost|127(\.[0-9]{{1,3}}){{3}}|\[::1\])(:[0-9]{{1,5}})?)"
        r"([/?][!-\"$-~]{0,2000})?",
        "cloudflare:KEY_ID, metered:APP, twilio:ACCOUNT_SID, xirsys:CHANNEL, or an https:// URL without credentials "
        "and fragment (http:// on loopback)",
    ),
)
WEBHOOK_URL = converted(
    _url,
    matching(
        rf"https?://{_HOST_PORT}([/?][!-\"$-~]{{0,2000}})?",
        "an http:// or https:// URL without credentials and fragment",
    ),
)
WEBHOOK_EVENT = one_of(
    "session.created",
    "session.answered",
    "session.expired",
    "session.withdrawn",
    "connection.opened",
    "connection.closed",
)
ORIGIN = matching("(?!https?://[^/]*/)[!-)+-~]{1,512}", "an origin such as https://app.example.com")
# Origins are compared byte for byte (docs/decisions.md#missing-origin). An entry that no browser sends would silently
# refuse every page. Upper case and default ports are therefore normalised, and other forms are refused.
_HTTP_ORIGIN = rf"{PATTERN}|https?://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?"
_APP_ORIGIN = "(?!(?i:https?):)[A-Za-z][A-Za-z0-9+.-]*://[!-)+-~]*"
ALLOWED_ORIGIN = converted(
    _normalized,
    matching(
        rf"(?=.{{1,512}}$)(null|(?i:{_HTTP_ORIGIN})|{_APP_ORIGIN})",
        "an origin as browsers send it, with https:// and without a slash at the end, such as "
        "https://app.example.com, or https://*.example.com for all subdomains, at any depth",
    ),
)
