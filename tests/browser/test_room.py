"""Rooms of the browser module: everybody in one is connected to everybody, and stays so."""

import statistics
import time

import pytest
from support.browsers import until

pytest_plugins = ["support.browser_fixtures"]

# Enter at a moment by the clock; what it comes to is how long that took until so many others are there.
TOGETHER = """
  async ([topic, info, number, at]) => {
    await new Promise((resolve) => setTimeout(resolve, at - Date.now()));
    const began = performance.now();
    enter(topic, {info, socket: window.overSocket});
    await new Promise((resolve) => here.addEventListener("join", () => here.peers.size === number && resolve()));
    return performance.now() - began;
  }
"""


@pytest.fixture(params=["socket", "http"])
def reached(request, blocking):
    """A function: a server as pages reach it, itself or a proxy that refuses the upgrade to a WebSocket."""
    return blocking if request.param == "http" else lambda server: server


def together(pages, topic):
    """Have pages enter a room at the same instant; how long it took each until all others were there, in ms."""
    at_ms = time.time() * 1000 + 100
    for number, page in enumerate(pages):
        arguments = [topic, str(number), len(pages) - 1, at_ms]
        page.evaluate(f"(given) => {{ window.entered = ({TOGETHER})(given); }}", arguments)
    return [page.evaluate("entered") for page in pages]


def test_two_at_once(server, reached, connect_page):
    """Two pages opened at the same instant are connected, each time."""
    pages = [connect_page(reached(server)) for _ in range(2)]
    took = []
    for number in range(30):
        took += [max(together(pages, f"lobby {number}"))]
        for page in pages:
            page.evaluate("here.leave()")
    print([round(t) for t in took], statistics.median(took))


def test_ten(server, connect_page):
    pages = [connect_page(server) for _ in range(10)]
    took = []
    for number in range(5):
        took += [max(together(pages, f"lobby {number}"))]
        for page in pages:
            page.evaluate("() => { here.leave() }")
    print([round(t) for t in took], statistics.median(took))
