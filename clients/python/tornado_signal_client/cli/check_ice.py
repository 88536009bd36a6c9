"""`check-ice`: whether the STUN and TURN servers that a server hands to its peers work."""

import argparse
import asyncio
import logging
import re
import time
from typing import Literal, NamedTuple

from .. import SignalClient
from ..types import IceServer, urls_of
from . import terminal
from .terminal import CommandError

try:
    import aioice
except ImportError as error:
    raise CommandError("check-ice needs aioice; in the checkout: pip install 'clients/python[peer]'") from error

CONNECT_S = 10.0
MAX_URLS = 100
PORTS = {"stun": 3478, "turn": 3478, "turns": 5349}
URL = re.compile(
    r"(?P<scheme>stuns?|turns?):(?P<host>\[[^]]+\]|[^:?]+)(:(?P<port>[0-9]{1,5}))?(\?transport=(?P<transport>\w+))?"
)


class Result(NamedTuple):
    """The outcome of the check of one URL."""

    url: str  # the URL of the STUN or TURN server
    result: Literal["ok", "failed", "not checked"]
    took_ms: float  # the time until the address was known, for TURN until a message had passed the relay
    detail: str  # this machine's public address, the relay's address, or the reason of a failure


async def check_ice(client: SignalClient, arguments: argparse.Namespace) -> None:
    logging.getLogger("aioice").setLevel(logging.ERROR)  # it logs each step
    response = await client.ice_servers()
    servers = response["iceServers"] if response else []
    pairs = [(url, server) for server in servers for url in urls_of(server)]
    if len(pairs) > MAX_URLS:
        raise CommandError(f"the server has more than {MAX_URLS} URLs of ICE servers")
    results = await asyncio.gather(*(check(url, server) for url, server in pairs))
    rounded = [result._replace(took_ms=round(result.took_ms, 1)) for result in results]
    heads = ["SERVER", "RESULT", "TIME (ms)", "DETAIL"]
    terminal.print_rows(arguments.json, heads, [(result._asdict(), result) for result in rounded])
    if not results:
        raise CommandError("the server has no ICE servers; set --stun-servers or --turn-servers on the server")
    if failed := [result.url for result in results if result.result == "failed"]:
        raise CommandError(f"these ICE servers do not work: {terminal.printable(', '.join(failed))}")


async def check(url: str, server: IceServer) -> Result:
    """Ask a STUN server for this machine's address, or send a message through a TURN server."""
    parts = URL.fullmatch(url)
    if parts is None or parts["scheme"] == "stuns":
        return Result(url, "not checked", 0.0, "only browsers can check this kind of URL")
    address = parts["host"].strip("[]"), int(parts["port"] or PORTS[parts["scheme"]])
    if address[1] > 65535:
        return Result(url, "failed", 0.0, "a port is at most 65535")
    begin_s = time.perf_counter()
    try:
        if parts["scheme"] == "stun":
            detail = await public_address(address)
        else:
            transport = parts["transport"] or ("tcp" if parts["scheme"] == "turns" else "udp")
            detail = await relay_address(address, server, transport, ssl=parts["scheme"] == "turns")
    except CommandError as error:
        return Result(url, "failed", (time.perf_counter() - begin_s) * 1000, str(error))
    return Result(url, "ok", (time.perf_counter() - begin_s) * 1000, detail)


async def public_address(server: tuple[str, int]) -> str:
    """Return the address that a STUN server sees."""
    connection = aioice.Connection(ice_controlling=True, stun_server=server)
    try:
        await connection.gather_candidates()
        if not connection.local_candidates:
            raise CommandError("this machine has no network interface besides loopback")
        for candidate in connection.local_candidates:
            if candidate.type == "srflx":
                return f"{candidate.host}:{candidate.port}"
        raise CommandError("no response; check the name, the port and the firewall (UDP)")
    finally:
        await connection.close()


async def relay_address(server: tuple[str, int], credentials: IceServer, transport: str, *, ssl: bool) -> str:
    """Connect two relayed addresses of a TURN server with each other, and return the first one."""
    ends = [
        aioice.Connection(
            ice_controlling=controlling,
            turn_server=server,
            turn_username=credentials.get("username"),
            turn_password=credentials.get("credential"),
            turn_ssl=ssl,
            turn_transport=transport,
            transport_policy=aioice.TransportPolicy.RELAY,
        )
        for controlling in (True, False)
    ]
    try:
        await asyncio.gather(*(end.gather_candidates() for end in ends))
        if not all(end.local_candidates for end in ends):
            raise CommandError("no relay; check the name, the port, the firewall and the secret of both servers")
        for end, other in zip(ends, reversed(ends), strict=True):
            end.remote_username, end.remote_password = other.local_username, other.local_password
            for candidate in other.local_candidates:
                await end.add_remote_candidate(candidate)
            await end.add_remote_candidate(None)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.gather(*(end.connect() for end in ends))
                await ends[0].send(b"through the relay")
                await ends[1].recv()
        except (ConnectionError, TimeoutError):
            raise CommandError(
                "it allocates addresses, but relays nothing between them; check its relay ports and peer rules"
            ) from None
        address = ends[0].local_candidates[0]
        return f"{address.host}:{address.port}"
    finally:
        await asyncio.gather(*(end.close() for end in ends))
