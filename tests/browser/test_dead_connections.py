"""Connections that die without a close: how long a page is missing in its room, in Chromium and in Firefox.

The pages of both browsers wait at the same time.
"""

import contextlib
import itertools
import os
import signal
import time

import pytest
from support.browsers import Firefox, until
from support.forwarding import Proxy
from support.members import enter
from support.processes import family

PRESENT = "[...here.peers.values()].some(({info, channel}) => info === 'page' && channel.readyState === 'open')"
# Secrets in the order of the ids. Of two members, the one with the smaller id begins their connection.
FIRST, PAGE, LAST = "ü😀", "of Bob", "of Alice"
SLOWNESS = 5  # times the usual time to connect, which is added to each bound for a busy machine
BROWSERS = ["chromium", "firefox"]
# The transport, whether the browser says that it is online, and the seconds after which the page is there again.
DEATHS = {("socket", True): 3, ("http", True): 5, ("socket", False): 20, ("http", False): 30}
# How long a machine sleeps, and the seconds after which its page is there again. All timers of a connection are shorter
# than the longer sleep.
SLEEPS = {30: 15, 65: 3}
# Firefox takes part where it is quickest and where it is slowest.
FORGOTTEN = [*itertools.product(["chromium"], DEATHS), ("firefox", ("socket", True)), ("firefox", ("http", False))]
SLEPT = [*itertools.product(["chromium"], SLEEPS), ("firefox", 30)]


def found_s(others, began_s):
    """Wait until others are connected to the page. Return the time since."""
    for other in others:
        until(lambda other=other: other.evaluate(PRESENT), bound_s=120)
    return time.monotonic() - began_s


def newcomer_s(newcomer, room):
    """Enter the room of the page. Return the time until they are connected."""
    began_s = time.monotonic()
    enter(newcomer, "newcomer", str(room), secret="of a newcomer")
    return found_s([newcomer], began_s)


def judge(took_s, usual_s, bounds_s, cases):
    print(f"\nMEASURED { ({case: f'{each:.1f} s' for case, each in took_s.items()}) }, usual {usual_s:.1f} s")
    assert took_s.keys() == {*cases}
    late = {case for case, each in took_s.items() if each >= bounds_s[case[1]] + SLOWNESS * usual_s}
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
def test_page_whose_connections_are_forgotten_is_found_again(server, site, request, connect_page):
    usual_s, took_s, frozen_s, pages = 0, {}, {}, {}
    with contextlib.ExitStack() as stack:
        networks = {case: stack.enter_context(Proxy(server.url)) for case in FORGOTTEN}
        stack.callback(server.stop)
        for browser in BROWSERS:
            own = [case for case in networks if case[0] == browser]
            pages |= zip(own, pages_on([networks[case] for case in own], browser, site, request), strict=True)
        others = {case: [connect_page(server) for _ in range(2)] for case in networks}
        before = connect_page(server)
        for case, page in pages.items():
            began_s = time.monotonic()
            enter(page, "page", str(case), secret=PAGE, url=networks[case].url, socket=case[1][0] == "socket")
            enter(before, "before", str(case), secret=FIRST)
            usual_s = max(usual_s, found_s([before], began_s))
            before.evaluate("here.leave()")
            until(lambda page=page: page.evaluate("here.peers.size") == 0)
        time.sleep(3)  # so that the pages wait for the server: requests that are on their way would end earlier
        for case in sorted(networks, key=lambda case: DEATHS[case[1]]):
            networks[case].freeze()
            frozen_s[case] = time.monotonic()
            is_online = case[1][1]
            if is_online:
                pages[case].evaluate("void dispatchEvent(new Event('offline')), dispatchEvent(new Event('online'))")
            for other, secret in zip(others[case], (FIRST, LAST), strict=True):
                enter(other, "other", str(case), secret=secret)
            if is_online:
                took_s[case] = found_s(others[case], frozen_s.pop(case))
        took_s |= {case: found_s(others[case], began_s) for case, began_s in frozen_s.items()}
        judge(took_s, max(usual_s, newcomer_s(before, case)), DEATHS, FORGOTTEN)


@pytest.mark.slow
def test_page_that_slept_is_found_again(server, request, connect_page, tmp_path):
    usual_s, took_s, stopped, others = 0, {}, {}, {}
    with contextlib.ExitStack() as stack:
        for browser, sleep_s in SLEPT:
            if browser == "firefox":
                own = stack.enter_context(contextlib.closing(Firefox(tmp_path / f"firefox-{sleep_s}")))
                page = request.getfixturevalue("connect_firefox")(server, own)
            else:
                page, own = request.getfixturevalue("windowed")(server)
            case = browser, sleep_s
            others[case] = [connect_page(server) for _ in range(2)]
            began_s = time.monotonic()
            enter(page, "page", str(case), secret=PAGE)
            for other, secret in zip(others[case], (FIRST, LAST), strict=True):
                enter(other, "other", str(case), secret=secret)
            usual_s = max(usual_s, found_s(others[case], began_s))
            stopped[case] = family(own.process.pid)
            stack.callback(signal_all, stopped[case], signal.SIGCONT)
        slept_s, newcomers = {}, [connect_page(server) for _ in SLEPT]
        for case, pids in stopped.items():
            signal_all(pids, signal.SIGSTOP)
            slept_s[case] = time.monotonic()
        for case in sorted(SLEPT, key=lambda case: case[1]):
            time.sleep(max(0, slept_s[case] + case[1] - time.monotonic()))  # of the machine
            signal_all(stopped[case], signal.SIGCONT)
            began_s = time.monotonic()
            for other in others[case]:
                other.evaluate("void (here.peers.size && here.send('awake?'))")
            time.sleep(0.5)  # connections that the page has missed the end of
            took_s[case] = found_s(others[case], began_s)
            usual_s = max(usual_s, newcomer_s(newcomers.pop(), case))  # at this load
        judge(took_s, usual_s, SLEEPS, SLEPT)


def signal_all(pids, number):
    for each in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, number)
