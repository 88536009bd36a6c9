"""The service manager: notifications on real datagram sockets, and the sockets that it passes to the process."""

import os
import socket
import time

import pytest

from tornado_signal.errors import OperatorError
from tornado_signal.system import service_manager
from tornado_signal.system.service_manager import Notifier, passed_sockets

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
    for name, state in (("ready", "READY"), ("alive", "WATCHDOG"), ("stopping", "STOPPING")):
        getattr(notifier, name)("so and so")
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
    environ = {"NOTIFY_SOCKET": "@missing", **variables, "PATH": "/bin"}
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


FIRST = 700  # a descriptor number above all others of this process


@pytest.fixture
def pass_on(monkeypatch):
    """A function that puts sockets at the passed descriptor numbers and returns the environment for them."""
    monkeypatch.setattr(service_manager, "FIRST", FIRST)
    descriptors = []

    def pass_sockets(*sockets, **variables):
        for number, sock in enumerate(sockets, FIRST):
            descriptors.append(os.dup2(sock.fileno(), number, inheritable=True))
            sock.close()
        return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), **variables}

    yield pass_sockets
    for number in descriptors:
        try:
            os.close(number)
        except OSError:
            continue  # the test has closed the descriptor


def close(*sockets):
    for sock in sockets:
        sock.close()


def listening_socket(family=socket.AF_INET):
    return socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)


def test_passed_sockets_are_the_opened_ones(pass_on):
    sockets = [listening_socket(), listening_socket(socket.AF_INET6)]
    addresses = [sock.getsockname() for sock in sockets]
    environ = pass_on(*sockets)
    public, admin = passed_sockets(environ)
    assert ([sock.getsockname() for sock in public], admin) == (addresses, [])
    assert passed_sockets(environ) == ([], [])  # the first call takes them
    for sock in public:
        with socket.create_connection(sock.getsockname()[:2]):
            sock.accept()[0].close()
        assert not sock.get_inheritable()
    close(*public)


@pytest.mark.parametrize(
    "names", ["tornado-signal.socket:admin", "admin:admin", "admin", "", "administrator:Admin", None]
)
def test_sockets_named_admin_are_the_admin_listeners(names, pass_on):
    for_admin = [names in ("admin", "admin:admin"), str(names).endswith(":admin")]
    sockets = [listening_socket(), listening_socket()]
    addresses = [sock.getsockname() for sock in sockets]
    public, admin = passed_sockets(pass_on(*sockets, **({} if names is None else {"LISTEN_FDNAMES": names})))
    admins = {sock.getsockname() for sock in admin}
    assert [address in admins for address in addresses] == for_admin
    assert admins | {sock.getsockname() for sock in public} == set(addresses)
    assert len(public) + len(admin) == 2
    close(*public, *admin)


@pytest.mark.parametrize(
    "variables", [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": ""}, {"LISTEN_FDS": "x"}]
)
def test_sockets_for_another_process_are_ignored(variables, pass_on):
    environ = {**pass_on(listening_socket()), **variables, "LISTEN_FDNAMES": "x", "PATH": "/bin"}
    assert passed_sockets(environ) == ([], [])
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize("kind", ["a file", "not listening", "datagrams"])
def test_descriptors_that_do_not_listen_are_refused(kind, pass_on):
    if kind == "a file":
        invalid = open(os.devnull)  # noqa: SIM115
    else:
        invalid = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "not listening" else socket.SOCK_DGRAM)
    environ = pass_on(invalid, LISTEN_FDNAMES="mine")
    with pytest.raises(OperatorError, match=rf"descriptor {FIRST} \(mine\).*ListenStream="):
        passed_sockets(environ)
