"""Checks of the Redis servers' settings at the start (docs/scaling.md)."""

import asyncio
import logging
import re
from collections.abc import Iterable

from ...errors import OperatorError
from ...redis.client import RedisClient
from ...redis.connections import ErrorReply
from ...redis.nodes import Acknowledgement, Node, advised, parse_info, text_of
from .permissions import check_permissions

log = logging.getLogger(__name__)

MIN_VERSION = (7, 0)
MIN_WAITAOF = (7, 2)
MAX_SKEW_S = 0.5
_REPLICA = re.compile("ip=([^,]+),port=([0-9]+),state=online")


def check_clocks(nodes: Iterable[Node]) -> None:
    """Warn if the clocks of the nodes differ, because a session lives by the clock of its node."""
    ahead_s = {"{}:{}".format(*node.address): node.clock_ahead_s or 0.0 for node in nodes}
    first, last = min(ahead_s, key=ahead_s.__getitem__), max(ahead_s, key=ahead_s.__getitem__)
    skew_s = ahead_s[last] - ahead_s[first]
    if skew_s > MAX_SKEW_S:
        log.warning(
            "the clock of Redis at %s is %.1f s ahead of that at %s; expiries sent to clients are wrong by up to that, "
            "so synchronize the clocks",
            last,
            skew_s,
            first,
        )


async def _setting(node: Node, name: str) -> str:
    """Return a setting of a node, or an empty text if it is hidden."""
    reply = await node.reads.submit((b"CONFIG", b"GET", name))
    return text_of(reply[1]) if isinstance(reply, list) and len(reply) == 2 else ""


async def check_node(client: RedisClient, node: Node) -> tuple[bool, int]:
    """Check a primary, and its replicas, which can become primaries.

    Return whether it syncs each write before the reply, if the durability needs that, and its memory limit in bytes.
    """
    where, acknowledgement = "{}:{}".format(*node.address), client.topology.acknowledgement
    reply = await node.reads.submit((b"INFO",))
    if isinstance(reply, ErrorReply):
        raise OperatorError(f"Redis at {where} refuses: {reply}; see --redis-user and --redis-password-file")
    if isinstance(reply, Exception):
        raise OperatorError(f"Redis at {where} does not answer: {reply}")
    info = parse_info(reply)
    always = await _check_sound(node, info, acknowledgement)
    await check_permissions(client, node)
    matches = [_REPLICA.match(value) for name, value in info.items() if re.fullmatch("slave[0-9]+", name)]
    online = [(match[1], int(match[2])) for match in matches if match]
    if acknowledgement.waits and len(online) < acknowledgement.replicas:
        raise OperatorError(
            f"Redis at {where} has {len(online)} replicas, but each write needs {acknowledgement.replicas}; "
            "add replicas, or set --redis-replicas or --durability"
        )
    if acknowledgement.waits and len(online) == acknowledgement.replicas:
        log.warning(
            "Redis at %s has no spare replica: while one is unavailable no write is acknowledged; add a replica", where
        )
    replicas = [_check_replica(client, Node(address, client.access, acknowledgement)) for address in online]
    always &= all(await asyncio.gather(*replicas))
    capacity_bytes = int(info.get("maxmemory", "0")) or int(info.get("total_system_memory", "0")) // 2
    return always, capacity_bytes or 2**30


async def _check_replica(client: RedisClient, node: Node) -> bool:
    """Check a replica as `_check_sound` and `check_permissions` do. One that does not respond passes."""
    try:
        reply = await node.reads.submit((b"INFO",))
        if isinstance(reply, Exception):
            log.warning("Redis at %s:%d, a replica, is not checked: %s", *node.address, advised(str(reply)))
            return True
        await check_permissions(client, node)
        return await _check_sound(node, parse_info(reply), client.topology.acknowledgement)
    finally:
        await node.close()


async def _check_sound(node: Node, info: dict[str, str], acknowledgement: Acknowledgement) -> bool:
    """Check the settings of any node. Return whether it syncs each write before the reply, if that is needed."""
    where = "{}:{}".format(*node.address)
    version = info.get("valkey_version") or info["redis_version"]
    number = tuple(int(part) for part in version.split(".")[:2])
    if number < MIN_VERSION:
        raise OperatorError(f"Redis at {where} is version {version}; it must be 7.0 or newer")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise OperatorError(
            f"Redis at {where} would drop sessions when its memory is full; set maxmemory-policy to noeviction, "
            f"which is {policy}"
        )
    always = False
    if acknowledgement.durability == "fsync":
        always = info.get("aof_enabled") == "1" and await _setting(node, "appendfsync") == "always"
        if info.get("aof_enabled") != "1":
            raise OperatorError(
                f"Redis at {where} writes nothing to disk; set appendonly to yes for --durability fsync"
            )
        if not always and number < MIN_WAITAOF:
            raise OperatorError(
                f"Redis at {where} is version {version}, which cannot report what is on disk; set appendfsync to "
                "always for --durability fsync, or use 7.2 or newer"
            )
    elif info.get("aof_enabled") != "1":
        log.warning(
            "Redis at %s has no append-only file: if it restarts before a replica takes over, its sessions are lost; "
            "set appendonly to yes",
            where,
        )
    if info.get("cluster_enabled") == "1" and await _setting(node, "cluster-require-full-coverage") == "yes":
        log.warning(
            "Redis at %s stops when any slot has no primary; set cluster-require-full-coverage to no, so that "
            "a failover only affects one shard",
            where,
        )
    return always
