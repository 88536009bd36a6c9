"""Fixtures for tests with real browsers."""

import contextlib
import subprocess

import pytest

from tornado_signal.operator.turn_config import make_lines
from tornado_signal.settings.settings import Settings
from tornado_signal.settings.value_types import VariableSecret

from . import npm_package
from .browsers import TURN_SECRET, Firefox, Profiles, Site
from .certificates import make_pair
from .command import Server
from .forwarding import Proxy, refuse_with
from .needs import require
from .redis_servers import free_port
from .waiting import end_all, until


@pytest.fixture
def site():
    with Site() as site:
        yield site


@pytest.fixture(scope="session")
def one_firefox(tmp_path_factory):
    """One browser for all files: it takes seconds to start, and `firefox` gives each test an empty tab."""
    browser = Firefox(tmp_path_factory.mktemp("firefox") / "profile")
    yield browser
    browser.close()


@pytest.fixture
def firefox(one_firefox):
    yield one_firefox
    one_firefox.goto("about:blank")


@pytest.fixture
def profiles(chromium):
    profiles = Profiles(chromium)
    yield profiles
    profiles.close()
    assert profiles.errors == []  # uncaught errors and rejections


@pytest.fixture
def connect_page(profiles, site):
    """A function that opens connect.html with a server's module, on a different origin than the server's."""

    def opening(server, **options):
        page = profiles.open(f"{site.origin}/connect?{server.url}", **options)
        page.wait_for_function("() => window.ready")
        return page

    return opening


@pytest.fixture
def findings():
    """Return a function that returns the rules of axe-core that a page violates, and checks its heading."""
    axe = (npm_package.node_modules() / "axe-core" / "axe.min.js").read_text()

    def find(page):
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        assert len(found["passes"]) > 10
        assert page.get_by_role("heading", level=1).count() == 1
        return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]

    return find


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A function that returns a server of the file. After a test has stopped it, there is another one."""
    flags = ("--rate-per-address", "100000", "--data-dir")
    servers = []
    with end_all(Server, Server.end) as start:

        def running():
            if not servers or servers[-1].process.poll() is not None:
                servers.append(start(*flags, tmp_path_factory.mktemp("data")))
            return servers[-1]

        yield running


@pytest.fixture
def server(request):
    """A server that tests of one file share. Their pages have other origins. A test of the demo has its own server."""
    if "open_demo" in request.fixturenames:
        return request.getfixturevalue("start")()
    return request.getfixturevalue("shared")()


@pytest.fixture
def blocking():
    """A function that starts a proxy for a server. The proxy refuses WebSockets."""
    with contextlib.ExitStack() as stack:
        yield lambda server: stack.enter_context(Proxy(server.url, refuse_with(403)))


@pytest.fixture
def secret_file(tmp_path):
    """A file with the secret and a final line break, as editors save it."""
    path = tmp_path / "turn-secret"
    path.write_text(f"{TURN_SECRET}\n")
    return path


@pytest.fixture
def coturn(tmp_path, secret_file):
    """The port of a coturn server on loopback that uses the secret, and a function that reads its log.

    TLS is at the next port. Its certificate is `turn.crt` in the directory of the test.
    """
    loopback = ("--allow-loopback-peers", "--allowed-peer-ip=127.0.0.1")
    with serve_turn(tmp_path, "127.0.0.1", *loopback, tls=make_pair(tmp_path, "turn")) as running:
        yield running


@contextlib.contextmanager
def serve_turn(tmp_path, address, *options, tls=None):
    """Run coturn at an address with the file of `turn-config`. Return its port and a function that reads its log.

    With a certificate and its key, it serves TLS at the next port.
    """
    require("turnserver")
    port = free_port()
    settings = Settings(
        turn_servers=(f"turn:{address}:{port}", *([f"turns:{address}:{port + 1}"] if tls else [])),
        turn_secret_file=VariableSecret("", TURN_SECRET.encode()),
        tls_certificate=tls and tls.certificate,
        tls_key=tls and tls.key,
    )
    file = tmp_path / "turnserver.conf"
    file.write_text("\n".join(make_lines(settings)) + "\n")
    log = tmp_path / "coturn.log"
    command = ["turnserver", "-c", file, "--verbose", "--log-file=stdout", f"--pidfile={tmp_path}/turn.pid"]
    command += [f"--listening-ip={address}", f"--relay-ip={address}", *options]
    command.append("--db=:memory:")  # on a slow disk creating the tables would take a minute
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path) as process:
        try:
            until(lambda: f"UDP listener opened on: {address}:{port}" in log.read_text())
            yield port, log.read_text
        finally:
            process.terminate()
