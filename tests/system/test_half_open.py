"""Clients that are gone without a word: the network falls silent, and whoever waits is let go all the same.

The test runs this file again as a program, in a network of its own that it can silence.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.paths import TESTS
from support.service import ORIGIN, Service, head, with_origin

from tornado_signal.http import streams
from tornado_signal.transport import listener

EACH = 20
BOUND_S = 30


def test_a_silent_network():
    """Polls, listings and streams whose clients vanish without a packet are found, and no watch of theirs is left."""
    unshare = ["unshare", "-n" if os.geteuid() == 0 else "-rn", sys.executable, "-m", "system.test_half_open"]
    done = subprocess.run(unshare, cwd=TESTS, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.splitlines()[-1] == f"all of {4 * EACH} let go, one answered since"


async def silenced(path):
    """Serve, let many wait, silence the network, see them go, and let it be heard again."""
    listener.SILENT_S = 3
    streams.HEARTBEAT_S = 0.5
    service = Service(path)
    await service.start()
    code = (await offer(service))["code"]
    poll = b'{"code": "%b", "side": "offerer", "wait": 60}' % code.encode()
    requests = [
        head("GET", f"/events?code={code}&side=offerer", with_origin(ORIGIN)),
        head("GET", "/lobby/events", with_origin(ORIGIN)),
        head("GET", "/empty/sessions?wait=60", with_origin(ORIGIN)),
        head("POST", "/poll", with_origin(ORIGIN, [("Content-Length", str(len(poll)))])) + poll,
    ]
    clients = []
    for request in requests * EACH:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(request)
        clients.append((reader, writer))
    watches = service.store.watches
    await until(lambda: len(watches) == 4 * EACH)
    network("down")
    # What a waiting request's client does not acknowledge is a keep-alive probe, a stream's a heartbeat.
    await until(lambda: len(watches) == 0)
    network("up")
    await offer(service)
    print(f"all of {4 * EACH} let go, one answered since")
    for _, writer in clients:
        writer.close()
    await service.stop()


async def offer(service):
    return (await service.call("POST", "/lobby/offer", {"info": "i", "offer": "o"})).json


async def until(true):
    deadline_s = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def network(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


if __name__ == "__main__":
    network("up")
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(silenced(Path(name)))
