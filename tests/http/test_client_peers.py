"""Peers made with the Python client connect over WebRTC, through the real server."""

import asyncio
import json
import logging
import re
import signal
import socket
import time
from unittest import mock

import pytest
from support.rpc import until
from support.service import ORIGIN

import tornado_signal_client as lazy  # what needs aiortc is imported when it is used
from tornado_signal_client import SignalError

pytestmark = pytest.mark.needs("aiortc")

BOUND_S = 50
DEAD_URL = "http://127.0.0.1:1"


@pytest.fixture
def connect(io_loop, service, monkeypatch):
    """A function that makes peers of a server, or of the first one that works."""
    monkeypatch.setattr("tornado_signal_client.link.CLOSE_S", BOUND_S)  # a busy machine makes no progress for a while
    made = []

    def make(url=None, info="me"):
        made.append(lazy.Peers([DEAD_URL, service.url] if url is None else url, ORIGIN, info=info))
        return made[-1]

    async def close():
        await asyncio.gather(*(peers.close() for peers in made))

    yield make
    io_loop.run_sync(close)


async def exchange(connection, message):
    async with connection:
        await connection.send(message)
        return await connection.receive()


async def publish_one(peers, topic="lobby"):
    async with peers.publish(topic) as publication:
        return await exchange(await anext(aiter(publication)), "welcome")


async def test_connections_follow_each_other_with_all_messages_and_closing_withdraws_the_offer(connect, service):
    async def receive_all():
        received = []
        async for connection in publication:
            await connection.send("welcome")
            received.append([connection.side, [[message[0], len(message)] async for message in connection]])
            with pytest.raises(SignalError):
                await connection.send("anybody?")
            if len(received) == 3:
                return received

    publisher, joiner = connect(), connect()
    async with publisher.publish("lobby") as publication, joiner.publish("lobby"):  # it does not join its own offer
        receiving = asyncio.create_task(receive_all())
        while await service.topics() != [("lobby", 2)]:  # noqa: ASYNC110 (a request waits in between)
            await asyncio.sleep(0.01)
        for number in range(3):
            async with await joiner.join("lobby") as connection:
                greeting = connection.side, connection.info, await connection.receive(), len(joiner._own_offers)
                assert greeting == ("answerer", "me", "welcome", 1)
                for part in range(100):
                    await connection.send(bytes([number + part]) * 10_000)
        parts = [[[number + part, 10_000] for part in range(100)] for number in range(3)]
        assert await asyncio.wait_for(receiving, BOUND_S) == [["offerer", each] for each in parts]
    assert await service.topics() == []


async def test_last_message_arrives_though_its_packet_is_lost(connect):
    async with connect(info="leaving").room("lobby") as leaving, connect().room("lobby") as staying:
        joined, _ = [await anext(aiter(room)) for room in (leaving, staying)]
        transport = joined.peer.connection.sctp.transport
        with mock.patch.object(transport, "_send_data", mock.AsyncMock()) as lost:
            await leaving.send("bye")
            await until(lambda: any(b"bye" in sent.args[0] for sent in lost.await_args_list))
        await leaving.leave()
        assert (await anext(aiter(staying))).data == "bye"


async def test_join_skips_its_own_and_malformed_offers(connect):
    peers, good = connect(), connect(info="good")
    async with peers.publish("lobby"):
        for offer in ("no WebRTC", '{"type": "offer", "sdp": "v=1"}'):
            await good.client.offer("lobby", "somebody", offer)
        listing = await good.client.sessions("lobby")
        nonsense = [each for each in listing.sessions if each["info"] == "somebody"]
        assert [await peers._connect(each) for each in nonsense] == [None, None]
        async with good.publish("lobby"), await peers.join("lobby") as connection:
            assert connection.info == "good"
            with pytest.raises(TimeoutError):
                await peers.join("empty", timeout=0.5)


async def test_nothing_is_sent_before_the_answer_is_accepted(connect):
    from aioice import ice

    from tornado_signal_client.link import OPEN_S, Connection

    async def publish():
        code = await peers.client.offer("lobby", "somebody", json.dumps(offer))
        line = "candidate:1 1 udp 2122260223 {} {} typ host".format(*offerer.getsockname())
        await peers.client.candidates(
            code, "offerer", [json.dumps({"candidate": line, "sdpMid": "0", "sdpMLineIndex": 0})]
        )
        return (await peers.client.sessions("lobby")).sessions[0]

    peers = connect()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as offerer:
        offerer.bind((ice.get_host_addresses(use_ipv4=True, use_ipv6=False)[0], 0))
        offerer.setblocking(False)
        async with Connection([], "offerer") as template:
            offer = json.loads(await template.offer())
        offer["sdp"] = re.sub(r"a=(candidate:|end-of-candidates).*\r\n", "", offer["sdp"])
        session = await publish()
        await peers.client.answer(session["code"], "somebody else's")
        began_s = time.monotonic()
        assert await peers._connect(session) is None
        assert time.monotonic() - began_s < OPEN_S  # without waiting for a connection
        with pytest.raises(BlockingIOError):
            offerer.recv(2000)
        joining = asyncio.create_task(peers._connect(await publish()))
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(offerer, 2000), BOUND_S)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        await until(lambda: "__connect" not in str(asyncio.all_tasks()))  # aiortc cancels it a little later


async def test_offer_and_waiting_peer_survive_a_restart(connect, start, caplog):
    caplog.set_level(logging.ERROR, "tornado_signal_client.life")  # a restart can take 5 s on a busy machine
    server = start(data="one")
    publisher, late, joiner = (connect(server.url, info) for info in ("publisher", "late", "joiner"))
    publishing = asyncio.create_task(publish_one(publisher))
    assert (await anext(publisher.client.topic_events("lobby"))).name == "session"
    waiting = asyncio.create_task(late.join("later"))
    await asyncio.sleep(0)
    server.stop(signal.SIGKILL)
    start(port=server.url.rpartition(":")[2], data="two")
    assert await exchange(await joiner.join("lobby", timeout=BOUND_S), "hello") == "welcome"
    assert await publishing == "hello"
    publishing = asyncio.create_task(publish_one(connect(server.url), "later"))
    assert await exchange(await asyncio.wait_for(waiting, BOUND_S), "hello") == "welcome"
    assert await publishing == "hello"
