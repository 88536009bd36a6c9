"""The operator's actions on one process (docs/operator-page.md#actions)."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from ..errors import SessionNotFound
from ..limits.per_address import contains
from ..service import wire
from ..service.client_connection import ClientConnection
from ..service.refusals import BLOCKED_BY_OPERATOR, CLOSED_BY_OPERATOR
from ..service.service import Service, WaitingRequest
from ..session import Session, Side
from ..settings.addresses import Network, canonical_network
from ..settings.settings import LiveSettings, Settings
from ..system.loop import present
from ..transport import ServerState
from ..transport.frames import CloseCode
from ..transport.state import OpenConnection
from ..transport.websocket import WebSocket
from .status import receivers

log = logging.getLogger(__name__)

MAX_BLOCK_S: Final = 31 * 86_400
MAX_BLOCKS: Final = 1000
CLOSED_AT_ONCE: Final = 100  # connections per event-loop iteration
MAX_TEXT: Final = 1024
LEVELS: Final = ("debug", "info", "warning", "error")
FORWARDED_BY: Final = "X-Operator"
"""The header of a request that the supervisor passes on to a worker: who has sent it."""

Fields = Mapping[str, Any]
Performers = Mapping[str, Callable[[Fields], Awaitable[dict[str, Any]]]]
"""The functions that perform actions, by name. They raise InvalidAction before anything has changed."""


class InvalidAction(Exception):
    """An action has a missing or invalid field. The message says which, and what is expected."""


class Action(NamedTuple):
    """An action."""

    fields: tuple[str, ...] = ()
    everywhere: bool = False  # whether all processes that share the store perform it


ACTIONS: Final = {
    "disconnect": Action(("address", "origin", "topic", "code", "subject"), everywhere=True),
    "block": Action(("address", "seconds"), everywhere=True),
    "unblock": Action(("address",), everywhere=True),
    "withdraw": Action(("origin", "topic", "code")),
    "drain": Action(),
    "log-level": Action(("level",)),
}


PRIVATE: Final = ("topic", "code", "subject")
"""The fields with data of peers, which are not logged."""
TARGETS: Final = ({"address"}, {"origin"}, {"origin", "topic"}, {"origin", "code"}, {"subject"})
"""The fields that choose the clients of `disconnect`."""


class Target(NamedTuple):
    """The clients of an action. Empty fields are not compared."""

    origin: str = ""
    topic: str = ""  # a topic, room, id or info hash
    code: bytes = b""  # the code of an offer that they hold
    subject: str = ""  # the claim `sub` of their token

    def has_connection(self, client: ClientConnection) -> bool:
        if self.subject:
            return client.grant is not None and client.grant.subject == self.subject
        if client.origin != self.origin:
            return False
        if self.topic:
            return self.topic in client.names or any(held.topic == self.topic for held in client.held)
        return not self.code or any(held.key == (self.origin, self.code) for held in client.held)

    def has_wait(self, waiting: WaitingRequest, topic: str) -> bool:
        if self.subject:
            return waiting.grant is not None and waiting.grant.subject == self.subject
        return waiting.origin == self.origin and not self.code and self.topic in ("", topic)


class Actions:
    """The actions on one process. `of_server` performs those on the server as a whole."""

    def __init__(self, service: Service, transport: ServerState, of_server: Performers) -> None:
        self._service = service
        self._transport = transport
        self.performers: Performers = {
            **of_server,
            "disconnect": self._disconnect,
            "block": self._block,
            "unblock": self._unblock,
            "withdraw": self._withdraw,
        }
        self._loop = asyncio.get_running_loop()

    # Connections

    async def _disconnect(self, fields: Fields) -> dict[str, Any]:
        if fields.keys() not in TARGETS:
            raise InvalidAction("one of these is required: address; origin; origin and topic; origin and code; subject")
        if "address" in fields:
            return {"connections": await self._disconnect_network(parse_network(fields))}
        texts = {name: parse_text(fields, name) for name in fields if name != "code"}
        target = Target(**texts, code=parse_code(fields) if "code" in fields else b"")
        return {"connections": await self._disconnect_clients(target)}

    async def _disconnect_network(self, network: Network, reason: str = CLOSED_BY_OPERATOR) -> int:
        count = 0
        async for connections in present(self._transport.connections, CLOSED_AT_ONCE):
            for connection in connections:
                if not contains(network, connection.client_address):
                    continue
                # An idle connection of a proxy belongs to none of its clients.
                if connection.idle and connection.client_address != connection.remote_ip:
                    continue
                end(connection, reason)
                count += 1
        return count

    async def _disconnect_clients(self, target: Target) -> int:
        """Close the WebSockets and the waiting requests of the clients of a target."""
        count = 0
        async for connections in present(self._transport.connections, CLOSED_AT_ONCE):
            for client in receivers(connections):
                if target.has_connection(client):
                    end(client.socket, CLOSED_BY_OPERATOR)
                    count += 1
        async for waits in present(self._service.waits.items(), CLOSED_AT_ONCE):
            for waiting, topic in waits:
                count += target.has_wait(waiting, topic) and waiting.disconnect()
        return count

    # Blocks

    async def _block(self, fields: Fields) -> dict[str, Any]:
        network = parse_network(fields)
        seconds = fields.get("seconds")
        if type(seconds) is not int or not 1 <= seconds <= MAX_BLOCK_S:
            raise InvalidAction(f"seconds must be an integer from 1 to {MAX_BLOCK_S}")
        proxies = self._service.settings.trusted_proxies
        if any(not isinstance(proxy, str) and proxy.overlaps(network) for proxy in proxies):
            raise InvalidAction("address includes a trusted proxy, which forwards the requests of all clients")
        if len(self._service.limits.blocks) >= MAX_BLOCKS and network not in self._service.limits.blocks:
            raise InvalidAction(f"at most {MAX_BLOCKS} networks can be blocked; unblock one first")
        self.block_until(network, self._service.clock.now_ms() + 1000 * seconds)
        return {"connections": await self._disconnect_network(network, BLOCKED_BY_OPERATOR)}

    async def _unblock(self, fields: Fields) -> dict[str, Any]:
        return {"blocked": self._service.limits.unblock(parse_network(fields))}

    def blocks(self) -> list[tuple[str, int]]:
        """Return the blocked networks, each with the end of its block in Unix milliseconds."""
        return [(str(network), until_ms) for network, until_ms in self._service.limits.blocks.items()]

    def take_over(self, network: str, until_ms: int) -> None:
        """Block a network that another process blocks."""
        if until_ms > self._service.clock.now_ms():
            self.block_until(ipaddress.ip_network(network), until_ms)

    def block_until(self, network: Network, until_ms: int) -> None:
        """Block a network until a time. It replaces an earlier block of the same network."""
        self._service.limits.block(network, until_ms)
        seconds = (until_ms - self._service.clock.now_ms()) / 1000
        self._loop.call_later(seconds, self._end_block, network, until_ms)

    def _end_block(self, network: Network, until_ms: int) -> None:
        if self._service.limits.blocks.get(network) == until_ms:  # else it was ended or replaced before
            self._service.limits.unblock(network)
            log.info("the block of %s has ended", network)

    # Sessions

    async def _withdraw(self, fields: Fields) -> dict[str, Any]:
        if ("topic" in fields) == ("code" in fields):
            raise InvalidAction("exactly one of topic and code is required")
        store, count, origin, code = self._service.store, 0, parse_text(fields, "origin"), None
        if "code" in fields:
            code = parse_code(fields)
            try:
                topic = await store.find_topic(origin, code)
            except SessionNotFound:
                return {"sessions": 0}
        else:
            topic = parse_text(fields, "topic")

        async def withdraw(session: Session) -> bool:
            with contextlib.suppress(SessionNotFound):  # answered, expired or withdrawn in the meantime
                await store.withdraw(origin, session.code, Side.OFFERER, secret_hash=session.secret_hash)
                return True
            return False

        async for step in store.sessions(origin, topic):  # those of a step share writes to the disk
            chosen = (listed.session for listed in step if code in (None, listed.session.code))
            count += sum(await asyncio.gather(*map(withdraw, chosen)))
        return {"sessions": count}


def make_server_actions(
    stop: Callable[[], None], live: LiveSettings, apply: Callable[[Settings], object]
) -> Performers:
    """Return the actions on a server as a whole. `apply` applies other settings, until a reload.

    `stop` is called when the action has been logged.
    """

    async def drain(fields: Fields) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(stop)
        return {"state": "leaving"}

    async def log_level(fields: Fields) -> dict[str, Any]:
        level = fields.get("level")
        if level not in LEVELS:
            raise InvalidAction(f"level must be one of {', '.join(LEVELS)}")
        sources = {**live.current.sources, "log_level": "operator"}
        apply(dataclasses.replace(live.current, log_level=level, sources=sources))
        return {"level": level}

    return {"drain": drain, "log-level": log_level}


async def perform(performers: Performers, name: str, fields: Fields, by: str) -> dict[str, Any]:
    """Perform an action, and log it with `by`, the operator's address. Return the result as a JSON object.

    If it fails, the name of the exception is logged instead of the result. An invalid action is not logged.
    """
    for field in fields:
        if field not in ACTIONS[name].fields:
            raise InvalidAction(f"{name} has no field {field!r}")
    try:
        result = await performers[name](fields)
    except InvalidAction:
        raise
    except BaseException as error:
        _audit(name, fields, by, {"error": type(error).__name__})
        raise
    _audit(name, fields, by, result)
    return result


def _audit(name: str, fields: Fields, by: str, result: Fields) -> None:
    shown = {field: value for field, value in fields.items() if field not in PRIVATE}
    log.warning("operator at %s: %s %s: %s", by, name, json.dumps(shown), json.dumps(result))


def end(connection: OpenConnection, reason: str) -> None:
    if isinstance(connection, WebSocket):
        connection.close(CloseCode.POLICY_VIOLATION, reason)
    else:
        connection.abort()


def parse_network(fields: Fields) -> Network:
    """Return the network of the field `address`. Limits count an IPv6 /64 as one client, so does an action."""
    text = fields.get("address")
    try:
        if type(text) is not str or re.search(r"[^0-9A-Fa-f:./]", text):
            raise ValueError
        network = canonical_network(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise InvalidAction("address must be an IP address or a network, such as 192.0.2.1 or 2001:db8::/32") from None
    if network.version == 6 and network.prefixlen > 64:
        network = network.supernet(new_prefix=64)
    return network


def parse_text(fields: Fields, name: str) -> str:
    text = fields.get(name)
    if type(text) is not str or not 0 < len(text) <= MAX_TEXT:
        raise InvalidAction(f"{name} must be a text of 1 to {MAX_TEXT} characters")
    return text


def parse_code(fields: Fields) -> bytes:
    try:
        return wire.parse_code(parse_text(fields, "code"))
    except SessionNotFound:
        raise InvalidAction("code must be the code of a session") from None
