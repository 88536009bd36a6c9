"""Sockets passed to the process: they are recognized, distinguished, and refused if they do not listen."""

import os
import socket

import pytest

from tornado_signal.errors import OperatorError
from tornado_signal.system import service_manager
from tornado_signal.system.service_manager import passed_sockets

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
    ("names", "for_admin"),
    [
        ("tornado-signal.socket:admin", [False, True]),
        ("admin:admin", [True, True]),
        ("admin", [True, False]),
        ("", [False, False]),
        ("administrator:Admin", [False, False]),
        (None, [False, False]),
    ],
)
def test_sockets_named_admin_are_the_admin_listeners(names, for_admin, pass_on):
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
