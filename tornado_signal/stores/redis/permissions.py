"""The commands that the server needs, tried as its user. A command that the user may not run is refused with NOPERM.

`ACL DRYRUN` needs a permission that the user should not have. So each command runs on a key that nothing else uses.
"""

import asyncio
import os
from typing import Final

from ...errors import OperatorError
from ...redis.client import RedisClient
from ...redis.connections import Command, ErrorReply
from ...redis.nodes import Node, Pipeline, text_of

KEPT_MS: Final = 1000  # the lifetime of the key, if the last command fails

_WITH_KEY: Final = f"""
HSET f v, PEXPIRE {KEPT_MS}, HSETNX f v, HGET f, HMGET f, HSTRLEN f, HGETALL, HINCRBY n 1, HLEN, HRANDFIELD, HVALS,
HDEL f, EXISTS, PTTL, SET v PX {KEPT_MS}, GET, RPUSH v, LINDEX 0, LPOP, ZADD 0 m, ZLEXCOUNT - +, ZRANGE 0 -1,
ZRANGEBYSCORE 0 0, ZREM m, ZREMRANGEBYSCORE 0 0, ZSCORE m, PEXPIREAT 1, DEL, SPUBLISH m, SSUBSCRIBE, SUNSUBSCRIBE
"""
# The commands with a key in their order, each with its arguments. Errors about the type of the key do not count.
WITH_KEY: Final = {name: arguments for name, *arguments in map(str.split, _WITH_KEY.split(","))}
WITHOUT_KEY: Final[tuple[Command, ...]] = (
    (b"TIME",),
    (b"INFO", b"replication"),
    (b"PING",),
    (b"SCRIPT", b"LOAD", b"return 0"),
    (b"EVAL", b"return 0", 0),
    (b"EVALSHA", b"0" * 40, 0),
)


async def check_permissions(client: RedisClient, node: Node) -> None:
    """Check that the user may run each command that the scripts and the server need."""
    key = client.key(f"permissions:{os.urandom(8).hex()}")
    commands = [*WITHOUT_KEY]
    commands += [(name.encode(), key, *arguments) for name, arguments in WITH_KEY.items()]
    if (wait := client.topology.acknowledgement.command(0, 1)) is not None:
        commands.insert(0, wait)
    pipeline = Pipeline(node.address, client.access)  # its own, because a subscription changes the connection
    try:
        replies = await asyncio.gather(*map(pipeline.submit, commands))
    finally:
        pipeline.disconnect()
    refused = [
        (text_of(name), reply)
        for (name, *_), reply in zip(commands, replies, strict=True)
        if isinstance(name, bytes) and isinstance(reply, ErrorReply)
    ]
    # A node without WAITAOF can sync each write before it replies.
    lacking = (name for name, reply in refused if "unknown command" in str(reply).lower() and name != "WAITAOF")
    if unknown := ", ".join(lacking):
        raise OperatorError(
            "Redis at {}:{} lacks {}; remove rename-command from its settings, or use another Redis".format(
                *node.address, unknown
            )
        )
    if errors := {name: reply for name, reply in refused if reply.kind == "NOPERM"}:
        raise OperatorError(
            "Redis at {}:{} refuses: {}".format(*node.address, next(iter(errors.values())))
            + f"; let --redis-user run {', '.join(errors)} with the keys and channels of --redis-prefix (ACL SETUSER)"
        )
