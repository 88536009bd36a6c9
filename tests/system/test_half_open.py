"""Clients that vanish: the network is cut, and the server still ends their waits.

The tests run this file as a program in a network that it can cut. With the default constants it
takes a minute: `unshare -n python -m system.test_half_open websockets`.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.networks import dropping
from support.paths import TESTS
from support.rpc import RpcClient, until
from support.service import ORIGIN, Service, request

from tornado_signal.http import streams
from tornado_signal.transport import listener, websocket

pytestmark = pytest.mark.needs("namespace", "ip")

EACH = 20
BOUND_S = 30
FAR = "127.0.0.2"
SECRET = "a secret of the offerer"
GRACE_S = 0.3


def test_waits_and_streams_of_a_silent_network_are_closed():
    assert alone("requests") == f"all of {4 * EACH} let go, one answered since"


@pytest.mark.needs("nft")
def test_held_offers_of_a_lost_websocket_are_withdrawn():
    assert alone("websockets", "0.4", "1.6") == "those that were held there are gone"


def alone(*arguments):
    """Run this file as a program in its own network. Return the last line of its output."""
    unshare = ["unshare", "-n" if os.geteuid() == 0 else "-rn", sys.executable, "-m", "system.test_half_open"]
    done = subprocess.run([*unshare, *arguments], cwd=TESTS, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout.splitlines()[-1]


async def silenced(path):
    """Serve, let many wait, silence the network, see them go, and let it be heard again."""
    listener.SILENT_S = 3
    streams.HEARTBEAT_S = 0.5
    service = Service(path)
    await service.start()
    code = await service.offer()
    paths = (f"/events?code={code}&side=offerer", "/lobby/events", "/empty/sessions?wait=60")
    poll = {"code": code, "side": "offerer", "wait": 60}
    clients = []
    for data in [*(request("GET", path) for path in paths), request("POST", "/poll", poll)] * EACH:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(data)
        clients.append((reader, writer))
    watches = service.store.watches
    await until(lambda: len(watches) == 4 * EACH)
    network("down")
    # The client of a waiting request fails to acknowledge a keep-alive probe, that of a stream a heartbeat.
    await until(lambda: len(watches) == 0)
    network("up")
    await service.offer()
    print(f"all of {4 * EACH} let go, one answered since")
    for _, writer in clients:
        writer.close()
    await service.stop()


async def cut_off(path, ping_s=websocket.PING_S, silent_s=websocket.SILENT_S):
    """Have a client hold offers, lose all its packets, and see what becomes of them."""
    websocket.PING_S, websocket.SILENT_S = float(ping_s), float(silent_s)
    service = Service(path, hold_grace_ms=int(GRACE_S * 1000))
    await service.start()
    url = f"ws://127.0.0.1:{service.port}/ws"
    far = RpcClient(url, ORIGIN, local_addr=(FAR, 0))
    async with RpcClient(url, ORIGIN) as near, RpcClient(url, ORIGIN) as other:
        await near.call("subscribe", topic="lobby")
        async with far:
            kept, taken, *lost = [await held(client) for client in (near, *[far] * (1 + EACH))]
            codes = [(await near.event())[1]["code"] for _ in range(2 + EACH)]
            assert codes == [kept, taken, *lost]
            with dropping(f"ip saddr {FAR}", f"ip daddr {FAR}"):
                began_s = time.monotonic()
                await other.call("hold", code=taken, secret=SECRET)
                gone = [await near.event(BOUND_S + float(silent_s)) for _ in lost]
                took_s = time.monotonic() - began_s
                far.socket.transport.abort()
        print(f"gone after {took_s:.1f} s")
        assert took_s > float(silent_s) - float(ping_s)  # it has not been given up for something else
        assert {(kind, data["reason"]) for kind, data, _ in gone} == {("gone", "withdrawn")}
        assert {data["code"] for _, data, _ in gone} == {*lost}
        await service.offer()
        assert (await near.event())[0] == "session"  # and so nothing else was before it
        for code in (kept, taken):
            await other.call("hold", code=code, secret=SECRET)
    print("those that were held there are gone")
    await service.stop()


async def held(client):
    return (await client.call("offer", topic="lobby", info="i", offer="o", secret=SECRET, hold=True))["code"]


def network(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


if __name__ == "__main__":
    network("up")
    with tempfile.TemporaryDirectory() as name:
        asyncio.run({"requests": silenced, "websockets": cut_off}[sys.argv[1]](Path(name), *sys.argv[2:]))
