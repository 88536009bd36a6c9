"""Connections that die without a close: how long a page is missing in its room, in Chromium and in Firefox."""

import contextlib
import json
import os
import signal
import time

import pytest
from support.browsers import Firefox, until
from support.forwarding import Proxy
from support.processes import family

PRESENT = "[...here.peers.values()].some(({info, channel}) => info === 'page' && channel.readyState === 'open')"
# Secrets in the order of the ids. Of two members, the one with the smaller id begins their connection.
FIRST, PAGE, LAST = "ü😀", "of Bob", "of Alice"
SLOWNESS = 5  # times the usual time to connect, which is added to each bound for a busy machine
# The transport, the browser's event, and the seconds after which the page is there again.
DEATHS = {
    "socket": ("socket", None, 20),
    "http": ("http", None, 30),
    "socket-online": ("socket", "online", 3),
    "http-online": ("http", "online", 5),
}
# How long a machine sleeps, and the seconds after which its page is there again. All timers of a connection are shorter
# than the longer sleep.
SLEEPS = {30: 15, 65: 3}


@pytest.fixture(params=["chromium", "firefox"])
def browser(request):
    return request.param


def enter(page, room, info, secret, **options):
    page.evaluate(f"enter('{room}', {json.dumps({'info': info, 'secret': secret, **options})})")


def found_s(others, began_s):
    """Wait until others are connected to the page. Return the time since."""
    for other in others:
        until(lambda other=other: other.evaluate(PRESENT), bound_s=120)
    return time.monotonic() - began_s


def newcomer_s(newcomer, room):
    """Enter the room of the page. Return the time until they are connected."""
    began_s = time.monotonic()
    enter(newcomer, room, "newcomer", "of a newcomer")
    return found_s([newcomer], began_s)


def judge(took_s, usual_s, bounds_s):
    print(f"\nMEASURED { ({name: f'{each:.1f} s' for name, each in took_s.items()}) }, usual {usual_s:.1f} s")
    assert took_s.keys() == bounds_s.keys()
    late = {name for name, each in took_s.items() if each >= bounds_s[name] + SLOWNESS * usual_s}
    assert not late


def pages_on(networks, browser, site, request):
    """Open connect.html on each network. Firefox gets frames of one page, because its hidden tabs are slower."""
    if browser == "chromium":
        return [request.getfixturevalue("connect_page")(network) for network in networks]
    site.pages["/frames"] = "".join(f'<iframe src="/connect?{network.url}"></iframe>' for network in networks)
    firefox = request.getfixturevalue("firefox")
    firefox.goto(f"{site.origin}/frames")
    pages = firefox.frames()
    until(lambda: all(page.evaluate("window.ready") for page in pages))
    return pages


@pytest.mark.slow
def test_page_whose_connections_are_forgotten_is_found_again(browser, server, site, request, connect_page):
    usual_s, took_s, missing = 0, {}, {}
    with contextlib.ExitStack() as stack:
        networks = {death: stack.enter_context(Proxy(server.url)) for death in DEATHS}
        stack.callback(server.stop)
        pages = dict(zip(DEATHS, pages_on(networks.values(), browser, site, request), strict=True))
        others = {death: [connect_page(server) for _ in range(2)] for death in DEATHS}
        before = connect_page(server)
        for death, page in pages.items():
            began_s = time.monotonic()
            enter(page, death, "page", PAGE, url=networks[death].url, socket=DEATHS[death][0] == "socket")
            enter(before, death, "before", FIRST)
            usual_s = max(usual_s, found_s([before], began_s))
            before.evaluate("here.leave()")
            until(lambda page=page: page.evaluate("here.peers.size") == 0)
        time.sleep(3)  # so that the pages wait for the server: requests that are on their way would end earlier
        for death, (_, event, _) in DEATHS.items():
            networks[death].freeze()
            missing[death] = time.monotonic()
            if event:
                pages[death].evaluate("void dispatchEvent(new Event('offline')), dispatchEvent(new Event('online'))")
            for other, secret in zip(others[death], (FIRST, LAST), strict=True):
                enter(other, death, "other", secret)
            if event:  # the others take longer, and their connections are made after these
                took_s[death] = found_s(others[death], missing.pop(death))
        took_s |= {death: found_s(others[death], began_s) for death, began_s in missing.items()}
        judge(
            took_s,
            max(usual_s, newcomer_s(before, "socket")),
            {death: bound_s for death, (*_, bound_s) in DEATHS.items()},
        )


@pytest.mark.slow
def test_page_that_slept_is_found_again(browser, server, request, connect_page, tmp_path):
    usual_s, took_s, stopped, others = 0, {}, {}, {}
    with contextlib.ExitStack() as stack:
        for sleep_s in SLEEPS:
            if browser == "firefox":
                own = stack.enter_context(contextlib.closing(Firefox(tmp_path / f"firefox-{sleep_s}")))
                page = request.getfixturevalue("connect_firefox")(server, own)
            else:
                page, own = request.getfixturevalue("windowed")(server)
            others[sleep_s] = [connect_page(server) for _ in range(2)]
            began_s = time.monotonic()
            enter(page, f"room-{sleep_s}", "page", PAGE)
            for other, secret in zip(others[sleep_s], (FIRST, LAST), strict=True):
                enter(other, f"room-{sleep_s}", "other", secret)
            usual_s = max(usual_s, found_s(others[sleep_s], began_s))
            stopped[sleep_s] = family(own.process.pid)
            stack.callback(signal_all, stopped[sleep_s], signal.SIGCONT)
        for pids in stopped.values():
            signal_all(pids, signal.SIGSTOP)
        slept_s = time.monotonic()
        for sleep_s, pids in stopped.items():
            time.sleep(max(0, slept_s + sleep_s - time.monotonic()))  # of the machine
            signal_all(pids, signal.SIGCONT)
            began_s = time.monotonic()
            for other in others[sleep_s]:
                other.evaluate("void (here.peers.size && here.send('awake?'))")
            time.sleep(0.5)  # connections that the page has missed the end of
            took_s[sleep_s] = found_s(others[sleep_s], began_s)
        judge(took_s, max(usual_s, newcomer_s(connect_page(server), "room-65")), SLEEPS)


def signal_all(pids, number):
    for each in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)
