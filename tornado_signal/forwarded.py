"""Who the client is and what it called this server, as far as trusted proxies may say so. No I/O."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST: Final = re.compile(r"[A-Za-z0-9._~-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


def trusted(address: str, proxies: Iterable[Network]) -> bool:
    """Whether an address, as text, is one of the trusted proxies."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if parsed.version == 6 and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in proxies)


def client_address(peer: str, headers: Mapping[str, str], proxies: Iterable[Network]) -> str:
    """The right-most address that is not a trusted proxy (contract D, --trusted-proxies).

    Args:
        peer: the address at the other end of the connection.
        headers: the request's.
        proxies: the networks of the trusted proxies.
    """
    proxies = tuple(proxies)
    if not proxies:
        return peer
    hops = [hop.strip() for hop in headers.get("X-Forwarded-For", "").split(",") if hop.strip()]
    address = peer
    while hops and trusted(address, proxies):
        try:
            address = str(ipaddress.ip_address(hops.pop()))
        except ValueError:
            break  # whoever wrote that was not a proxy of ours
    return address


def own_origin(scheme: str, peer: str, headers: Mapping[str, str], proxies: Iterable[Network]) -> str | None:
    """This server's own origin as the client sees it, for a same-origin request without Origin (contract B1).

    Args:
        scheme: of the connection, `http` or `https`.
        peer: the address at the other end of the connection.
        headers: the request's.
        proxies: the networks of the trusted proxies, whose X-Forwarded-Proto and X-Forwarded-Host count.

    Returns:
        `scheme://host`, or None if the request names no valid host.
    """
    host = headers.get("Host", "")
    if trusted(peer, proxies):
        said = headers.get("X-Forwarded-Proto", scheme)
        scheme = said if said in ("http", "https") else scheme
        host = headers.get("X-Forwarded-Host", host)
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else None
