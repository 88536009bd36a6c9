"""IP addresses in canonical form: an IPv6 address that stands for an IPv4 address is that address. No I/O."""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
# Addresses behind translators: NAT64 (RFC 6052) and 6to4 (RFC 3056). One client has as many as it wants.
TRANSLATED: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("2002::/16"))
# Their IPv4 addresses have privileges, and no translator may use them.
_LOCAL: Final = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.168.0.0/16"
LOCAL: Final = tuple(map(ipaddress.IPv4Network, _LOCAL.split()))
FIRST: Final = {int(prefix.network_address) >> 112 for prefix in TRANSLATED}


def canonical_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, or the address without its interface."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if (mapped := address.ipv4_mapped) is not None:
        return mapped
    number = int(address)
    if number >> 112 not in FIRST:  # most addresses; making a network takes long
        return ipaddress.IPv6Address(number)
    return canonical_network(ipaddress.IPv6Network(number)).network_address


def canonical_network(network: Network) -> Network:
    """Return the IPv4 network that an IPv6 network stands for, or the network itself.

    Raise ValueError if it stands for all IPv4 addresses, but is not `MAPPED`.
    """
    if isinstance(network, ipaddress.IPv4Network):
        return network
    for prefix in (MAPPED, *TRANSLATED):
        if network.subnet_of(prefix):
            bits = min(network.prefixlen - prefix.prefixlen, 32)
            embedded = int(network.network_address) >> (96 - prefix.prefixlen) & 0xFFFF_FFFF
            found = ipaddress.IPv4Network((embedded, bits))
            if prefix == MAPPED:
                return found
            if not bits:
                raise ValueError("all IPv4 addresses")
            return network if any(found.subnet_of(local) for local in LOCAL) else found
    return network
