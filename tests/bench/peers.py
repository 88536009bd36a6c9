"""Peers like browsers. They send different data, so that no two requests are the same.

All data is derived from a number, so that every server gets the same peers.
"""

import base64
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson

from .client import Connection

APPS = 40  # sites, each with its own origin
CANDIDATES = 4  # candidates of each side
DESCRIPTION = 1000, 2000  # approximate characters of an offer or answer. Lengths are spread between these
LANGUAGES = ("de", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv", "tr", "uk", "zh")
REGIONS = ("AT", "BE", "BR", "CA", "CH", "DE", "ES", "FR", "GB", "IT", "JP", "MX", "NL", "PL", "TW", "UA", "US")
SYSTEMS = [("Windows NT 10.0; Win64; x64", "Windows"), ("X11; Linux x86_64", "Linux")]
SYSTEMS += [("Macintosh; Intel Mac OS X 10_15_7", "macOS"), ("Linux; Android 10; K", "Android")]


class Peer:
    """One browser on a page of an origin, whose description is an `offer` or an `answer`."""

    def __init__(self, draw: random.Random, kind: str, origin: str, authorization: str = "") -> None:
        # an address of this machine
        self.address = f"127.{draw.randint(1, 254)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}"
        self.identity = str(uuid.UUID(int=draw.getrandbits(128), version=4))
        self.token = _letters(draw, 11)  # the token that PeerJS clients send
        self.description = orjson.dumps({"type": kind, "sdp": _sdp(draw)}).decode()
        self.candidates = [_candidate(draw) for _ in range(CANDIDATES)]
        self._origin = origin
        self._authorization = [("Authorization", authorization)] if authorization else []
        self._accepted = [("Accept-Encoding", "gzip, deflate, br, zstd"), ("Accept-Language", _languages(draw))]
        self._key = base64.b64encode(draw.randbytes(16)).decode()
        page = f"{origin}/{_letters(draw, draw.randint(3, 12))}/{_letters(draw, draw.randint(6, 24))}"
        self._before, self._behind = _browser(draw, page)

    def request(self, base: str, method: str, path: str, fields: dict | None = None) -> bytes:
        """Return a `fetch` request with 12 to 15 headers."""
        body = b"" if fields is None else orjson.dumps(fields)
        headers = [("Host", urlsplit(base).netloc), ("Connection", "keep-alive"), *self._before]
        if fields is not None:
            headers += [("Content-Length", str(len(body))), ("Content-Type", "application/json")]
        headers += [("Origin", self._origin), *self._behind, *self._accepted, *self._authorization]
        return _head(method, path, headers) + body

    def upgrade(self, base: str, path: str) -> bytes:
        """Return the request that opens a WebSocket, with 12 headers."""
        agent = next(value for name, value in self._before if name == "User-Agent")
        headers = [("Host", urlsplit(base).netloc), ("Connection", "Upgrade"), ("Pragma", "no-cache")]
        headers += [("Cache-Control", "no-cache"), ("User-Agent", agent), ("Upgrade", "websocket")]
        headers += [("Origin", self._origin), ("Sec-WebSocket-Version", "13"), *self._accepted]
        headers += [("Sec-WebSocket-Key", self._key), *self._authorization]
        headers += [("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits")]
        return _head("GET", path, headers)


@dataclass(frozen=True)
class Pair:
    topic: str
    offerer: Peer
    answerer: Peer

    @contextmanager
    def connections(self, base: str) -> Iterator[list[Connection]]:
        """Yield a connection of each peer."""
        both = [Connection(base, peer.address) for peer in (self.offerer, self.answerer)]
        yield both
        for connection in both:
            connection.close()


def pair(number: int, authorization: str = "") -> Pair:
    """Return a pair. Its requests have the header `authorization`, unless that is empty."""
    draw = random.Random(number)
    origin = f"https://app-{number % APPS}.example"
    topic = f"room-{number}-{_letters(draw, draw.randint(1, 30))}"
    return Pair(topic, Peer(draw, "offer", origin, authorization), Peer(draw, "answer", origin, authorization))


def _head(method: str, path: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _letters(draw: random.Random, length: int) -> str:
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def _languages(draw: random.Random) -> str:
    chosen = [f"{draw.choice(LANGUAGES)}-{draw.choice(REGIONS)}" for _ in range(draw.randint(1, 4))]
    tags = [tag for name in chosen for tag in (name, name[:2])]
    return ",".join(tag if at == 0 else f"{tag};q={max(1, 10 - at) / 10}" for at, tag in enumerate(tags))


# Headers that browsers send before and after those of the request itself.
Headers = tuple[list[tuple[str, str]], list[tuple[str, str]]]
FETCHED = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Dest", "empty")]


def _browser(draw: random.Random, page: str) -> Headers:
    """Return the headers of Chromium, whose page requests that no Referer is sent, of Firefox or of Safari."""
    version, build = draw.randint(115, 148), draw.randint(0, 7999)
    system, platform = draw.choice(SYSTEMS)
    kind = draw.choice(("Chromium", "Chromium", "Firefox", "Safari"))
    agent = f"Mozilla/5.0 ({system}; rv:{version}.0) Gecko/{build} Firefox/{version}.0"
    if kind == "Firefox":
        return [("User-Agent", agent), ("Accept", "*/*"), ("Referer", page)], [*FETCHED, ("Priority", "u=4")]
    agent = f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{version}.0.{build}.0 Safari/537.36"
    if kind == "Safari":
        before = [("Accept", "*/*"), ("Pragma", "no-cache"), ("User-Agent", agent), ("Cache-Control", "no-cache")]
        return before, [*FETCHED, ("Referer", page)]
    brand = draw.choice(("Google Chrome", "Microsoft Edge", "Brave", "Opera"))
    brands = f'"Chromium";v="{version}", "{brand}";v="{version}", "Not{draw.choice("-_;)(")}A Brand";v="{build % 99}"'
    before = [("sec-ch-ua-platform", f'"{platform}"'), ("User-Agent", agent), ("sec-ch-ua", brands)]
    return [*before, ("sec-ch-ua-mobile", "?1" if platform == "Android" else "?0"), ("Accept", "*/*")], FETCHED


def _address(draw: random.Random) -> str:
    return f"{draw.choice((192, 198, 203))}.{draw.randint(0, 255)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}"


def _candidate_line(draw: random.Random) -> str:
    line = f"candidate:{draw.getrandbits(32)} 1 udp {draw.getrandbits(31)} {_address(draw)} {draw.randint(1024, 65535)}"
    if draw.random() < 0.5:
        return f"{line} typ host generation 0 network-id {draw.randint(1, 9)}"
    return f"{line} typ srflx raddr {_address(draw)} rport {draw.randint(1024, 65535)} generation 0 network-cost 999"


def _candidate(draw: random.Random) -> str:
    fragment = _letters(draw, 4)
    line = f"{_candidate_line(draw)} ufrag {fragment}"
    return orjson.dumps({"candidate": line, "sdpMid": "0", "sdpMLineIndex": 0, "usernameFragment": fragment}).decode()


def _sdp(draw: random.Random) -> str:
    """Return a text with the length and the lines of a description. The server takes it as it is."""
    text, length = f"v=0\r\na=fingerprint:sha-256 {draw.randbytes(32).hex(':').upper()}\r\n", draw.randint(*DESCRIPTION)
    while len(text) < length - 100:
        text += f"a={_candidate_line(draw)}\r\n"
    return text
