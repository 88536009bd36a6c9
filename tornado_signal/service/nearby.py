"""Topics that only clients of one network know."""

import hashlib
import hmac
import ipaddress
from typing import Final

from ..errors import PathNotFound
from ..limits.forwarded import parse_address
from ..session import TopicRange
from .request_context import RequestContext

DAY_MS: Final = 86_400_000
LOCAL: Final = "local"  # all private addresses, and the machine itself
USES: Final = ("", "pair~", "room~")  # prefixes with which clients use the topic
PREFIX: Final = "nearby-"


def network_of(address: str) -> str:
    """Return the network of a client: a public IPv4 address, the /64 of a public IPv6 address, or `LOCAL`."""
    parsed = parse_address(address)
    if parsed is None or isinstance(parsed, str) or parsed.is_private or parsed.is_loopback or parsed.is_link_local:
        return LOCAL
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


async def nearby_topic(context: RequestContext) -> str:
    """Return the topic of the client's network and origin.

    It changes every day at 0:00 UTC. Yesterday's topic stays for another day while it has unanswered sessions. Raise
    PathNotFound if the setting `nearby` is off, or a proxy hides the networks of clients.
    """
    service = context.service
    # Behind a proxy that reports no addresses, one address without limits stands for many clients.
    hidden = service.proxy_reported and not context.client.limited
    if hidden or not service.settings.nearby:
        raise PathNotFound
    network, day = network_of(context.client_address), service.store.now_ms() // DAY_MS
    yesterday, today = (_topic(service.store.secret, context.origin, network, each) for each in (day - 1, day))
    used = [TopicRange(prefix + yesterday, False) for prefix in USES]
    _, count = await service.store.topics(context.origin, 0, 1, sorted(used))
    return yesterday if count else today


def _topic(secret: bytes, origin: str, network: str, day: int) -> str:
    text = f"nearby\n{origin}\n{network}\n{day}"
    return PREFIX + hmac.digest(secret, text.encode(), hashlib.sha256).hex()[:32]
