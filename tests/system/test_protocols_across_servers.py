"""Clients of all protocols at different servers of one cluster of Valkey, and faults of both."""

import contextlib
import functools
import itertools
import json
import signal

import pytest
from support.nostr import make_event
from support.redis_servers import RedisCluster, fixture
from support.waiting import until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ORIGIN = "https://app.example"
BOUND_S = 30
FREE_S = 30  # after which the ids of a lost server must be free
NAMES = itertools.count()


class Client:
    def __init__(self, server, path):
        url = server.url.replace("http", "ws") + path
        connecting = connect(url, origin=ORIGIN, compression=None, ping_interval=None, max_size=None)
        self.socket = contextlib.ExitStack().enter_context(connecting)

    def send(self, **message):
        self.socket.send(json.dumps(message))

    def next(self, timeout_s=BOUND_S):
        return json.loads(self.socket.recv(timeout_s))

    def ask(self, **message):
        self.send(**message)
        return self.next()

    def code(self):
        """Return the close code, after dropping all messages."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(BOUND_S)
        return self.socket.protocol.close_rcvd.code


def open_peer(server, peer_id, token):
    client = Client(server, f"/peerjs?key=peerjs&id={peer_id}&token={token}")
    return client, client.next()["type"]


def subscribe(server, room):
    client = Client(server, "/y-webrtc")
    client.send(type="subscribe", topics=[room])
    assert client.ask(type="ping") == {"type": "pong"}
    return client


def watch_topic(server, topic):
    client = Client(server, "/nostr")
    client.socket.send(json.dumps(["REQ", "a", {"#x": [topic]}]))
    assert client.next() == ["EOSE", "a"]
    return client


def announcement(peer, swarm, **fields):
    return {"action": "announce", "info_hash": f"{swarm:>20}", "peer_id": f"{peer:>20}", "left": 1, **fields}


def members(client, swarm):
    return client.ask(action="scrape", info_hash=f"{swarm:>20}")["files"][f"{swarm:>20}"]["incomplete"]


def meet(one, other):
    name = f"name-{next(NAMES)}"
    alice, opened = open_peer(one, f"{name}-a", "token")
    assert opened == "OPEN"
    alice.send(type="OFFER", dst=f"{name}-b", payload="early")  # before the other is there
    bob, opened = open_peer(other, f"{name}-b", "token")
    assert opened == "OPEN"
    assert bob.next()["payload"] == "early"
    for number in range(20):
        bob.send(type="CANDIDATE", dst=f"{name}-a", payload=number)
    assert [alice.next()["payload"] for _ in range(20)] == list(range(20))
    assert open_peer(other, f"{name}-a", "another")[1] == "ID-TAKEN"

    near, far = subscribe(one, name), subscribe(other, name)
    for number in range(20):
        near.send(type="publish", topic=name, data=number)
    assert [far.next()["data"] for _ in range(20)] == list(range(20))
    assert [near.next()["data"] for _ in range(20)] == list(range(20))

    publisher, reader = watch_topic(one, name), watch_topic(other, name)
    for number in range(20):
        publisher.socket.send(json.dumps(["EVENT", make_event(name, str(number))]))
    assert [reader.next()[2]["content"] for _ in range(20)] == [*map(str, range(20))]

    first, second = Client(one, "/tracker"), Client(other, "/tracker")
    assert first.ask(**announcement("a", name))["incomplete"] == 1
    assert second.ask(**announcement("b", name, offers=[{"offer": "o", "offer_id": "1"}]))["incomplete"] == 2
    assert first.next()["offer"] == "o"
    first.send(**announcement("a", name, answer="answer", offer_id="1", to_peer_id=f"{'b':>20}"))
    assert second.next()["answer"] == "answer"
    rooms = meet_in_rooms(one, other, name)
    for client in (alice, bob, near, far, publisher, reader, first, second, *rooms):
        client.socket.close()


def meet_in_rooms(one, other, name):
    host = Client(one, "/godot")
    host.send(type=0, id=0, data="")
    _, lobby = host.next(), host.next()["data"]
    guest = Client(other, "/godot")
    guest.send(type=0, id=0, data=lobby)
    guest_id = guest.next()["id"]
    assert [guest.next()["type"] for _ in range(2)] == [2, 0]
    assert host.next() == {"type": 2, "id": guest_id, "data": ""}
    host.send(type=4, id=guest_id, data="offer")
    assert guest.next() == {"type": 4, "id": 1, "data": "offer"}

    first, second = Client(one, "/rxdb"), Client(other, "/rxdb")
    ids = [client.next()["yourPeerId"] for client in (first, second)]
    for client in (first, second):
        client.send(type="join", room=f"rxdb {name}")
        assert client.next()["otherPeerIds"][-1] == ids[client is second]
    assert {*first.next()["otherPeerIds"]} == {*ids}

    older, younger = match(one, name), match(other, name)
    assert older[0].next() == {"NewPeer": younger[1]}
    for number in range(20):
        second.send(type="signal", room=f"rxdb {name}", senderPeerId=ids[1], receiverPeerId=ids[0], data=number)
        younger[0].send(Signal={"receiver": older[1], "data": number})
    assert [first.next()["data"] for _ in range(20)] == list(range(20))
    assert [older[0].next()["Signal"]["data"] for _ in range(20)] == list(range(20))
    pair = match(one, f"{name}?next=2"), match(other, f"{name}?next=2")
    assert pair[0][0].next() == {"NewPeer": pair[1][1]}
    return host, guest, first, second, older[0], younger[0], *(client for client, _ in pair)


def match(server, room):
    client = Client(server, f"/matchbox/{room}")
    return client, client.next()["IdAssigned"]


cluster = fixture(RedisCluster, "valkey", 3, 1, scope="module")


@pytest.fixture
def serve(cluster, start):
    return functools.partial(start, "--durability", "os", redis=cluster)


def test_clients_meet_after_the_loss_of_a_primary(cluster, serve):
    one, other = serve(), serve()
    near, far = subscribe(one, "kept"), subscribe(other, "kept")
    (holder, _), (friend, _) = open_peer(one, "kept", "token"), open_peer(other, "friend", "token")
    tracker = Client(one, "/tracker")
    tracker.send(**announcement("a", "kept"))
    tracker.next()
    for primary in cluster.primaries_now():  # one of them has the channels of each protocol
        cluster.wait_until_whole()
        primary.kill()
        until(lambda primary=primary: cluster.replaced(primary))

        def reaches():
            near.send(type="publish", topic="kept", data=1)
            friend.send(type="LEAVE", dst="kept", payload=1)
            with contextlib.suppress(TimeoutError):
                return far.next(0.5) and holder.next(0.5)

        until(reaches)
        until(lambda: open_peer(other, "kept", "another")[1] == "ID-TAKEN")
        until(lambda: members(Client(other, "/tracker"), "kept") == 1)
        for client in (far, holder):
            with contextlib.suppress(TimeoutError):
                while True:
                    client.next(0.5)
        meet(one, other)
        primary.start()
    assert holder.socket.protocol.close_rcvd is None


def test_ids_of_a_drained_server_are_kept_for_their_tokens(serve):
    """One client connects again while the server ends, and one later."""
    one, other = serve("--hold-grace-ms", "20000"), serve()
    clients = [open_peer(one, name, "token")[0] for name in ("soon", "later")]
    clients += [subscribe(one, "drained"), Client(one, "/tracker"), watch_topic(one, "drained")]
    friend, _ = open_peer(other, "friend", "token")
    one.process.send_signal(signal.SIGTERM)
    assert [each.code() for each in clients] == [1012] * 5
    again = {"soon": open_peer(other, "soon", "token")}
    one.process.wait(BOUND_S)
    assert open_peer(other, "later", "another")[1] == "ID-TAKEN"
    again["later"] = open_peer(other, "later", "token")
    for name, (client, opened) in again.items():
        assert opened == "OPEN"
        assert open_peer(other, name, "another")[1] == "ID-TAKEN"
        friend.send(type="OFFER", dst=name, payload=1)
        assert client.next() == {"type": "OFFER", "src": "friend", "dst": name, "payload": 1}
        assert client.socket.protocol.close_rcvd is None


def test_ids_and_members_of_a_killed_server_are_free_after_30_s(serve):
    one, other = serve(), serve()
    open_peer(one, "killed", "token")
    open_peer(one, "mine", "token")
    tracker = Client(one, "/tracker")
    tracker.send(**announcement("a", "killed"))
    tracker.next()
    (_, lost_id), (left, _) = match(one, "killed"), match(other, "killed")
    one.process.kill()
    scraping = Client(other, "/tracker")
    assert open_peer(other, "mine", "token")[1] == "OPEN"
    assert open_peer(other, "killed", "another")[1] == "ID-TAKEN"
    assert members(scraping, "killed") == 1
    until(lambda: members(scraping, "killed") == 0 and open_peer(other, "killed", "another")[1] == "OPEN", FREE_S)
    assert left.next(FREE_S) == {"PeerLeft": lost_id}
