"""Servers of earlier versions and of this one on the same Redis, as during an upgrade."""

import asyncio
import sys

import pytest
from support.checkout import unpack
from support.command import ORIGIN
from support.redis_servers import RedisServer
from support.redis_traffic import in_background
from support.rpc import until
from support.y_webrtc import RawClient, published

# The last release, the last commit before servers signed their actions, and one whose servers use the same channel for
# signed ones. Run on that commit, the last case compares equal servers, and passes.
RELEASE = {"release": "8a2b8163"}
EARLIER = {"unsigned": "892501be~1", "signed": "0d2df6bd"}
MESSAGES = 200


@pytest.fixture
def servers(start, tmp_path, request):
    """A server of an earlier version, and one of this version."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    unpack(earlier, (RELEASE | EARLIER)[request.param])
    with RedisServer("valkey") as redis:
        flags = ("--store", "redis", "--redis-nodes", redis.address, "--durability", "os", "--admin-port", "0")
        old = {"prefix": (sys.executable, "-m"), "command": "tornado_signal", "cwd": earlier}
        yield start(*flags, **old), start(*flags)


@pytest.mark.parametrize("servers", RELEASE | EARLIER, indirect=True)
def test_servers_of_two_versions_serve_the_same_sessions(servers):
    for one, other in (servers, servers[::-1]):
        code = one.offer("lobby")
        assert other.codes("lobby") == [code]
        assert other.call("/answer", {"code": code, "side": "answerer", "candidate": "c"})[0] == 200
        waiting = in_background(
            lambda one=one, code=code: one.call("/poll", {"code": code, "side": "offerer", "wait": 30})
        )
        assert other.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
        assert waiting()[0] == 200
        assert one.call("/poll", {"code": code, "side": "offerer"})[1] == {"answer": "a", "answerCandidates": ["c"]}
        assert other.call("/withdraw", {"code": code, "side": "offerer"})[0] == 200
        assert one.call("/poll", {"code": code, "side": "offerer"})[0] == 404


def status(server):
    return server.call("/status", base=server.admin_url, origin=None)[1]


@pytest.mark.parametrize("servers", EARLIER, indirect=True)
async def test_actions_of_one_version_disturb_no_client_of_another(servers):
    old, new = servers
    names = [server.url.rpartition(":")[2] for server in servers]

    async def sees_both():
        state = await asyncio.to_thread(status, new)
        return all(name in str((state["processes"], state["missing"])) for name in names)

    for sending, receiving in ((new, old), (old, new)):
        urls = [server.url.replace("http", "ws", 1) + "/y-webrtc" for server in (sending, receiving)]
        async with RawClient(urls[0], ORIGIN) as sender, RawClient(urls[1], ORIGIN) as receiver:
            await receiver.subscribe("room")
            for number in range(MESSAGES):
                if not number % 50:
                    await until(sees_both)
                await sender.publish("room", number)
            assert [await receiver.receive() for _ in range(MESSAGES)] == [
                published("room", number, 1) for number in range(MESSAGES)
            ]
    for server in servers:
        assert server.stop() == 0
        assert [line for line in server.log if "Traceback" in line or "is refused" in line] == []
