"""Rooms behind a proxy that refuses WebSockets and forwards a response only when it is complete."""

import pytest
from support.forwarding import Proxy

ENTER = "() => { window.lobby = room('lobby', {url: location.search.slice(1)}); }"


@pytest.fixture
def holding(server):
    with Proxy(server.url, websockets="refused", streams="held") as proxy:
        yield proxy
        server.stop()


def test_pages_find_each_other_and_notice_who_leaves(holding, connect_page):
    pages = [connect_page(holding) for _ in range(2)]
    for page in pages:
        page.evaluate(ENTER)
    for page in pages:
        page.wait_for_function("() => window.lobby.peers.size === 1")
    pages[0].evaluate("lobby.leave()")
    pages[1].wait_for_function("() => window.lobby.peers.size === 0")
    pages[0].evaluate(ENTER)
    for page in pages:
        page.wait_for_function("() => window.lobby.peers.size === 1")
