"""The WebTorrent tracker over raw WebSockets (docs/trackers.md)."""

import ipaddress

import pytest
from support.rpc import until
from support.y_webrtc import RawClient

HASH = "aaaabbbbccccddddee\0ÿ"
SDP = {"type": "offer", "sdp": "v=0"}


class Tracker(RawClient):
    next, closed = RawClient.receive, RawClient.ended

    async def ask(self, message):
        await self.send(message)
        return await self.next()

    async def nothing(self):
        """Check that no message is pending."""
        response = await self.ask({"action": "scrape", "info_hash": "z" * 20})
        assert response["action"] == "scrape", response


@pytest.fixture
def tracker(open_raw):
    def open_client(service, path="/tracker", **options):
        return open_raw(service, path, kind=Tracker, **options)

    return open_client


def peer(letter):
    return letter * 20


def announce(letter, **fields):
    return {"action": "announce", "info_hash": HASH, "peer_id": peer(letter), **fields}


def offers(*numbers):
    return [{"offer": SDP, "offer_id": f"{number:020}"} for number in numbers]


def response(complete, incomplete):
    counts = {"complete": complete, "incomplete": incomplete}
    return {**counts, "action": "announce", "interval": 120, "info_hash": HASH}


async def counts(client, info_hash=HASH):
    file = (await client.ask({"action": "scrape", "info_hash": info_hash}))["files"][info_hash]
    return file["complete"], file["incomplete"]


async def until_counts(client, *expected, info_hash=HASH):
    async def reached():
        return await counts(client, info_hash) == expected

    await until(reached)


async def test_a_scrape_names_a_limited_number_of_swarms(service, tracker):
    client, scrape = await tracker(service), {"action": "scrape", "info_hash": [HASH] * 256}
    assert await client.ask(scrape) == {"action": "scrape", "failure reason": "too many info_hash", "info_hash": ""}


async def test_closed_connection_leaves_all_its_swarms_unless_a_peer_is_announced_elsewhere(service, tracker):
    old, new, other = [await tracker(service) for _ in range(3)]
    hashes = [f"{number:020}" for number in range(3)]
    for info_hash in hashes:
        await old.ask(announce("a") | {"info_hash": info_hash})
    await old.ask(announce("a"))
    assert await new.ask(announce("a")) == response(0, 1)
    old.socket.transport.abort()
    for info_hash in hashes:
        await until_counts(other, 0, 0, info_hash=info_hash)
    await other.ask(announce("b", offers=offers(1)))
    assert (await new.next())["offer"] == SDP
    assert await counts(other) == (0, 2)


@pytest.mark.parametrize(
    ("path", "other_path", "other_address", "moves"),
    [
        ("/tracker", "/tracker", "127.0.0.3", False),
        ("/tracker?token=x", "/tracker?token=y", "127.0.0.3", False),
        ("/tracker?token=x", "/announce?token=x", "127.0.0.3", True),
        ("/tracker?token=x", "/tracker", "127.0.0.2", True),
    ],
)
async def test_peer_of_a_live_connection_moves_to_the_same_address_or_token_only(
    path, other_path, other_address, moves, service, tracker
):
    owner = await tracker(service, path=path, local_addr=("127.0.0.2", 0))
    thief = await tracker(service, path=other_path, local_addr=(other_address, 0))
    other = await tracker(service)
    await owner.ask(announce("a"))
    await other.ask(announce("b"))
    assert await thief.ask(announce("a", offers=offers(1))) == response(0, 2)
    await thief.send(announce("a", answer=SDP, offer_id=f"{2:020}", to_peer_id=peer("b")))
    for _ in range(2 * moves):  # nothing is sent in the name of another one's peer
        assert (await other.next())["peer_id"] == peer("a")
    await other.nothing()
    await other.ask(announce("b", offers=offers(3)))
    assert (await (thief if moves else owner).next())["offer_id"] == f"{3:020}"
    await (owner if moves else thief).nothing()
    assert await thief.ask(announce("a", event="stopped")) == response(0, 1 if moves else 2)
    thief.socket.transport.abort()
    owner.socket.transport.abort()
    await until_counts(other, 0, 1)
    assert await (await tracker(service)).ask(announce("a")) == response(0, 2)


async def test_peers_of_one_connection_meet(service, tracker):
    """Clients of one page share a connection to each tracker."""
    client, other = await tracker(service), await tracker(service)
    await client.ask(announce("a"))
    assert await client.ask(announce("b", offers=offers(1))) == response(0, 2)
    assert (await client.next())["peer_id"] == peer("b")
    await client.send(announce("a", answer=SDP, offer_id=f"{1:020}", to_peer_id=peer("b")))
    answered = await client.next()
    assert (answered["answer"], answered["peer_id"]) == (SDP, peer("a"))
    assert await client.ask(announce("a", event="stopped")) == response(0, 1)
    await client.ask(announce("c"))
    client.socket.transport.abort()
    await until_counts(other, 0, 0)
    assert service.shared.limits.client("127.0.0.1").held == 0


async def test_share_of_an_address_in_a_swarm_is_limited(start_service, tracker, monkeypatch):
    monkeypatch.setattr("tornado_signal.protocols.connection.MAX_MEMBERS_PER_ADDRESS", 2)
    service = await start_service(unlimited_addresses=(ipaddress.ip_network("127.0.0.2"),))
    unlimited = [await tracker(service, local_addr=("127.0.0.2", 0)) for _ in range(3)]
    for number, client in enumerate(unlimited):
        assert await client.ask(announce(str(number))) == response(0, number + 1)
    first, second, other = [await tracker(service) for _ in range(3)]
    await first.ask(announce("a"))
    await second.ask(announce("b"))
    assert (await second.ask(announce("b")))["incomplete"] == 5  # announced again, not counted again
    await other.send(announce("c"))
    assert await other.closed() == (1008, "too many peers of an address in a swarm")
    await first.ask(announce("a", event="stopped"))
    assert (await (await tracker(service)).ask(announce("c")))["incomplete"] == 5
