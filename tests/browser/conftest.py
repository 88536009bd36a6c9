"""Fixtures of several files of this folder."""

import contextlib
import functools
import shutil

import pytest
from support.browsers import FLAGS, Windowed, until
from support.needs import require
from support.networks import Lan, own_network
from support.waiting import end_all


@pytest.fixture(scope="package")
def playwright():
    """Playwright for all files of this folder. While it is open, no test can run an event loop of its own."""
    require("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def chromium(playwright):
    """A function that returns the headless browser process with a number. Windows would take three times as long."""
    require("chromium-headless-shell")
    program = shutil.which("chromium-headless-shell")
    with end_all(playwright.chromium.launch, lambda browser: browser.close()) as launch:
        yield functools.cache(lambda number: launch(executable_path=program, headless=True, args=FLAGS))


@pytest.fixture
def launch(chromium):
    program = shutil.which("chromium-headless-shell")
    with end_all(chromium(0).browser_type.launch, lambda browser: browser.close()) as launching:
        yield lambda flags: launching(executable_path=program, args=flags)


@pytest.fixture(params=["socket", "http"])
def over(request):
    return request.param


@pytest.fixture
def reached(over, blocking):
    """A function: a server as pages reach it, itself or a proxy that refuses the upgrade to a WebSocket."""
    return blocking if over == "http" else lambda server: server


@pytest.fixture
def lan():
    """A network of simulated machines, which ends before what a test lists earlier."""
    with own_network(), contextlib.closing(Lan()) as lan:
        yield lan


@pytest.fixture
def connect_firefox(firefox, site):
    def opening(server, firefox=firefox):
        firefox.goto(f"{site.origin}/connect?{server.url}")
        until(lambda: firefox.evaluate("window.ready"))
        return firefox

    return opening


@pytest.fixture
def windowed(chromium, site, tmp_path):
    """Return a function that opens connect.html, or a URL, in a `Windowed`. It returns the page and the `Windowed`."""
    started = []

    def opening(server, url=None):
        started.append(Windowed(chromium(0).browser_type, tmp_path / f"profile-{len(started)}"))
        page = started[-1].context.pages[0]
        page.goto(url or f"{site.origin}/connect?{server.url}")
        page.wait_for_function("() => window.ready || !location.search")
        return page, started[-1]

    yield opening
    for each in started:
        if each.process.poll() is None:
            each.close()


@pytest.fixture
def page(server, connect_page):
    return connect_page(server)


alice = bob = page  # each is a page of its own


@pytest.fixture
def open_demo(profiles):
    """Return a function that opens the demo with a name, and returns the page."""

    def opening(server, name, topic="lobby", **options):
        page = profiles.open(f"{server.url}/demo#topic={topic}", **options)
        page.get_by_label("Your name").fill(name)
        page.get_by_label("Your name").press("Tab")
        return page

    return opening
