"""A service manager's notification socket, and a check of what an operator sees of a server that is full."""

import contextlib
import os
import socket
from urllib.parse import urlsplit

import pytest

from tornado_signal.operator.fullness import RESOURCES

from .command import BOUND_S
from .scraping import scrape
from .waiting import until


@pytest.fixture
def manager():
    name = f"tornado-signal-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(BOUND_S)
        yield listening, "@" + name


def receive_message(manager):
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().split("\n"))


def wait_for_message(manager, name):
    """Return the next message with a field. Messages before it must be watchdog notifications."""
    while name not in (message := receive_message(manager)):
        assert message["WATCHDOG"] == "1"
    return message


def check_fullness(server, manager, what, count):
    """Open `count` connections, more than fit, and close them. Check what the operator sees."""

    def full():
        return {name for (name, *_), value in scrape(server.admin_url).all("full").items() if value}

    where = urlsplit(server.url)
    assert server.ask_admin("/readyz") == (200, {"status": "ok"})
    assert full() == set()
    assert {*scrape(server.admin_url).all("max_connections").values()} == {3}
    with contextlib.ExitStack() as ends:
        for _ in range(count):
            ends.enter_context(socket.create_connection((where.hostname, where.port)))
        until(lambda: server.ask_admin("/readyz") == (200, {"status": "ok", "full": [what]}))
        assert full() == {what}
        while f"; full: {what}" not in receive_message(manager).get("STATUS", ""):
            pass
    until(lambda: server.ask_admin("/readyz") == (200, {"status": "ok"}))
    assert full() == set()
    while "; full" in receive_message(manager).get("STATUS", "; full"):
        pass
    assert server.call("/health")[0] == 200
    assert server.stop() == 0
    logged = [line for line in server.log if "tornado_signal.operator.fullness: " in line]
    begins = [line for line in logged if f"clients are refused: {RESOURCES[what]}" in line]
    ends = [line for line in logged if f"clients are served again: {what} had no room for " in line]
    assert len(begins) == len(ends) == len(logged) / 2 > 0
