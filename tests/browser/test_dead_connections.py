"""Connections that die without a close: how long a page is missing in its room, in Chromium and in Firefox."""

import os
import signal
import time

import pytest
from support.browsers import until
from support.forwarding import Proxy
from support.processes import family

PRESENT = "here.peers.size > 0 && [...here.peers.values()].every((peer) => peer.channel.readyState === 'open')"
# The transport, the browser's event, and the seconds after which the page is there again.
DEATHS = {
    "socket": ("socket", None, 20),
    "socket-online": ("socket", "online", 3),
    "http": ("http", None, 38),  # Chromium needs 19 s, Firefox 34 s
    "http-online": ("http", "online", 5),
}


@pytest.fixture(params=["chromium", "firefox"])
def open_page(request, site):
    """A function that opens connect.html in the browser, and returns the page."""

    def opening(network):
        if request.param == "firefox":
            return request.getfixturevalue("connect_firefox")(network)
        return request.getfixturevalue("connect_page")(network)

    return opening


@pytest.fixture
def network(server):
    with Proxy(server.url) as proxy:
        yield proxy
        server.stop()


def joined_s(page, began_s):
    """Wait until a page is connected. Return the time since."""
    until(lambda: page.evaluate(PRESENT), bound_s=120)
    return time.monotonic() - began_s


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_page_whose_connections_are_forgotten_is_found_again(death, server, network, open_page, connect_page):
    over, event, bound_s = DEATHS[death]
    page, first, second = open_page(network), connect_page(server), connect_page(server)
    began_s = time.monotonic()
    page.evaluate(f"enter('lobby', {{info: 'page', url: '{network.url}', socket: {str(over == 'socket').lower()}}})")
    first.evaluate("enter('lobby', {info: 'first'})")
    usual_s = joined_s(first, began_s)
    joined_s(page, began_s)
    first.evaluate("here.leave()")
    until(lambda: page.evaluate("here.peers.size") == 0)
    time.sleep(3)  # so that the page waits for the server: requests that are on their way would end earlier
    network.freeze()
    began_s = time.monotonic()
    if event:
        page.evaluate("void dispatchEvent(new Event('offline')), dispatchEvent(new Event('online'))")
    second.evaluate("enter('lobby', {info: 'second'})")
    took_s = joined_s(second, began_s)
    print(f"\nMEASURED {death} {type(page).__module__} {took_s:.1f} s, usual {usual_s:.1f} s")
    assert took_s < bound_s + usual_s


@pytest.mark.slow
@pytest.mark.parametrize(("sleep_s", "bound_s"), [(30, 15), (90, 3)])
@pytest.mark.parametrize("browser", ["chromium", "firefox"])
def test_page_that_slept_is_found_again(browser, sleep_s, bound_s, server, request, connect_page):
    if browser == "firefox":
        page, process = request.getfixturevalue("connect_firefox")(server), request.getfixturevalue("firefox").process
    else:
        page, windowed = request.getfixturevalue("windowed")(server)
        process = windowed.process
    other = connect_page(server)
    for each, info in ((page, "page"), (other, "other")):
        each.evaluate(f"enter('lobby', {{info: '{info}'}})")
    began_s = time.monotonic()
    usual_s = joined_s(other, began_s)
    stopped = family(process.pid)
    try:
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        time.sleep(sleep_s)  # of the machine
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)
    began_s = time.monotonic()
    other.evaluate("void (here.peers.size && here.send('awake?'))")
    time.sleep(0.5)  # connections that the page has missed the end of
    took_s = joined_s(other, began_s)
    print(f"\nMEASURED sleep {sleep_s} {browser} {took_s:.1f} s, usual {usual_s:.1f} s")
    assert took_s < bound_s + usual_s
