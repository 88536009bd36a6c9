"""Two browsers connect by way of two servers whose sessions are on a Redis cluster, while that loses a primary."""

import contextlib

import pytest
from support.browsers import listed, until
from support.members import Program, enter, forking
from support.redis_servers import RedisCluster

pytest_plugins = ["support.redis_traffic"]
pytestmark = pytest.mark.slow

REPLICAS = 2  # one takes over, the other has what is written then


@pytest.fixture
def cluster():
    cluster = RedisCluster("valkey", 3, REPLICAS, "--cluster-require-full-coverage", "no", "--appendonly", "yes")
    yield cluster
    cluster.kill()


@pytest.fixture
def servers(cluster, start):
    found = [start(redis=cluster) for _ in range(2)]
    yield found
    assert [server.stop() for server in found] == [0, 0]


def test_two_browsers_connect_while_a_primary_fails_over(cluster, servers, connect_page, site):
    one, other = servers
    publisher, joiner = connect_page(one), connect_page(other)
    publisher.evaluate("listen('lobby', {info: 'Ada'})")
    code = until(lambda: listed(other, site.origin, "lobby"))[0]["code"]
    (primary,) = (each for each in cluster.primaries if each.ask("KEYS", f"*:{code.replace('-', '')}"))
    primary.kill()
    assert joiner.evaluate("call('lobby', {info: 'Bob'})") == ["Ada", "Ada: hello"]
    assert publisher.evaluate("connections.length") == 1
    assert primary.process.poll() is not None
    replicas = [each for each in cluster.replicas if each.ask("ROLE")[0] in (b"master", "master")]
    assert len(replicas) == 1


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("client", ["page", "program"])
def test_member_of_a_room_publishes_again_when_redis_was_emptied(
    client, redis_server, site, connect_page, tmp_path, start
):
    with contextlib.ExitStack() as stack:
        redis = redis_server()
        server = start("--durability", "os", redis=redis)
        until(lambda: redis.ask("KEYS", "*:probe:*"))
        if client == "page":
            member = connect_page(server)
            enter(member, "Ada")
        else:
            member = Program(stack.enter_context(forking()), [server.url], site.origin, "Ada", tmp_path)
            stack.callback(member.end)
            member.evaluate("enter()")
        before = until(lambda: listed(server, site.origin, "room~lobby"))
        redis.ask("FLUSHALL")
        after = until(lambda: listed(server, site.origin, "room~lobby"))
        assert [each["info"] for each in after] == ["Ada"]
        assert after[0]["code"] != before[0]["code"]
    assert server.stop() == 0
