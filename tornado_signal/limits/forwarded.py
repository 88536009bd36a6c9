"""The address of the client and the name that it used for this server, as trusted proxies forward them. No I/O."""

import functools
import ipaddress
import re
import socket
from collections.abc import Mapping
from typing import Final, Literal

from ..settings.addresses import Address, Network, canonical_address

Proxy = Network | Literal["unix"]
"""A network of trusted proxies, or `unix`: every program that connects to the Unix socket."""

UNIX_CLIENT: Final = "unix"

_Address = Address | Literal["unix"]

_HOST: Final = re.compile(r"[A-Za-z0-9._~-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_PAGE: Final = re.compile(rf"(https?://(?:{_HOST.pattern}))(?:[/?#]|$)")
# Some proxies write the port, too, and then an IPv6 address has brackets around it (RFC 7239, 6).
_HOP: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")
_LONGEST: Final = 64


@functools.lru_cache(4096)
def parse_address(text: str) -> _Address | None:
    """Return an address in canonical form: IPv4 inside IPv6 becomes IPv4, without the interface of a link-local one.

    None if it is not an address.
    """
    if text in ("", "unix:"):  # as the transport, and as nginx call a Unix socket
        return UNIX_CLIENT
    try:  # much faster than the parser of `ipaddress`, which accepts the same addresses
        return ipaddress.IPv4Address(socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError):
        pass
    try:
        return canonical_address(ipaddress.ip_address(text))
    except ValueError:
        return None


def _parse_hop(text: str) -> _Address | None:
    if len(text) > _LONGEST:
        return None
    match = _HOP.fullmatch(text)
    return parse_address(match[1] or match[2] if match else text)


def _among(address: _Address | None, proxies: tuple[Proxy, ...]) -> bool:
    if address is None or isinstance(address, str):
        return address in proxies
    return any(not isinstance(proxy, str) and address in proxy for proxy in proxies)


def trusted(peer: str, proxies: tuple[Proxy, ...]) -> bool:
    return bool(proxies) and _among(parse_address(peer), proxies)


def client_address(peer: str, forwarded_for: str, proxies: tuple[Proxy, ...]) -> str:
    """Return the right-most address that is not a trusted proxy (docs/proxies.md).

    `peer` is the address at the other end of the connection, or empty for a Unix socket. The result is an IP address in
    canonical form. It is `unix` for a program on a Unix socket that is not a trusted proxy or forwards no address.
    """
    client = parse_address(peer)
    if proxies and _among(client, proxies):
        for text in reversed(forwarded_for.split(",")):
            if not text.strip():
                continue
            hop = _parse_hop(text.strip())
            if hop is None:
                break  # no trusted proxy wrote that
            client = hop
            if not _among(hop, proxies):
                break
    return peer if client is None else str(client)


def own_origin(scheme: str, peer: str, headers: Mapping[str, str], proxies: tuple[Proxy, ...]) -> str | None:
    """Return this server's own origin as the client sees it, for a same-origin request without an Origin.

    The X-Forwarded-Proto and X-Forwarded-Host of a peer that is a trusted proxy count. The result is
    `scheme://host`, or None if the request names no valid host.
    """
    host = headers.get("Host", "")
    if trusted(peer, proxies):
        said = _last(headers.get("X-Forwarded-Proto", scheme))
        scheme = said if said in ("http", "https") else scheme
        host = _last(headers.get("X-Forwarded-Host", host))
    return f"{scheme}://{host}" if _HOST.fullmatch(host) else None


def page_origin(referer: str) -> str | None:
    """Return the origin of the page in a Referer, or None if it is not the URL of a page."""
    found = _PAGE.match(referer)
    return found[1] if found else None


def _last(values: str) -> str:
    """Return the last value. Proxies such as Apache append their own value to those of the client."""
    return values.rpartition(",")[2].strip()
