"""WebSockets of the installed command across stops, kills and restarts, with TLS, and their metrics."""

import asyncio
import contextlib
import json
import signal
import time

from support.certificates import client_context, make_pair
from support.command import BOUND_S, ORIGIN
from support.rpc import open_socket
from support.scraping import scrape
from websockets.sync.client import unix_connect

SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


async def test_restart_closes_websockets_with_1012_and_keeps_offers_and_cursors(start):
    server = start("--admin-port", 0)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_socket(server)) for _ in range(30)]
        code = (await clients[0].call("offer", **OFFER, secret=SECRET, hold=True))["code"]
        await clients[1].call("subscribe", topic="lobby")
        _, _, cursor = await clients[1].event()
        waiting = clients[2].send("poll", code=code, side="offerer", secret=SECRET, wait=60)
        await clients[2].call("health")  # which came after that
        found = scrape(server.admin_url)
        assert (found.one("websockets"), found.one("held_offers")) == (30, 1)
        assert found.one("requests", "/:topic/offer", "WS", "200") == 1
        server.process.send_signal(signal.SIGTERM)
        assert (await waiting)["result"]["answerCandidates"] == []

        async def end(client):
            return await client.closed(), time.monotonic()

        codes, times_s = zip(*await asyncio.gather(*map(end, clients)), strict=True)
        assert set(codes) == {1012}
        assert max(times_s) - min(times_s) > 1.2  # of two seconds, at random
    assert server.wait() == 0
    server = start("--hold-grace-ms", 100)
    async with open_socket(server) as back, open_socket(server) as watching:
        await back.call("hold", code=code, secret=SECRET)
        await watching.call("subscribe", topic="lobby", since=cursor)
        other = (await back.call("offer", **OFFER))["code"]
        known = []  # a reader from before a restart gets the listing again
        while (event := await watching.event())[1].get("code") != other:
            known.append((event[0], event[1].get("code")))
        assert known[:2] == [("reset", None), ("session", code)]
        await back.socket.close()
        assert (await watching.event())[:2] == ("gone", {"code": code, "reason": "withdrawn"})
    assert server.stop() == 0


async def test_websockets_over_tls(start, tmp_path):
    pair = make_pair(tmp_path)
    server = start(*pair.flags)
    async with open_socket(server, ssl=client_context(pair)) as client:
        assert (await client.call("health"))["status"] == "ok"
        server.process.send_signal(signal.SIGTERM)
        assert await client.closed() == 1012
    assert server.wait() == 0


def test_websockets_over_a_unix_socket(start, tmp_path):
    path = tmp_path / "socket"
    server = start("--address", f"unix:{path}", port=None)
    with unix_connect(str(path), uri="ws://localhost/ws", origin=ORIGIN) as client:
        client.send('{"jsonrpc": "2.0", "id": 1, "method": "version"}')
        assert "result" in json.loads(client.recv(BOUND_S))
    assert server.stop() == 0
