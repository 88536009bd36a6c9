"""Nodes that have no slots any more are closed."""

import asyncio

from tornado_signal.redis.connections import Credentials
from tornado_signal.redis.nodes import Acknowledgement, NodeLost
from tornado_signal.redis.topology import Topology


async def test_overlapping_searches_close_each_unused_node():
    async def stay_silent(reader, writer):
        await reader.read()
        writer.close()

    access = Credentials(timeout_s=0.5)
    topology = Topology([], "", access, access, Acknowledgement("os"))
    servers = [await asyncio.start_server(stay_silent, "127.0.0.1", 0) for _ in range(2)]
    nodes = [topology.node_at(server.sockets[0].getsockname()) for server in servers]
    replies = [node.reads.submit((b"PING",)) for node in nodes]
    first = topology.refresh_soon()
    while topology._refreshing is not None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    second = topology.refresh_soon()
    assert second is not first
    await asyncio.gather(first, second)
    assert topology._nodes == {}
    assert [type(await reply) for reply in replies] == [NodeLost, NodeLost]
    for server in servers:
        server.close()
