"""`turn-config`: the file of settings for coturn."""

import argparse
import ipaddress
import os
import re
from collections.abc import Iterator
from typing import Final

from ..errors import OperatorError
from ..service.ice import read_ice_servers
from ..settings.addresses import LOCAL, Network
from ..settings.settings import Settings
from ..settings.sources import load

PORTS: Final = {"turn": 3478, "turns": 5349}
# Networks that peers must not reach through the relay (RFC 6890).
DENIED: Final[tuple[Network, ...]] = (*LOCAL, *map(ipaddress.IPv6Network, ("::1/128", "fc00::/7", "fe80::/10")))


def run(arguments: argparse.Namespace) -> None:
    print("\n".join(make_lines(load(arguments, os.environ))))


def make_lines(settings: Settings) -> Iterator[str]:
    secret = read_ice_servers(settings).secret.decode(errors="replace")
    if not settings.turn_servers:
        raise OperatorError("--turn-servers names no server; set it to turn:HOST:3478, and --turn-secret-file as well")
    parts = [re.split(r":(?![^\[]*\])|\?", url) for url in settings.turn_servers]
    hosts = list(dict.fromkeys(part[1] for part in parts))
    ports = {scheme: {_port(part) for part in parts if part[0] == scheme} for scheme in PORTS}
    if any(len(each) > 1 for each in ports.values()):
        raise OperatorError("--turn-servers has several ports for one scheme, which one coturn cannot serve")
    yield f"# For {', '.join(hosts)}. It contains the secret of --turn-secret-file."
    yield f"realm={hosts[0].strip('[]')}"
    yield "use-auth-secret"
    yield f"static-auth-secret={secret}"
    yield f"listening-port={next(iter(ports['turn']), PORTS['turn'])}"
    if ports["turns"]:
        if settings.tls_certificate is None or settings.tls_key is None:
            raise OperatorError("turns: servers need a certificate; set --tls-certificate and --tls-key")
        yield f"tls-listening-port={next(iter(ports['turns']))}"
        yield f"cert={settings.tls_certificate.absolute()}"
        yield f"pkey={settings.tls_key.absolute()}"
    else:
        yield "no-tls"
        yield "no-dtls"
    yield from ("fingerprint", "no-cli", "no-multicast-peers")
    yield from (f"denied-peer-ip={network[0]}-{network[-1]}" for network in DENIED)


def _port(parts: list[str]) -> int:
    """Return the port of a URL, split into scheme, host, port and parameter. The last two are optional."""
    return int(parts[2]) if len(parts) > 2 and parts[2].isdecimal() else PORTS[parts[0]]
