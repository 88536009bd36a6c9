"""The STUN and TURN servers that peers are told of, and passwords for the TURN servers (contract C7).

A password is good for a limited time, and needs no word between this server and a TURN server: both know a secret
(coturn's `use-auth-secret`; draft-uberti-behave-turn-rest-00).
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


class Turn(NamedTuple):
    """What a peer needs for the TURN servers.

    Attributes:
        urls: theirs.
        username: when it ends, in seconds since the Unix epoch, and a name for this peer alone.
        credential: its password.
    """

    urls: tuple[str, ...]
    username: str
    credential: str


@dataclass(frozen=True, repr=False)
class IceServers:
    """The configured servers.

    Attributes:
        stun: URLs of STUN servers.
        turn_urls: those of TURN servers.
        secret: what they and this server know; empty if there are none.
        ttl_s: how long a password is good.
    """

    stun: tuple[str, ...]
    turn_urls: tuple[str, ...]
    secret: bytes
    ttl_s: int

    def expires_ms(self, now_ms: int) -> int:
        """Until when what is told now can be used: a whole second, as TURN counts in these."""
        return (now_ms // 1000 + self.ttl_s) * 1000

    def turn(self, now_ms: int) -> Turn | None:
        """The TURN servers with a fresh password; None if there are none."""
        if not self.turn_urls:
            return None
        # TURN servers count by user name: each peer gets one of its own.
        username = f"{self.expires_ms(now_ms) // 1000}:{secrets.token_hex(8)}"
        digest = hmac.digest(self.secret, username.encode(), hashlib.sha1)
        return Turn(self.turn_urls, username, base64.b64encode(digest).decode())


def open_ice_servers(settings: Settings) -> IceServers:
    """The servers of the settings; reads the secret.

    Raises:
        OperatorError: there are TURN servers without a secret, or a secret without them, or it cannot be used.
    """
    path = settings.turn_secret_file
    if settings.turn_servers and path is None:
        raise OperatorError("--turn-servers needs their secret: name the file that holds it with --turn-secret-file")
    if path is not None and not settings.turn_servers:
        raise OperatorError("--turn-secret-file is the secret of no servers: name them with --turn-servers")
    secret = b"" if path is None else read_secret(path, "--turn-secret-file")
    return IceServers(settings.stun_servers, settings.turn_servers, secret, settings.turn_ttl_s)
