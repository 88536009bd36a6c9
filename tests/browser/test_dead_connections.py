"""Connections that die without a close: how long a page is missing in its room, in Chromium and in Firefox."""

import json
import os
import signal
import time

import pytest
from support.browsers import until
from support.forwarding import Proxy
from support.processes import family

PRESENT = "[...here.peers.values()].some(({info, channel}) => info === 'page' && channel.readyState === 'open')"
# Secrets in the order of the ids. Of two members, the one with the smaller id begins their connection.
FIRST, PAGE, LAST = "ü😀", "of Bob", "of Alice"
SLOWNESS = 5  # times the usual time to connect, which is added to each bound for a busy machine
# The transport, the browser's event, and the seconds after which the page is there again.
DEATHS = {
    "socket": ("socket", None, 20),
    "socket-online": ("socket", "online", 3),
    "http": ("http", None, 30),
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


def enter(page, info, secret, **options):
    page.evaluate(f"enter('lobby', {json.dumps({'info': info, 'secret': secret, **options})})")


def found_s(others, began_s):
    """Wait until others are connected to the page. Return the time since."""
    for other in others:
        until(lambda other=other: other.evaluate(PRESENT), bound_s=120)
    return time.monotonic() - began_s


def newcomer_s(newcomer):
    """Enter the room of the page. Return the time until they are connected."""
    began_s = time.monotonic()
    enter(newcomer, "newcomer", "of a newcomer")
    return found_s([newcomer], began_s)


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_page_whose_connections_are_forgotten_is_found_again(death, server, network, open_page, connect_page):
    over, event, bound_s = DEATHS[death]
    page, before, *others = open_page(network), *(connect_page(server) for _ in range(3))
    began_s = time.monotonic()
    enter(page, "page", PAGE, url=network.url, socket=over == "socket")
    enter(before, "before", FIRST)
    usual_s = found_s([before], began_s)
    before.evaluate("here.leave()")
    until(lambda: page.evaluate("here.peers.size") == 0)
    time.sleep(3)  # so that the page waits for the server: requests that are on their way would end earlier
    network.freeze()
    began_s = time.monotonic()
    if event:
        page.evaluate("void dispatchEvent(new Event('offline')), dispatchEvent(new Event('online'))")
    for other, secret in zip(others, (FIRST, LAST), strict=True):
        enter(other, "other", secret)
    took_s = found_s(others, began_s)
    usual_s = max(usual_s, newcomer_s(connect_page(server)))
    print(f"\nMEASURED {death} {type(page).__module__} {took_s:.1f} s, usual {usual_s:.1f} s")
    assert took_s < bound_s + SLOWNESS * usual_s


@pytest.mark.slow
@pytest.mark.parametrize(("sleep_s", "bound_s"), [(30, 15), (90, 3)])
@pytest.mark.parametrize("browser", ["chromium", "firefox"])
def test_page_that_slept_is_found_again(browser, sleep_s, bound_s, server, request, connect_page):
    if browser == "firefox":
        page, process = request.getfixturevalue("connect_firefox")(server), request.getfixturevalue("firefox").process
    else:
        page, windowed = request.getfixturevalue("windowed")(server)
        process = windowed.process
    others = [connect_page(server) for _ in range(2)]
    began_s = time.monotonic()
    enter(page, "page", PAGE)
    for other, secret in zip(others, (FIRST, LAST), strict=True):
        enter(other, "other", secret)
    usual_s = found_s(others, began_s)
    stopped = family(process.pid)
    try:
        for each in stopped:
            os.kill(each, signal.SIGSTOP)
        time.sleep(sleep_s)  # of the machine
    finally:
        for each in stopped:
            os.kill(each, signal.SIGCONT)
    began_s = time.monotonic()
    for other in others:
        other.evaluate("void (here.peers.size && here.send('awake?'))")
    time.sleep(0.5)  # connections that the page has missed the end of
    took_s = found_s(others, began_s)
    usual_s = max(usual_s, newcomer_s(connect_page(server)))
    print(f"\nMEASURED sleep {sleep_s} {browser} {took_s:.1f} s, usual {usual_s:.1f} s")
    assert took_s < bound_s + SLOWNESS * usual_s
