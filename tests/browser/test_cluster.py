"""Two browsers connect by way of two servers whose sessions are on a Redis cluster, while that loses a primary."""

import pytest
from support.browsers import listed, until
from support.members import Program, enter, forking
from support.redis_servers import RedisCluster, fixture
from support.waiting import end_all

pytestmark = pytest.mark.slow

REPLICAS = 2  # one takes over, the other has what is written then


cluster = fixture(RedisCluster, "valkey", 3, REPLICAS, "--cluster-require-full-coverage", "no", "--appendonly", "yes")


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
def test_members_of_rooms_publish_again_when_redis_was_emptied(redis_server, site, connect_page, tmp_path, start):
    redis = redis_server()
    server = start("--durability", "os", redis=redis)
    until(lambda: redis.ask("KEYS", "*:probe:*"))

    def beacons():
        found = [until(lambda name=name: listed(server, site.origin, f"room~{name}")) for name in ("pages", "programs")]
        return [(each["info"], each["code"]) for (each,) in found]

    with forking() as template, end_all(Program, Program.end) as run:
        enter(connect_page(server), "Ada", "pages")
        enter(run(template, [server.url], site.origin, "Bob", tmp_path), "Bob", "programs")
        before = beacons()
        redis.ask("FLUSHALL")
        after = beacons()
        assert [info for info, _ in after] == ["Ada", "Bob"]
        assert not {*before} & {*after}
    assert server.stop() == 0
