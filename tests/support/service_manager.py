"""A service manager's notification socket."""

import os
import socket

import pytest

from .command import BOUND_S


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
