"""Leases of groups are renewed although a node does not respond."""

from support.redis_servers import RedisCluster, fixture
from support.stores import opened_on, unlimited

from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import Channel, Lease
from tornado_signal.relay import redis as relay_module
from tornado_signal.relay.opening import open_relay

GROUPS = [Channel("scope", f"group {number}") for number in range(40)]


cluster = fixture(RedisCluster, "redis", 3, 0, "--cluster-require-full-coverage", "no")


async def test_silent_node_does_not_delay_the_renewal_at_others(cluster, until, monkeypatch):
    monkeypatch.setattr(relay_module, "RENEW_S", 0.2)
    monkeypatch.setattr(relay_module, "RENEWED_AT_ONCE", 10)
    # Calls of the silent node do not end.
    async with opened_on(*cluster.servers, redis_timeout_ms=3_600_000) as store:
        relay = open_relay(store.shared_redis, unlimited)
        for group in GROUPS:
            await relay.join(group, Lease("member", "owner"), 10)
        silent = cluster.primaries[0]
        nodes = {key: cluster.owner(key_slot(key)) for key in map(relay._key, GROUPS)}
        by_key = {key: node for key, node in nodes.items() if node is not silent}
        assert 10 < len(by_key) < 40

        def renewed_until_ms():
            return [node.ask("ZSCORE", key + b":p", relay._process) for key, node in by_key.items()]

        with silent.frozen():
            for _ in range(3):
                before = max(renewed_until_ms())
                await until(lambda before=before: min(renewed_until_ms()) > before)
        await relay.close()
