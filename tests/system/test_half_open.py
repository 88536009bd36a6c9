"""A network falls silent: the waits and streams of its clients end."""

import asyncio

import pytest
from support.networks import dropping, own_network
from support.rpc import until
from support.service import Service, request

from tornado_signal.http import streams
from tornado_signal.transport import listener

EACH = 5


@pytest.mark.needs("root", "ip", "nft")
def test_waits_and_streams_of_a_silent_network_end(io_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "SILENT_S", 3)
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.5)
    with own_network():
        io_loop.run_sync(lambda: silenced(tmp_path))


async def silenced(path):
    service = Service(path)
    await service.start()
    code = await service.offer()
    paths = (f"/events?code={code}&side=offerer", "/lobby/events", "/empty/sessions?wait=60")
    poll = {"code": code, "side": "offerer", "wait": 60}
    writers = []
    for data in [*(request("GET", path) for path in paths), request("POST", "/poll", poll)] * EACH:
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(data)
        writers.append(writer)
    watches = service.store.watches
    await until(lambda: len(watches) == len(writers))
    # The client of a waiting request does not acknowledge a keep-alive probe, that of a stream a heartbeat.
    with dropping("ip daddr 127.0.0.1"):
        await until(lambda: len(watches) == 0)
    for writer in writers:
        writer.transport.abort()
    await service.stop()
