"""Several servers on one Redis behind a real proxy: they drain, die and are replaced while peers meet through them."""

import asyncio
import collections
import contextlib
import sys

import pytest
from support.certificates import client_context, make_pair
from support.checkout import previous_version
from support.command import Server
from support.pairs import Pairs
from support.proxies import PROXIES
from support.redis_servers import RedisServer
from support.scraping import scrape

pytestmark = pytest.mark.servers

DRAIN_DELAY_MS = "3000"


def aside(call, *arguments):
    """Call what blocks in a thread, for peers go on meeting."""
    return asyncio.get_running_loop().run_in_executor(None, call, *arguments)


@pytest.fixture(scope="module")
def redis():
    """A Redis server."""
    server = RedisServer("redis")
    yield server
    server.kill()


@pytest.fixture
def serve(redis):
    """A function that starts a server."""
    started = []

    def start_one(*arguments, port=0, **how):
        flags = ["--store", "redis", "--redis-nodes", redis.address, "--durability", "os", "--admin-port", "0"]
        started.append(Server(*flags, "--trusted-proxies", "127.0.0.1", *arguments, port=port, **how))
        return started[-1]

    yield start_one
    for server in started:
        server.end()


@pytest.fixture
def behind(tmp_path):
    """A function that has peers meet through a proxy in front of two servers; both, while they do."""

    @contextlib.asynccontextmanager
    async def meet(kind, ports):
        (tmp_path / "proxy").mkdir()
        pair = make_pair(tmp_path)
        proxy = PROXIES[kind](tmp_path / "proxy", pair, ports)
        pairs = Pairs(proxy.port, client_context(pair))
        try:
            await pairs.more()
            yield proxy, pairs
            await pairs.end()
        finally:
            pairs.cancel()
            proxy.stop()
        assert max(collections.Counter(pairs.heard).values()) == 1

    return meet


def port_of(server):
    return int(server.url.rpartition(":")[2])


def serves(server):
    """Whether the proxy has found it."""
    return scrape(server.admin_url).one("sessions_created") > 0


async def until(reached, *arguments):
    """Wait for a condition that takes a while to find out."""
    async with asyncio.timeout(30):
        while not await aside(reached, *arguments):  # noqa: ASYNC110 (other processes tell nobody here)
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROXIES)
async def test_one_drains_and_the_other_dies(kind, serve, behind):
    """Nobody is refused by a server that drains; when one is killed, nobody but those whose requests it had."""
    one, other = (serve("--drain-delay-ms", DRAIN_DELAY_MS) for _ in range(2))
    async with behind(kind, (port_of(one), port_of(other))) as (proxy, pairs):
        assert serves(one)
        assert serves(other)
        assert await aside(one.stop) == 0
        await pairs.more()
        again = await aside(lambda: serve(port=port_of(one)))
        await until(serves, again)
        assert pairs.failures == []
        other.process.kill()
        if kind == "caddy":
            # Before 2.11.2 it does not try a POST again that could not be sent: some fail until it has noticed.
            noticed = f'"HTTP request failed","host":"127.0.0.1:{port_of(other)}"'
            await until(lambda: noticed in proxy.log())
            await pairs.more(1)
            failed = len(pairs.failures)
        else:
            failed = pairs.peers
        await pairs.more()
        assert len(pairs.failures) <= failed
    assert pairs.streams > 1


def meet_by_way_of(one, other, topic):
    """Two peers meet, one at each server."""
    code = one.offer(topic)
    assert other.codes(topic) == [code]
    assert other.call("/answer", {"code": code, "side": "answerer", "candidate": "c"})[0] == 200
    found = one.call("/poll", {"code": code, "side": "offerer", "wait": 5})[1]
    assert (found["answer"], found["answerCandidates"]) == (None, ["c"])
    assert other.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
    assert one.call("/poll", {"code": code, "side": "offerer", "wait": 5, "since": found["cursor"]})[1]["answer"] == "a"
    assert other.codes(topic) == []


@pytest.mark.slow
async def test_an_upgrade(serve, behind, tmp_path):
    """Servers of the previous version are replaced one after the other, and nobody is refused (contract E7)."""
    (tmp_path / "previous").mkdir()
    previous_version(tmp_path / "previous")
    before = {"prefix": (sys.executable, "-m"), "command": "tornado_signal", "cwd": tmp_path / "previous"}
    servers = [serve(**before) for _ in range(2)]
    ports = tuple(map(port_of, servers))
    async with behind("haproxy", ports) as (_, pairs):
        for at, port in enumerate(ports):
            assert await aside(servers[at].stop) == 0
            servers[at] = await aside(lambda port=port: serve(port=port))
            await until(serves, servers[at])
            if not at:
                for one, other in (servers, servers[::-1]):
                    await aside(meet_by_way_of, one, other, f"from{port_of(one)}")
            await pairs.more()
        assert pairs.failures == []
