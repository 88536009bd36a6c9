"""The STUN and TURN servers for peers, and passwords for the TURN servers (docs/turn.md).

A password is valid for a limited time. This server and the TURN servers share a secret and exchange no messages
(coturn's `use-auth-secret`, draft-uberti-behave-turn-rest-00).
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import OperatorError
from ..settings.settings import Settings
from ..system.secrets import read_secret

NO_ICE_SERVERS = "none; peers in different networks cannot connect (see --stun-servers and --turn-servers)"


class TurnCredentials(NamedTuple):
    """URLs and credentials of the TURN servers for one peer."""

    urls: tuple[str, ...]
    username: str  # the expiry in seconds since the Unix epoch, and a random name for this peer
    credential: str


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

    def turn(self, now_ms: int) -> TurnCredentials | None:
        """Return the TURN servers with new credentials, or None if there are no servers."""
        if not self.turn_urls:
            return None
        # TURN servers count by user name: each peer gets one of its own.
        username = f"{self.expires_ms(now_ms) // 1000}:{secrets.token_hex(8)}"
        digest = hmac.digest(self.secret, username.encode(), hashlib.sha1)
        return TurnCredentials(self.turn_urls, username, base64.b64encode(digest).decode())


def read_ice_servers(settings: Settings) -> IceServers:
    """Return the configured servers. Read the secret from its file."""
    path = settings.turn_secret_file
    if settings.turn_servers and path is None:
        raise OperatorError("--turn-servers needs --turn-secret-file")
    if path is not None and not settings.turn_servers:
        raise OperatorError("--turn-secret-file needs --turn-servers")
    secret = b"" if path is None else read_secret(path, "--turn-secret-file")
    return IceServers(settings.stun_servers, settings.turn_servers, secret, settings.turn_ttl_s)
