"""Peers made with the Python client connect over WebRTC: in a network of their own, through the real server."""

import json
import signal
import subprocess
import sys

import pytest
from support.networks import BOUND_S

pytestmark = pytest.mark.needs("aiortc")

URLS = "http://127.0.0.1:1,{base}"  # the first one is never there

PROGRAM = """
import asyncio, json, logging, sys
from tornado_signal_client import Peers, SignalClient, SignalError

# A restart can take more than 5 s on a busy machine.
logging.getLogger("tornado_signal_client.life").setLevel("ERROR")
ORIGIN = "https://app.example"

async def say(connection, what):
    await connection.send(what)
    return await connection.receive()

async def main(url):
    async with asyncio.timeout(50), Peers(url.split(","), ORIGIN, info="me") as peers:
BODY

print(json.dumps(asyncio.run(main(sys.argv[1]))))
"""


PUBLISH_ONE = """
async for connection in peers.publish("lobby"):
    return await say(connection, "welcome")
"""


@pytest.fixture
def program(spawn, base):
    def begin(body, url=URLS):
        indented = "\n".join(" " * 8 + line for line in body.strip().splitlines())
        command = [sys.executable, "-W", "error", "-c", PROGRAM.replace("BODY", indented), url.format(base=base)]
        return spawn(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return begin


def said(process):
    output, errors = process.communicate(timeout=BOUND_S)
    assert (process.returncode, errors) == (0, "")
    return json.loads(output)


def test_connections_follow_each_other_with_all_messages_and_closing_withdraws_the_offer(program):
    publisher = program("""
found = []
async for connection in peers.publish("lobby"):
    await connection.send("welcome")
    found.append([connection.side, [[message[0], len(message)] async for message in connection]])
    try:
        await connection.send("anybody?")
    except SignalError:
        if len(found) == 3:
            return found
""")
    joiner = program("""
found = []
async with peers.publish("lobby"):  # with the same info, and not joined by itself
    while len((await peers.client.sessions("lobby")).sessions) < 2:
        await asyncio.sleep(0.01)
    for number in range(3):
        async with await peers.join("lobby") as connection:
            found.append([connection.side, connection.info, await connection.receive(), len(peers._own_offers)])
            for part in range(100):
                await connection.send(bytes([number + part]) * 10_000)
return found
""")
    assert said(joiner) == [["answerer", "me", "welcome", 1]] * 3
    assert said(publisher) == [["offerer", [[number + part, 10_000] for part in range(100)]] for number in range(3)]
    assert said(program("return await peers.client.topics()"))["topics"] == []


def test_join_skips_its_own_and_malformed_offers(program):
    found = program("""
async with peers.publish("lobby"), Peers(url.split(","), ORIGIN, info="good") as good:
    for offer in ("no WebRTC", '{"type": "offer", "sdp": "v=1"}'):
        await good.client.offer("lobby", "somebody", offer)
    listing = await good.client.sessions("lobby")
    nonsense = [await peers._connect(each) for each in listing.sessions if each["info"] == "somebody"]
    async with good.publish("lobby"), await peers.join("lobby") as first:
        try:
            await peers.join("empty", timeout=0.5)
        except TimeoutError:
            return [nonsense, first.info]
""")
    assert said(found) == [[None, None], "good"]


def test_nothing_is_sent_before_the_answer_is_accepted(program):
    found = program("""
import re, socket, time
from tornado_signal_client.link import Connection
from tornado_signal_client.link import OPEN_S

offerer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
offerer.bind(("192.0.2.1", 0))
async with Connection([], "offerer") as template, SignalClient(url.split(","), ORIGIN) as client:
    offer = json.loads(await template.offer())
    offer["sdp"] = re.sub(r"a=(candidate:|end-of-candidates).*\\r\\n", "", offer["sdp"])

    async def publish():
        code = await client.offer("lobby", "somebody", json.dumps(offer))
        line = f"candidate:1 1 udp 2122260223 192.0.2.1 {offerer.getsockname()[1]} typ host"
        await client.candidates(code, "offerer", [json.dumps({"candidate": line, "sdpMid": "0", "sdpMLineIndex": 0})])
        return (await client.sessions("lobby")).sessions[0]

    session = await publish()
    await client.answer(session["code"], "somebody else's")
    began_s = time.monotonic()
    taken = await peers._connect(session)
    took_s = time.monotonic() - began_s
    offerer.setblocking(False)
    try:
        heard = bool(offerer.recv(2000))
    except BlockingIOError:
        heard = False
    joining = asyncio.create_task(peers._connect(await publish()))
    wins = bool(await asyncio.get_running_loop().sock_recv(offerer, 2000))
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    offerer.close()
return [taken, took_s < OPEN_S, heard, wins]  # without waiting for a connection
""")
    assert said(found) == [None, True, False, True]


def test_offer_and_waiting_peer_survive_a_restart(program, start, network):
    server = start(prefix=network, data="one")
    publisher = program(PUBLISH_ONE, server.url)
    first = program("async for event in peers.client.topic_events('lobby'):\n    return event.name", server.url)
    assert said(first) == "session"
    late = program("peers.info = 'late'\nreturn await say(await peers.join('later'), 'hello')", server.url)
    server.stop(signal.SIGKILL)
    start(prefix=network, port=server.url.rpartition(":")[2], data="two")
    joiner = program("peers.info = 'joiner'\nreturn await say(await peers.join('lobby'), 'hello')", server.url)
    assert said(joiner) == "welcome"
    assert said(publisher) == "hello"
    again = program(PUBLISH_ONE.replace("lobby", "later"), server.url)
    assert said(late) == "welcome"
    assert said(again) == "hello"


@pytest.mark.parametrize("name", ["Peers", "Connection", "Room", "IncomingFile"])
def test_missing_aiortc_names_the_extra(name):
    program = f"import sys; sys.modules['aiortc'] = None; from tornado_signal_client import {name}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'clients/python[peer]'" in done.stderr
