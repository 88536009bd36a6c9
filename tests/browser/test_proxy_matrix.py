"""Rooms behind the proxies that people use, in networks that are in the way.

A cell is a proxy, the host of the pages, and a network. Proxies have Debian's defaults and the lines of their
tutorials. Networks treat WebSockets differently. Each cell has a room with two members. The name of the
room has characters that proxies change.
"""

import contextlib
import functools
import itertools

import pytest
from support.browsers import BOUND_MS
from support.forwarding import Proxy, refuse_with, stay_silent
from support.proxies import PLAIN, CaddyPath, NginxPath
from support.waiting import until

HOSTS = ("same host", "other host")
WEBSOCKETS = {"works": {}, "refused": {"refuse": refuse_with(403)}, "hangs": {"refuse": stay_silent}}
WEBSOCKETS["cut"] = {"cut_s": 10}
NETWORKS = list(itertools.product(HOSTS, WEBSOCKETS))
ENTER = "([name, url]) => { window.lobby = room(name, {url}); }"
ODD = r"a/b\c %2F d;e+f?g#h:i@j&k=l\"m~n🎉.."
TOGETHER = "() => window.lobby.peers.size === 1"


@pytest.fixture
def open_network(server, start_proxy, site, profiles):
    """A function that opens two pages in a network before a proxy, and returns the pages and the network."""
    put_before, networks = functools.cache(lambda kind: start_proxy(kind, server.port)), contextlib.ExitStack()

    def opening(kind, host, websockets, path=""):
        network = networks.enter_context(Proxy(put_before(kind).url, site=site, **WEBSOCKETS[websockets]))
        origin = network.url if host == "same host" else site.origin
        return [profiles.open(f"{origin}/connect?{network.url}{path}") for _ in range(2)], network

    yield opening
    profiles.close()
    server.stop()
    networks.close()


def enter(pages, name, url):
    for page in pages:
        page.wait_for_function("() => window.ready")
        page.evaluate(ENTER, [name, url])


def connect_all(open_network, cells):
    """Wait until both members of each cell are connected, and still are after a cut."""
    opened = {cell: open_network(PLAIN[cell[0]], *cell[1:]) for cell in cells}
    for cell, (pages, network) in opened.items():
        enter(pages, f"{' '.join(cell)} {ODD}", network.url)
    for cell, (pages, _) in opened.items():
        try:
            for page in pages:
                page.wait_for_function(TOGETHER, timeout=BOUND_MS)
        except Exception as error:
            raise AssertionError(f"alone: {cell}") from error
    for cell, (pages, network) in opened.items():
        if cell[2] == "cut":
            until(lambda network=network: network.ended >= 2 and network.opened >= 4)
            for page in pages:
                page.wait_for_function(TOGETHER)


@pytest.mark.slow
def test_each_network_behind_one_of_the_proxies(open_network):
    kinds = itertools.cycle(PLAIN)
    connect_all(open_network, [(next(kinds), *network) for network in NETWORKS])


@pytest.mark.weekly
@pytest.mark.parametrize("kind", PLAIN)
def test_each_network_behind_each_proxy(kind, open_network):
    for host in HOSTS:
        connect_all(open_network, [(kind, *network) for network in NETWORKS if network[0] == host])


@pytest.mark.parametrize("kind", [NginxPath, CaddyPath])
def test_sub_path(kind, open_network):
    """With and without WebSockets, and with a slash at the end of the URL."""
    same, other = HOSTS
    cases = [(same, "works", "/signal"), (other, "works", "/signal/"), (same, "refused", "/signal/")]
    opened = [(case, *open_network(kind, *case)) for case in cases]
    for (_, _, path), pages, network in opened:
        enter(pages, "lobby", network.url + path)
    for (_, websockets, _), pages, network in opened:
        for page in pages:
            page.wait_for_function(TOGETHER)
        assert (network.opened > 0) == (websockets == "works")
