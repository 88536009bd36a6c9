"""Rooms of RxDB, matchbox and Godot over raw WebSockets (docs/rxdb.md, docs/matchbox.md, docs/godot.md)."""

import asyncio
import gc
import json
from types import SimpleNamespace

import pytest
from support.documents import pages
from support.paths import TESTS
from support.rpc import until
from support.service import HANDSHAKE, ORIGIN, head, with_origin
from support.y_webrtc import RawClient
from websockets.exceptions import ConnectionClosed

from tornado_signal.errors import Unavailable
from tornado_signal.protocols import godot, rooms
from tornado_signal.protocols.connection import MAX_MEMBERS, MAX_MEMBERS_PER_ADDRESS
from tornado_signal.relay import COUNTED, Channel, JoinResult, Lease
from tornado_signal.relay.memory import MAX_BACKLOG_BYTES, MemoryRelay

FOLDER = TESTS / "http" / "transcripts"
QUIET_S = 0.05  # in which nothing may come


class Client(RawClient):
    """A client whose silence is checked."""

    async def expect(self, *messages):
        for message in messages:
            assert await self.receive() == message

    async def silent(self):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(QUIET_S):
                print(await self.socket.recv())

    async def closed_by_server(self):
        """Return the code and the reason of a closed connection. No message comes before that."""
        with pytest.raises(ConnectionClosed):
            pytest.fail(await asyncio.wait_for(self.socket.recv(), 30))
        return self.socket.close_code, self.socket.close_reason


@pytest.fixture
def opened(service, open_raw):
    """A function that opens a client at a path. The clients end before the server, which does not wait for them."""

    def open_client(path):
        return open_raw(service, path, kind=Client)

    return open_client


# RxDB


def joined(*ids):
    return {"type": "joined", "otherPeerIds": [*ids]}


async def test_members_whose_messages_were_lost_are_found_by_their_number(opened, service):
    client, relay = await opened("/rxdb"), service.application.relay
    own = (await client.receive())["yourPeerId"]
    await client.send({"type": "join", "room": "a room"})
    await client.expect(joined(own))
    (channel,) = (group for group in relay._groups if "rxdb" in group.scope)
    await relay.join(channel, Lease("other", "owner"), 9)
    for count in (1, 2):
        relay.publish(channel, COUNTED + b"%d" % count)
    await client.expect(joined("other", own))
    await relay.leave(channel, "other", "owner")
    for count in (2, 1):
        relay.publish(channel, COUNTED + b"%d" % count)
    await client.expect(joined(own))
    await client.silent()


class Member:
    """A member of a room that knows the others, each of which it learns of once."""

    closed = False

    def __init__(self, name, work):
        self.name = name
        self.service = SimpleNamespace(start=lambda each: work.append(asyncio.ensure_future(each)))
        self.known = set()

    def member_changed(self, room, member_id, data):
        if self.name == member_id:
            self.known |= room.members.keys() - {member_id}
            return
        assert (member_id in self.known) == (data is None)
        self.known ^= {member_id}


async def test_a_flood_of_changes_in_a_large_room_is_bounded_and_all_know_how_it_ended():
    relay, channel, work = MemoryRelay(), Channel("scope", "room"), []
    room = rooms.Room(relay, channel)
    members = {str(number): Member(str(number), work) for number in range(300)}
    for name, member in members.items():
        assert await room.enter(member, Lease(name, "owner"), 1000) is JoinResult.NEW
    for number in range(3000):
        visitor = Lease(f"v{number}", "owner")
        await relay.join(channel, visitor, 9999)
        relay.publish(channel, f"+v{number} ".encode())
        if number % 100:
            await room.exit(visitor.member, "owner")
    assert room._deliveries._backlog_bytes <= 2 * MAX_BACKLOG_BYTES
    expected = {*members, *(f"v{number}" for number in range(0, 3000, 100))}
    await until(lambda: all(each.known == expected - {name} for name, each in members.items()))
    await asyncio.gather(*work)


# matchbox


async def identified(client):
    return (await client.receive())["IdAssigned"]


async def test_a_batch_whose_owner_leaves_stays_although_redis_does_not_respond(opened, service, monkeypatch, caplog):
    relay, tries = service.application.relay, []
    stays, left = await opened("/matchbox/game?next=3"), await opened("/matchbox/game?next=3")
    own = await identified(stays)
    await identified(left)

    async def join(group, *arguments, joined=relay.join):
        tries.append(group)
        if len(tries) < 3:
            raise Unavailable("busy")
        return await joined(group, *arguments)

    monkeypatch.setattr(relay, "join", join)
    (group,) = (each for each in relay._groups if "first" in relay._groups[each])
    owner = relay._groups[group]["first"].owner
    await left.socket.close()
    await until(lambda: relay._groups.get(group, {}).get("first", Lease("", owner)).owner != owner)
    ids = [await identified(await opened("/matchbox/game?next=3")) for _ in range(2)]
    assert own not in ids
    heard = [await stays.receive() for _ in range(4)]
    assert heard[2:] == [{"NewPeer": each} for each in ids]
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_room_of_matchbox_needs_a_name_which_can_be_that_of_an_operation(opened, service):
    """A topic can be named like a protocol."""
    for path in ("/matchbox", "/matchbox/", "/matchbox/%ff", "/matchbox/" + "x" * 257):
        response = await service.raw(head("GET", path, with_origin(ORIGIN, HANDSHAKE)))
        assert response.status == 404, path
    client = await opened("/matchbox/sessions")
    assert list(await client.receive()) == ["IdAssigned"]
    code = await service.offer("matchbox")
    listing = await service.get("/matchbox/sessions")
    assert [session["code"] for session in listing["sessions"]] == [code]


# Godot


async def test_a_lobby_that_is_sealed_while_a_guest_enters_refuses_it(opened, service, monkeypatch):
    async def find(group, member):
        return Lease(member, "owner", "", godot.MESH)

    host, guest = await opened("/godot"), await opened("/godot")
    await host.send({"type": godot.JOIN, "id": 0, "data": ""})
    await host.send({"type": godot.SEAL, "id": 0, "data": ""})
    _, lobby, sealed = [await host.receive() for _ in range(3)]
    assert sealed["type"] == godot.SEAL
    monkeypatch.setattr(service.application.relay, "find", find)
    await guest.send({"type": godot.JOIN, "id": 0, "data": lobby["data"]})
    assert await guest.ended() == (4000, "Lobby is sealed")


def cases(name):
    """Return the cases of a transcript, each as a title and lines."""
    blocks = (FOLDER / f"{name}.txt").read_text().strip().split("\n\n")[1:]
    return {title: lines for title, *lines in (block.splitlines() for block in blocks)}


def bind(expected, received, names):
    """Return what is expected, with the values of new names from what was received."""
    if type(expected) is dict:
        return {key: bind(value, (received or {}).get(key), names) for key, value in expected.items()}
    return names.setdefault(expected, received) if str(expected).startswith("$") else expected


PROTOCOLS = sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize(("name", "title"), [(name, title) for name in PROTOCOLS for title in cases(name)])
async def test_original_server_would_have_sent_the_same(name, title, opened, service, monkeypatch, pass_time):
    ahead_s = 30
    for limit in ("JOIN_S", "SEALED_S"):
        monkeypatch.setattr(godot, limit, ahead_s)
    clients, names = {}, {}
    for line in cases(name)[title]:
        client, operation, text = [*line.split(" ", 2), "", ""][:3]
        text = f" {text}".rpartition(" =>")[2].strip()
        for each, value in names.items():
            text = text.replace(json.dumps(each), json.dumps(value))
        if client == "~":
            await pass_time(ahead_s)
        elif operation == "o":
            clients[client] = await opened(text)
        elif operation in (">", "b>"):
            await clients[client].send(text if operation == ">" else text.encode())
        elif operation == "<":
            if text:  # or else this server sends nothing
                received = await clients[client].receive()
                assert received == bind(json.loads(text), received, names), line
        elif operation == ".":
            await clients.pop(client).socket.close()
            await until(lambda: len(service.server.state.connections) == len(clients))
        else:
            code, reason = await clients.pop(client).closed_by_server()
            assert f"{code} {reason}".strip() == text, line
    for client in clients.values():
        await client.silent()
    assert len({*names.values()}) == len(names)
    assert all(len(value) in (12, 16, 36) if type(value) is str else 1 < value < 2**31 for value in names.values())


def test_documented_number_of_members():
    for page in ("games", "rxdb"):
        limits = f"at most {MAX_MEMBERS:,} members, and {MAX_MEMBERS_PER_ADDRESS} of one address"
        assert limits in " ".join(pages()[page].split()), page
