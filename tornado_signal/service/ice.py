"""The STUN and TURN servers for peers, and passwords for the TURN servers (docs/turn.md).

A password is valid for a limited time. This server and the TURN servers share a secret and exchange no messages
(coturn's `use-auth-secret`, draft-uberti-behave-turn-rest-00).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeGuard

from ..settings.settings import Settings
from ..settings.value_types import STUN, TURN
from ..system.secrets import read_secret

NO_ICE_SERVERS: Final = "none; peers in different networks cannot connect (see --stun-servers and --turn-servers)"
MAX_CREDENTIAL: Final = 1024  # code points


class IceServer(TypedDict, total=False):
    """An ICE server, as an RTCConfiguration has it."""

    urls: Sequence[str]
    username: str
    credential: str


def parse_server(value: Any) -> IceServer | None:
    """Return an ICE server of a provider, without URLs that the settings would not accept. None if it is not one."""
    if not isinstance(value, dict):
        return None
    urls: object = value.get("urls", value.get("url"))
    usable = [url for url in (urls if isinstance(urls, list) else [urls]) if _is_usable(url)]
    server = IceServer(urls=usable)
    if any(url.startswith("turn") for url in usable):
        username, credential = value.get("username"), value.get("credential")
        if not (_is_text(username) and _is_text(credential)):
            return None
        server["username"], server["credential"] = username, credential
    return server if usable else None


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_CREDENTIAL and value.isprintable()


def _is_usable(url: object) -> TypeGuard[str]:
    for kind in (STUN, TURN):
        try:
            return bool(kind.parse(url))
        except ValueError:
            continue
    return False


@dataclass
class ProvidedServers:
    """The ICE servers of a provider, and how its requests have ended (docs/turn.md#a-provider)."""

    provider: str = ""  # how the log names it, or empty without a provider
    servers: tuple[IceServer, ...] = ()
    expires_ms: int = 0  # when these expire, Unix milliseconds by the wall clock
    problem: str = ""  # why the last request has failed and what to do, or empty
    succeeded: int = 0  # the number of requests
    failed: int = 0

    def current(self, now_ms: int) -> tuple[IceServer, ...]:
        """Return the servers, or none after they have expired."""
        return self.servers if now_ms < self.expires_ms else ()


@dataclass(frozen=True, repr=False)
class IceServers:
    """The configured ICE servers."""

    stun: tuple[str, ...]
    turn_urls: tuple[str, ...]
    secret: bytes  # the secret shared with the TURN servers, or empty without them
    ttl_s: int  # the lifetime of a password

    def expires_ms(self, now_ms: int) -> int:
        """Return the expiry of credentials made now, in whole seconds as in TURN."""
        return (now_ms // 1000 + self.ttl_s) * 1000

    def servers(self, now_ms: int) -> list[IceServer]:
        """Return the servers, those of TURN with new credentials."""
        servers = [IceServer(urls=self.stun)] if self.stun else []
        if self.turn_urls:
            # The expiry, and a random name for this peer, because TURN servers have quotas for each user name.
            username = f"{self.expires_ms(now_ms) // 1000}:{secrets.token_hex(8)}"
            digest = hmac.digest(self.secret, username.encode(), hashlib.sha1)
            credential = base64.b64encode(digest).decode()
            servers.append(IceServer(urls=self.turn_urls, username=username, credential=credential))
        return servers


def read_ice_servers(settings: Settings) -> IceServers:
    """Return the configured servers. Read the secret from its file."""
    path = settings.turn_secret_file
    secret = b"" if path is None else read_secret(path, "--turn-secret-file")
    return IceServers(settings.stun_servers, settings.turn_servers, secret, settings.turn_ttl_s)
