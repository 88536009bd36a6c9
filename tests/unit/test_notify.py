"""Notifications of the service manager, on real datagram sockets."""

import os
import socket
import time

import pytest

from tornado_signal.system import service_manager
from tornado_signal.system.service_manager import Notifier

WATCHDOG = {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request, tmp_path, monkeypatch):
    """The socket of a service manager and its NOTIFY_SOCKET."""
    monkeypatch.chdir(tmp_path)  # a relative path is short enough for a socket
    address = "notify" if request.param == "a path" else f"@tornado-signal-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0"))
        listener.settimeout(10)
        yield listener, address


def test_each_state_is_a_datagram_and_reloading_has_the_monotonic_time(manager):
    listener, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    for notify_state, state in [
        (notifier.ready, "READY"),
        (notifier.alive, "WATCHDOG"),
        (notifier.stopping, "STOPPING"),
    ]:
        notify_state("so and so")
        assert listener.recv(4096).decode() == f"{state}=1\nSTATUS=so and so"
    before = time.monotonic_ns() // 1000
    notifier.reloading()
    first, second = listener.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert before <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({}, None),
        (WATCHDOG, 3.0),
        ({"WATCHDOG_USEC": "500000"}, 0.5),
        ({**WATCHDOG, "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_PID": str(os.getpid())}, None),
    ],
)
def test_watchdog_interval_and_pause(variables, watchdog_s):
    environ = {"NOTIFY_SOCKET": "@nobody", **variables, "PATH": "/bin"}
    notifier = Notifier(environ)
    assert environ == {"PATH": "/bin"}  # child processes must not notify the manager
    assert notifier.watchdog_s == watchdog_s
    assert notifier.pause_s(60) == (watchdog_s / 2 if watchdog_s else 60)
    assert notifier.pause_s(0.1) == 0.1


def test_missing_manager_is_logged_and_without_a_manager_nothing_is_sent(caplog):
    notifier = Notifier(dict(WATCHDOG))
    assert (notifier.listening, notifier.watchdog_s) == (False, None)
    notifier.ready("")
    notifier.reloading()
    assert caplog.records == []
    Notifier({"NOTIFY_SOCKET": "/nowhere/notify"}).ready("")
    (record,) = caplog.records
    assert record.getMessage() == "cannot notify the service manager of READY=1: [Errno 2] No such file or directory"


def test_manager_that_does_not_read_blocks_for_a_bounded_time(manager, caplog, monkeypatch):
    monkeypatch.setattr(service_manager, "SEND_S", 0.1)
    notifier = Notifier({"NOTIFY_SOCKET": manager[1]})
    began_s = time.monotonic()
    while not caplog.records:
        notifier.alive("x" * 1000)
        assert time.monotonic() - began_s < 60
    assert "timed out" in caplog.records[0].getMessage()
