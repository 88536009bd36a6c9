"""What requests and connections leave is freed at once: to look for it would stop the server."""

import asyncio
import gc

import pytest
from support.rpc import RpcClient
from support.service import NO_SUCH_CODE, ORIGIN, head, with_origin


@pytest.fixture
def garbage():
    """A function that returns the package's objects that only the collector finds."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def find():
        gc.collect()
        found = [type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("tornado_signal")]
        gc.garbage.clear()
        return sorted(found)

    yield find
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def settled(service):
    """Wait for the end of all requests, and of the connections' own."""
    async with asyncio.timeout(30):
        while service.site.running or service.site.limits.waiting or service.site.limits.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def test_requests(service, garbage):
    """Answered, refused, waiting, and left while they wait."""
    code = await service.offer()
    for target in ("/health", "/topics", "/lobby/sessions", "/nowhere"):
        await service.call("GET", target)
    await service.post("/poll", code=code, side="offerer", wait=0.1)
    assert (await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})).status == 404
    for target in ("/lobby/events", f"/events?code={code}&side=offerer"):
        async with service.connect() as connection:
            await connection.send(head("GET", target, with_origin(ORIGIN)))
            async with asyncio.timeout(30):
                while not service.site.limits.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    await settled(service)
    assert garbage() == []


async def test_websockets(service, garbage):
    """Closed and reset, with subscriptions, held offers and waits."""
    url = f"ws://127.0.0.1:{service.port}/ws"
    for aborts in (False, True):
        async with RpcClient(url, ORIGIN) as client:
            code = (await client.call("offer", topic="lobby", info="x", offer="x", hold=True))["code"]
            await client.call("subscribe", topic="lobby")
            await client.call("subscribe", code=code, side="offerer")
            await client.call("poll", code=code, side="offerer", wait=0.1)
            assert "error" in await client.ask("poll", code=NO_SUCH_CODE, side="offerer")
            await client.call("withdraw", code=code, side="offerer")
            if aborts:
                client.socket.transport.abort()
    await settled(service)
    assert garbage() == []
