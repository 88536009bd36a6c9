"""Slots that nodes of a cluster attribute to different primaries."""

import asyncio

import pytest

from tornado_signal.redis import topology
from tornado_signal.redis.connections import Credentials
from tornado_signal.redis.nodes import Acknowledgement, Pipeline
from tornado_signal.redis.slots import SLOTS
from tornado_signal.redis.topology import Topology

NAMES = ("a", "b", "c")
ADDRESSES = {name: ("10.0.0.1", 7000 + at) for at, name in enumerate(NAMES)}
LAST = SLOTS - 1


def replies_of(asked, view):
    """Return what a node replies to CLUSTER NODES and CLUSTER SLOTS: its view has epoch and slots of each primary."""
    lines = [
        f"{name} 10.0.0.1:{ADDRESSES[name][1]}@1 {'myself,' * (name == asked)}master - 0 0 {epoch} connected"
        for name, (epoch, _) in view.items()
    ]
    slots = [
        [first, last, [ADDRESSES[name][0].encode(), ADDRESSES[name][1], name.encode()]]
        for name, (_, ranges) in view.items()
        for first, last in ranges
    ]
    return {b"NODES": "\n".join(lines).encode(), b"SLOTS": slots}


@pytest.fixture
def ask(monkeypatch):
    """A function that asks a cluster for its slots. Its nodes have different views, and reply in the given order."""

    async def submit(pipeline, command):
        for _ in range(10 * addresses.index(pipeline._address)):
            await asyncio.sleep(0)
        return views[pipeline._address][command[1]]

    views, addresses = {}, []
    monkeypatch.setattr(Pipeline, "submit", submit)
    monkeypatch.setattr(topology, "GRACE_S", 60)

    async def asking(order, **seen):
        views.update({ADDRESSES[name]: replies_of(name, view) for name, view in seen.items()})
        access = Credentials()
        addresses[:] = [ADDRESSES[name] for name in order]
        asked = Topology(addresses, "", access, access, Acknowledgement("os"))
        assert await asked._query_cluster() is None
        return asked

    return asking


# The view of two nodes, and the outdated view of the third one, which is named. Then the owners of the slots.
VIEWS = {
    "the claim of a primary about itself wins with equal epochs": (  # slot 1 has moved to b, with the highest epoch
        {"a": (1, [(0, 0)]), "b": (3, [(1, 9)]), "c": (2, [(10, LAST)])},
        {"a": (1, [(0, 1)]), "b": (3, [(2, 9)]), "c": (2, [(10, LAST)])},
        *("c", "abbc"),
    ),
    "also if another primary has the same epoch": (
        {"a": (1, [(0, 0)]), "b": (1, [(1, 9)]), "c": (1, [(10, LAST)])},
        {"a": (1, [(0, 1)]), "b": (1, [(2, 9)]), "c": (1, [(10, LAST)])},
        *("c", "abbc"),
    ),
    "a higher epoch wins over the claim of a primary about itself": (  # a was cut off while b took its slots over
        {"b": (4, [(0, 9)]), "c": (3, [(10, LAST)])},
        {"a": (1, [(0, 1)]), "b": (2, [(2, 9)]), "c": (3, [(10, LAST)])},
        *("a", "bbbc"),
    ),
}


@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize(("known", "outdated", "stale", "owners"), VIEWS.values(), ids=VIEWS)
async def test_slots_belong_to_the_latest_claim(known, outdated, stale, owners, order, ask):
    found = await ask(order, **dict.fromkeys(NAMES, known) | {stale: outdated})
    assert [found.node(slot).address for slot in (0, 1, 2, LAST)] == [ADDRESSES[name] for name in owners]
