"""Fixtures of the tests with real browsers: `pytest_plugins = ["support.browser_fixtures"]` brings them.

Whatever a page leaves uncaught, rejections included, fails its test.
"""

import shutil
import socket
import subprocess

import pytest

from .browsers import FLAGS, TURN_SECRET, Profiles, Site, until
from .firefox import Firefox
from .needs import require
from .proxies import Blocking


@pytest.fixture
def site():
    """A `Site`."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def chromium():
    """A function that gives a browser by its number, each a process of its own, started when it is wanted.

    It is Chromium's engine without the window around it, for a third of the time; `Windowed` and `launch_in` have all.
    """
    require("playwright", "chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = {}

        def numbered(number):
            if number not in started:
                options = {"executable_path": shutil.which("chromium-headless-shell"), "headless": True, "args": FLAGS}
                started[number] = playwright.chromium.launch(**options)
            return started[number]

        yield numbered
        for browser in started.values():
            browser.close()


@pytest.fixture(scope="module")
def one_firefox(tmp_path_factory):
    """A Firefox, which takes longer to start than a test."""
    browser = Firefox(tmp_path_factory.mktemp("firefox") / "profile")
    yield browser
    browser.close()


@pytest.fixture
def firefox(one_firefox):
    """A Firefox that shows nothing yet, and nothing of a test afterwards."""
    yield one_firefox
    one_firefox.goto("about:blank")


@pytest.fixture
def profiles(chromium):
    """A `Profiles`."""
    found = Profiles(chromium)
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
def server(start):
    """The server with its default settings."""
    return start()


@pytest.fixture
def blocking(tmp_path):
    """A function that puts a proxy before a server, which lets no WebSocket through."""
    started = []

    def put_before(server, **options):
        directory = tmp_path / f"proxy{len(started)}"
        directory.mkdir()
        started.append(Blocking(directory, int(server.url.rpartition(":")[2]), **options))
        return started[-1]

    yield put_before
    for proxy in started:
        proxy.stop()


@pytest.fixture
def secret_file(tmp_path):
    """A file with the secret, as an editor leaves it: with a line break."""
    path = tmp_path / "turn-secret"
    path.write_text(f"{TURN_SECRET}\n")
    return path


def free_port():
    """A UDP port that nobody has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def coturn(tmp_path, secret_file):
    """Debian's coturn on loopback, which knows the secret: its port, and a function that reads its log."""
    require("turnserver")
    port = free_port()
    log = tmp_path / "coturn.log"
    options = {
        "listening-ip": "127.0.0.1",
        "relay-ip": "127.0.0.1",
        "listening-port": port,
        "realm": "example",
        "static-auth-secret": TURN_SECRET,
        "db": ":memory:",  # on a disk that is slow to sync it would make tables, and answer nobody, for a minute
        "log-file": "stdout",
        "pidfile": tmp_path / "turn.pid",
    }
    flags = ["-n", "--use-auth-secret", "--no-cli", "--allow-loopback-peers", "--verbose"]
    flags += ["--no-tcp", "--no-tls", "--no-dtls"]  # the port is free for UDP; for TCP somebody else may have it
    command = ["turnserver", *flags, *(f"--{name}={value}" for name, value in options.items())]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path)
    until(lambda: f"UDP listener opened on: 127.0.0.1:{port}" in log.read_text())
    yield port, log.read_text
    process.terminate()
    process.wait()
