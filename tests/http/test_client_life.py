"""The life of a Python client: its event loop and its end, servers without a response, and connections that die."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import re
import time
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from support.backend import Backend, responding
from support.certificates import make_pair
from support.forwarding import Proxy
from support.members import SECRETS
from support.rpc import until
from support.service import ORIGIN

import tornado_signal_client as lazy  # what needs aiortc is imported when it is used
from tornado_signal_client import SignalClient, http, life, rpc, servers
from tornado_signal_client.life import awake_s

BOUND_S = 20
DEAD_URL = "http://127.0.0.1:1"
# Seconds until a client notices that its connections are dead.
WEBSOCKET_S, HTTP_S = 20, 30


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_client_works_in_one_event_loop(start):
    """The connections that a closed event loop has left open are a ResourceWarning."""
    client = SignalClient(start().url)
    assert asyncio.run(client.version())
    for run in (asyncio.run, lambda call: asyncio.run(asyncio.to_thread(asyncio.run, call))):
        with pytest.raises(RuntimeError, match="a client works in one event loop"):
            run(client.version())
    asyncio.run(client.close())
    with pytest.raises(RuntimeError, match="the client is closed"):
        asyncio.run(client.version())
    del client
    gc.collect()


async def test_closed_client_opens_no_connections(websocket, service):
    async with Proxy(service) as proxy:
        async with SignalClient(proxy.url, ORIGIN, websocket=websocket) as client:
            await client.sessions("lobby", wait_s=0)
            waiting = asyncio.ensure_future(anext(client.topic_events("lobby")))
            await until(lambda: service.shared.log.metrics.waiting.total() == 1)
        with pytest.raises(RuntimeError, match="the client is closed"):
            await asyncio.wait_for(waiting, BOUND_S)
        opened = len(proxy.paths)
        for use in (client.version(), anext(client.topic_events("lobby")), client.offer("lobby", "i", "o", hold=True)):
            with pytest.raises(RuntimeError, match="the client is closed"):
                await use
        assert len(proxy.paths) == opened


@contextlib.asynccontextmanager
async def two_peers(url):
    async with lazy.Peers(url, ORIGIN, ice_servers=[]) as one, lazy.Peers(url, ORIGIN, ice_servers=[]) as other:
        yield one, other


@pytest.mark.needs("aiortc")
async def test_unreachable_server_is_reported_and_ends_what_has_a_timeout(service, start, tmp_path, caplog):
    async def use(why, url):
        cause = why.partition(".*")[2]
        async with lazy.Peers(url, ORIGIN) as peers, peers.room("lobby") as room:
            began_s = time.monotonic()
            event = await asyncio.wait_for(anext(aiter(room)), BOUND_S)
            assert isinstance(event, lazy.ServerUnreachable)
            assert event.error.code == ("server-busy" if "429" in why else "server-unreachable")
            assert re.search(cause, str(event.error))
            assert time.monotonic() - began_s > life.OUTAGE_S
            for start in (
                lambda: anext(aiter(peers.room("other", timeout=0.5))),
                lambda: anext(aiter(peers.publish("lobby", timeout=0.5))),
                lambda: peers.join("lobby", timeout=0.5),
            ):
                with pytest.raises(TimeoutError, match=rf"not done in 0\.5 s: .*{cause}"):
                    await asyncio.wait_for(start(), BOUND_S)

    with caplog.at_level(logging.WARNING, "tornado_signal_client"), Backend() as busy:
        busy.behaviour = responding({"error": "Too many requests"}, 429)
        unusable = {
            "no server has responded .*Connection refused": DEAD_URL,
            "no server has responded .*certificate verify failed": start(*make_pair(tmp_path).flags).url,
            "no server has responded .*(WRONG_VERSION_NUMBER|record layer failure)": f"https://127.0.0.1:{service.port}",
            "the servers have refused requests .*429 Too many requests": busy.base,
        }
        await asyncio.gather(*(use(*each) for each in unusable.items()))
    for why in unusable:
        assert len([each for each in caplog.messages if re.search(why, each)]) == 1


OF_WRONG_TYPE = [{"password": None}, {"password": b"secret"}, {"passwort": "secret"}, {"me": 1, "secret": "s"}]
OF_WRONG_TYPE += [{"secret": 1}, {"files": "yes"}, {"max": "2"}, {"max": True}, {"timeout": "5"}, {"topic": None}]
OF_WRONG_TYPE += [{"info": 1}, {"ice_servers": "stun:stun.example"}]


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("option", [*OF_WRONG_TYPE, {"password": ""}, {"info": ""}, {"info": "i" * 1025}])
async def test_wrong_option_makes_no_peers_or_opens_no_room(option):
    async with lazy.Peers(DEAD_URL, ORIGIN) as peers:
        of_peers = {"info", "ice_servers"} & option.keys()
        with pytest.raises(TypeError if option in OF_WRONG_TYPE else ValueError):
            lazy.Peers(DEAD_URL, **option) if of_peers else peers.room(**{"topic": "lobby", **option})
        async with peers.room("lobby") as room:
            with pytest.raises(TypeError, match=r"^to is str or None, not int"):
                await room.send("hello", 5)
            with pytest.raises(TypeError, match=r"^source is Path or bytes, not str"):
                await room.send_file("a path")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("offer", lambda client: client.offer("lobby", "i", {"type": "offer", "sdp": "v=0"})),
        ("info", lambda client: client.offer("lobby", 5, "o")),
        ("topic", lambda client: client.sessions(5)),
        ("topic", lambda client: anext(client.topic_events(5))),
        ("answer", lambda client: client.answer("c", {"type": "answer"})),
        ("candidates", lambda client: client.candidates("c", "offerer", "a candidate")),
        ("a candidate", lambda client: client.candidates("c", "offerer", [{"candidate": ""}])),
        ("secret", lambda client: client.withdraw("c", "offerer", secret=5)),
    ],
)
async def test_value_that_is_not_a_string_is_not_sent(name, call):
    async with SignalClient(DEAD_URL, ORIGIN) as client:
        with pytest.raises(TypeError, match=f"^{name} is "):
            await call(client)


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("listens", [True, False])
async def test_error_without_a_listener_is_logged_with_its_code(listens, caplog):
    async with lazy.Peers(DEAD_URL, ORIGIN) as peers, peers.room("lobby", timeout=0.1) as room:
        if listens:
            with pytest.raises(lazy.SignalError) as caught:
                await asyncio.wait_for(room.ready(), BOUND_S)
            assert (caught.value.code, caught.value.retryable) == ("timeout", True)
        else:
            publication = peers.publish("lobby", timeout=0.1)
            await until(lambda: room._over.is_set() and not publication._ready.empty())
    assert isinstance(await room.closed(), TimeoutError)
    logged = [each.split(": ")[0] for each in caplog.messages if "(timeout, see docs/browser-client.md#errors)" in each]
    parts = ["the publication under 'lobby'", "the room 'lobby'"]
    assert sorted(logged) == [f"{part} is closed, and nothing listens to its error" for part in parts] * (not listens)


async def notice(proxy, service, websocket, event):
    """Wait until a stream, a poll and a listing have what has happened since `event`."""

    async def read(iterator, items):
        async with aclosing(iterator):
            for _ in range(items):
                await anext(iterator)

    async with SignalClient(proxy.url, ORIGIN, websocket=websocket) as client:
        code = await client.offer("lobby", "i", "o", hold=True)
        iterators = client.topic_events("lobby"), client.listings("lobby"), client.news(code, "offerer")
        reading = asyncio.gather(*map(read, iterators, (2, 2, 1)))
        await until(lambda: service.shared.log.metrics.waiting.total() == 3)
        await event(client)
        async with SignalClient(service.url, ORIGIN) as other:
            await other.candidates(str(code), "answerer", ["c"])
            await other.offer("lobby", "i", "another")
        await reading


@pytest.mark.slow
@pytest.mark.needs("aiortc")
@pytest.mark.parametrize(("websocket", "bound_s"), [(True, WEBSOCKET_S), (False, HTTP_S)])
async def test_new_member_connects_to_one_with_frozen_connections(websocket, bound_s, service):
    """The new member leads: it has begun several attempts before the other one reads the first mail."""
    first, second = SECRETS

    async def meet(topic, event):
        async with frozen.room(topic, secret=second) as room:
            await until(lambda: service.shared.log.metrics.waiting.total() == 2)
            event()
            began_s = time.monotonic()
            async with new.room(topic, secret=first):
                await asyncio.wait_for(anext(aiter(room)), 2 * HTTP_S)
        return time.monotonic() - began_s

    async with (
        Proxy(service) as proxy,
        lazy.Peers(proxy.url, ORIGIN, websocket=websocket, ice_servers=[]) as frozen,
        lazy.Peers(service.url, ORIGIN, ice_servers=[]) as new,
    ):
        usual_s = await meet("another", lambda: None)
        await until(lambda: not service.shared.log.metrics.waiting.total())
        assert await meet("lobby", proxy.freeze) < bound_s + 5 * usual_s


@pytest.mark.needs("aiortc")
async def test_late_attempt_that_is_connected_is_not_ended_for_one_with_a_dead_member(service, monkeypatch):
    from tornado_signal_client import attempts, room_peer

    def join_late(peer):
        """The channel is open here a second after it is open on the other side."""
        asyncio.get_running_loop().call_later(1 if peer._leads else 0, join, peer)

    join = lazy.Peer._join
    monkeypatch.setattr(lazy.Peer, "_join", join_late)
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 1)
    monkeypatch.setattr(room_peer, "LATE_S", 0.5)
    leads, follows = SECRETS
    async with (
        two_peers(service.url) as (peers, others),
        peers.room("lobby", secret=leads) as leader,
        others.room("lobby", secret=follows) as follower,
    ):
        seen = aiter(follower)
        assert isinstance(await asyncio.wait_for(anext(seen), BOUND_S), lazy.Joined)
        beacon = {"v": 2, "id": "~dead", "at": 1, "now": service.clock.ms}
        await others.client.offer("room~lobby", "dead", json.dumps(beacon))
        assert isinstance(await asyncio.wait_for(anext(aiter(leader)), BOUND_S), lazy.Joined)
        await leader.send("hello")
        assert isinstance(await asyncio.wait_for(anext(seen), BOUND_S), lazy.Message)


@pytest.mark.needs("aiortc")
async def test_a_hundred_dead_beacons_delay_no_member(service, monkeypatch):
    from tornado_signal_client import attempts
    from tornado_signal_client.room_peer import Member

    def read(member, name):
        nonlocal reads
        reads += 1
        return object.__getattribute__(member, name)

    reads, (leads, follows) = 0, SECRETS
    monkeypatch.setattr(attempts, "MAX_ATTEMPTS", 20)
    monkeypatch.setattr(Member, "__getattribute__", read)
    async with two_peers(service.url) as (peers, others):
        for number in range(100):
            beacon = {"v": 2, "id": f"~{number}", "at": 1, "now": service.clock.ms}
            await others.client.offer("room~lobby", "dead", json.dumps(beacon))
        async with others.room("lobby", secret=follows) as follower:
            await until(lambda: len(follower._attempts._peers) >= 20)
            async with peers.room("lobby", secret=leads) as leader:
                for room in (leader, follower):
                    assert isinstance(await asyncio.wait_for(anext(aiter(room)), 3 * BOUND_S), lazy.Joined)
                    assert sum(peer._is_connecting and peer._leads for peer in room._attempts._peers) <= 20
    assert reads < 30_000  # some for each change, not those of all members


@pytest.mark.needs("aiortc")
async def test_leaving_while_publishing_leaves_nothing(service, monkeypatch):
    async def publish(*fields, **options):
        code = await offer(*fields, **options)
        published.set()
        await asyncio.sleep(0)
        return code

    async with two_peers(service.url) as (peers, _):
        offer = peers.client.offer
        monkeypatch.setattr(peers.client, "offer", publish)
        for enter in (peers.room, peers.publish):
            published = asyncio.Event()
            async with enter("lobby"):
                await published.wait()
        assert await service.topics() == []
        async with await peers.nearby(max=2) as room:
            assert room.topic == await peers.client.nearby()


@pytest.mark.needs("aiortc")
async def test_channels_that_are_not_open_yet_end_with_their_connection(service):
    async with two_peers(service.url) as (peers, others), peers.room("lobby") as room, others.room("lobby"):
        peer = (await asyncio.wait_for(anext(aiter(room)), BOUND_S)).peer
        large = asyncio.create_task(room.send(bytes(8 << 20)))
        await until(lambda: peer.channel.bufferedAmount > 1 << 20)
        small = asyncio.gather(room.channel("cursor").send("x"), peer.send_file(b"x"), return_exceptions=True)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(peer._end)
        sent, error = await asyncio.wait_for(small, BOUND_S)
        assert (await large, sent, error.code) == (None, None, "file-interrupted")


def following(on_end=lambda *_: None):
    """Return the side of an attempt that answers. Its mail is never sent."""
    from tornado_signal_client.names import Identity
    from tornado_signal_client.room_peer import Member

    async def never_send(*_):
        await asyncio.Event().wait()

    identity = Identity(ORIGIN, "room~lobby", None, SECRETS[1])
    return lazy.Peer(Member("!", "", None), "1", [], identity, never_send, lambda *_: None, lambda *_: None, on_end)


@pytest.mark.needs("aiortc")
async def test_attempt_ends_if_its_answer_cannot_be_sent(monkeypatch):
    from aiortc import RTCPeerConnection

    from tornado_signal_client import room_peer

    monkeypatch.setattr(room_peer, "REMOTE_ATTEMPT_S", 0.5)
    offerer, ended = RTCPeerConnection(), asyncio.Queue()
    offerer.createDataChannel("data")
    await offerer.setLocalDescription(await offerer.createOffer())
    peer = following(lambda peer, failed: ended.put_nowait(failed))
    peer._deliver({"of": 1, "description": {"type": "offer", "sdp": offerer.localDescription.sdp}})
    assert await asyncio.wait_for(ended.get(), BOUND_S)
    await asyncio.gather(offerer.close(), peer._finish())


@pytest.mark.needs("aiortc")
async def test_offer_that_is_processed_while_the_channel_opens_has_no_time_limit(monkeypatch):
    from tornado_signal_client import room_peer

    async def apply(signal):
        await asyncio.sleep(0.4)
        processed.set()

    monkeypatch.setattr(room_peer, "REMOTE_ATTEMPT_S", 0.2)
    processed, ended = asyncio.Event(), []
    peer = following(lambda peer, failed: ended.append(failed))
    monkeypatch.setattr(peer, "_apply", apply)
    await asyncio.sleep(0)
    peer._join()
    peer._deliver({})
    await asyncio.wait_for(processed.wait(), BOUND_S)
    assert not ended
    await peer._finish()


@pytest.mark.needs("aiortc")
async def test_attempt_that_ends_while_mail_arrives_is_closed():
    for steps in range(8):
        peer = following()
        await asyncio.sleep(0)
        peer._deliver({})
        for _ in range(steps):
            await asyncio.sleep(0)
        peer._end()
        await asyncio.wait_for(peer._closed.wait(), BOUND_S)


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize(
    ("limit", "size"), [(("--max-candidates", 16), 4), (("--max-body-bytes", 16_384, "--max-offer", 16_000), 4080)]
)
async def test_room_obeys_lower_limits_of_a_server(limit, size, start, monkeypatch):
    """The session of a beacon takes no more mail, before its member has received what it takes for the maximum."""
    from tornado_signal_client import mailbox

    monkeypatch.setattr(mailbox, "ALIVE_S", 0.2)
    leads, follows = SECRETS
    async with two_peers(start(*limit).url) as (peers, others), peers.room("lobby", secret=follows) as room:
        beacon = (await anext(others.client.topic_events("room~lobby"))).data["code"]
        for _ in range(16):
            await others.client.candidates(beacon, "answerer", ["j" * size])
        async with others.room("lobby", secret=leads):
            assert isinstance(await asyncio.wait_for(anext(aiter(room)), BOUND_S), lazy.Joined)


@pytest.mark.needs("aiortc")
async def test_mail_that_the_server_refuses_is_a_warning(start, caplog):
    url = start("--max-offer", 600).url
    async with two_peers(url) as (peers, others), peers.room("lobby"), others.room("lobby"):
        warning = "the server refuses mail to members of the room 'lobby': 400 Missing or invalid required parameter"
        await asyncio.wait_for(until(lambda: warning in caplog.text), BOUND_S)


@pytest.mark.parametrize("wakes", [True, False])
async def test_frozen_connections_are_replaced_soon_after_a_check(wakes, websocket, service, monkeypatch):
    """The computer has slept, or a program knows that the network has changed. Nothing else ends the connections.

    On a busy machine a beat of 0.2 s is late, and the client takes that for a sleep. A real one after it also counts.
    """
    monkeypatch.setattr(life, "PULSE_S", 0.2 if wakes else 600)
    monkeypatch.setattr(rpc, "QUIET_S", 600)
    monkeypatch.setattr(http, "SIGN_OF_LIFE_S", 600)

    async def freeze(client):
        proxy.freeze()
        if wakes:
            client._checked_s = awake_s()
            for module in (life, servers):
                monkeypatch.setattr(module, "awake_s", lambda: awake_s() + 3600)
        else:
            client.check()

    async with Proxy(service) as proxy:
        await notice(proxy, service, websocket, freeze)


async def test_check_of_live_connections_keeps_them(websocket, service, monkeypatch):
    monkeypatch.setattr(rpc, "SIGN_OF_LIFE_S", 2)

    async def check(client):
        client.check()
        await asyncio.sleep(3)  # the connection would be closed after 2 s

    async with Proxy(service) as proxy:
        await notice(proxy, service, websocket, check)
        assert not websocket or proxy.paths == ["/ws"]


async def test_cancelled_handshake_closes_its_connection(uncollected):
    async def accept(reader, writer):
        await reader.read(1)
        greeted.set()
        while await reader.read(1 << 16):
            pass
        writer.close()
        ended.set()

    greeted, ended = asyncio.Event(), asyncio.Event()
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as silent:
        url = f"https://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        async with SignalClient(url, ORIGIN, websocket=False) as client:
            asking = asyncio.create_task(client.topics())
            await asyncio.wait_for(greeted.wait(), BOUND_S)
            asking.cancel()
            await asyncio.wait_for(ended.wait(), BOUND_S)
            with pytest.raises(asyncio.CancelledError):
                await asking


@pytest.mark.needs("aiortc")
async def test_cancelled_gathering_leaves_no_socket(monkeypatch):
    from aioice import ice
    from aiortc import RTCConfiguration, RTCPeerConnection

    from tornado_signal_client.link import gather_candidates

    monkeypatch.setattr(ice, "get_host_addresses", lambda **_: ["127.0.0.1", "127.0.0.2"])
    for steps in range(1, 20):
        peer, before = RTCPeerConnection(RTCConfiguration([])), os.listdir("/proc/self/fd")
        peer.createDataChannel("data")
        gathering = asyncio.create_task(gather_candidates(peer.setLocalDescription(await peer.createOffer())))
        for _ in range(steps):
            await asyncio.sleep(0)
        gathering.cancel()
        await asyncio.gather(gathering, return_exceptions=True)
        await peer.close()
        assert os.listdir("/proc/self/fd") == before, steps


@pytest.mark.needs("aiortc")
async def test_ice_servers_that_aiortc_cannot_parse_are_left_out(start):
    urls = ["stun:[2001:db8::1]", "stun:stun.example:3478"]
    server = start("--stun-servers", ",".join(urls))
    async with lazy.Peers(server.url, ORIGIN) as peers:
        assert await peers.ice_servers() == [{"urls": urls[1:]}]
    async with lazy.Peers(server.url, ORIGIN, ice_servers=[{"urls": urls}]) as peers:
        for start_waiting in (lambda: anext(aiter(peers.room("lobby"))), lambda: anext(aiter(peers.publish("lobby")))):
            with pytest.raises(ValueError, match=r"aiortc cannot use all of the ICE servers .*db8"):
                await start_waiting()


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("leads", [True, False])
async def test_new_connection_of_a_room_uses_new_ice_servers(leads, start, tmp_path, monkeypatch):
    from tornado_signal_client import room_peer

    def new_connection(ice_servers):
        used.append(ice_servers)
        return link([])

    used, link = [], room_peer.new_connection
    monkeypatch.setattr(room_peer, "new_connection", new_connection)
    (tmp_path / "secret").write_text("a secret of TURN")
    turn = "--turn-servers", "turn:turn.example", "--turn-secret-file", tmp_path / "secret"
    url = start("--stun-servers", "none", *turn).url
    own, other = SECRETS if leads else reversed(SECRETS)
    async with (
        lazy.Peers(url, ORIGIN) as peers,
        lazy.Peers(url, ORIGIN, ice_servers=[]) as others,
        peers.room("lobby", secret=own) as room,
    ):
        await room.ready()
        (previous,) = await peers.ice_servers()  # it has a random user name
        assert previous in await peers.ice_servers()
        peers._ice_refresh_at_s = 0.0
        async with others.room("lobby", secret=other):
            await asyncio.wait_for(anext(aiter(room)), BOUND_S)
    used_by_room = [servers for servers in used if servers]
    assert used_by_room
    assert [previous] not in used_by_room


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("side", ["offerer", "answerer"])
async def test_connection_is_closed_if_its_caller_leaves_before_it_is_returned(side, monkeypatch):
    from tornado_signal_client import Peers, peers

    made, leaving = [], asyncio.Event()

    async def reading(*_, **__):
        try:
            yield SimpleNamespace(description="{}", sessions=[{"code": "code", "offer": "o"}])
        finally:
            leaving.set()
            await asyncio.Event().wait()

    class Recorded(peers.Connection):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    async def connected(session):
        return Recorded([], "answerer")

    async def call(*_):
        return "code"

    monkeypatch.setattr(peers, "Connection", Recorded)
    async with Peers("http://127.0.0.1:9", ORIGIN, ice_servers=[]) as others:
        for name, replaced in ("news", reading), ("listings", reading), ("_publish", call), ("_try_to_withdraw", call):
            monkeypatch.setattr(others.client, name, replaced)
        monkeypatch.setattr(others, "_connect", connected)
        caller = others.publish("topic") if side == "offerer" else asyncio.create_task(others.join("topic"))
        await leaving.wait()
        if side == "offerer":
            await caller.close()
        else:
            caller.cancel()
            await asyncio.wait([caller])
        assert [each.peer.signalingState for each in made] == ["closed"]
