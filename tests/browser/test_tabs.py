"""Tabs of one origin without a WebSocket, which share the six connections of a browser over HTTP/1.1."""

import pytest

TABS = 7


@pytest.mark.parametrize("locks", [True, False])
def test_seven_tabs_join_a_room(server, site, blocking, profiles, locks):
    context = profiles.context()
    if not locks:  # as over plain HTTP
        context.add_init_script("Object.defineProperty(Navigator.prototype, 'locks', {value: undefined});")
    tabs = [context.new_page() for _ in range(TABS)]
    address = f"{site.origin}/connect?{blocking(server).url}"
    for tab in tabs:
        tab.goto(address)
        tab.wait_for_function("() => window.ready")
        tab.evaluate("() => { window.lobby = room('lobby', {url: location.search.slice(1)}); }")
    for tab in tabs:
        tab.wait_for_function(f"() => window.lobby.peers.size === {TABS - 1}")
