"""Fixtures of the tests with real browsers: `pytest_plugins = ["browser_fixtures"]` brings them.

Whatever a page leaves uncaught, rejections included, fails its test.
"""

import shutil

import pytest
from browsers import FLAGS, Profiles, Site
from command import Server
from playwright.sync_api import sync_playwright


@pytest.fixture
def site():
    """A `Site`."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def chromiums():
    """Two browsers, each a process of its own."""
    with sync_playwright() as playwright:
        launch = {"executable_path": shutil.which("chromium"), "headless": True, "args": FLAGS}
        found = [playwright.chromium.launch(**launch) for _ in range(2)]
        yield found
        for browser in found:
            browser.close()


@pytest.fixture
def profiles(chromiums):
    """A `Profiles`."""
    found = Profiles(chromiums)
    yield found
    found.close()
    assert found.errors == []


@pytest.fixture
def connect_page(profiles, site):
    """A function that opens connect.html on another origin than the server's; the page has its module from there."""

    def opening(server, **options):
        page = profiles.open(f"{site.origin}/connect?{server.url}", **options)
        page.wait_for_function("() => window.ready")
        return page

    return opening


@pytest.fixture
def start(tmp_path):
    """A function that starts the installed command on the same data each time."""
    started = []

    def starting(*arguments, port=0, data="data"):
        started.append(Server("--data-dir", tmp_path / data, *arguments, port=port))
        return started[-1]

    yield starting
    for server in started:
        server.end()


@pytest.fixture
def server(start):
    """The server with its default settings."""
    return start()
