"""Sockets that were passed to the process: found, told apart, and refused if they do not listen."""

import os
import socket

import pytest

from tornado_signal.errors import OperatorError
from tornado_signal.system import activation
from tornado_signal.system.activation import passed_sockets

FIRST = 700  # where nothing else of this process is


@pytest.fixture
def pass_on(monkeypatch):
    """A function that puts sockets where they would be passed, and makes the environment for them."""
    monkeypatch.setattr(activation, "FIRST", FIRST)
    put = []

    def passing(*sockets, **variables):
        for number, each in enumerate(sockets, FIRST):
            put.append(os.dup2(each.fileno(), number, inheritable=True))
            each.close()
        return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(sockets)), **variables}

    yield passing
    for number in put:
        try:
            os.close(number)
        except OSError:
            continue  # the test has closed it


def close(*sockets):
    for each in sockets:
        each.close()


def listening(family=socket.AF_INET):
    return socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family)


def test_passed_sockets_are_those_that_were_opened(pass_on):
    sockets = [listening(), listening(socket.AF_INET6)]
    addresses = [each.getsockname() for each in sockets]
    environ = pass_on(*sockets)
    public, admin = passed_sockets(environ)
    assert ([each.getsockname() for each in public], admin) == (addresses, [])
    assert passed_sockets(environ) == ([], [])  # who asked first has them
    for each in public:
        with socket.create_connection(each.getsockname()[:2]):
            each.accept()[0].close()
        assert not each.get_inheritable()
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
    sockets = [listening(), listening()]
    addresses = [each.getsockname() for each in sockets]
    public, admin = passed_sockets(pass_on(*sockets, **({} if names is None else {"LISTEN_FDNAMES": names})))
    admins = {each.getsockname() for each in admin}
    assert [address in admins for address in addresses] == for_admin
    assert admins | {each.getsockname() for each in public} == set(addresses)
    assert len(public) + len(admin) == 2
    close(*public, *admin)


@pytest.mark.parametrize(
    "variables", [{"LISTEN_PID": "1"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": ""}, {"LISTEN_FDS": "x"}]
)
def test_sockets_of_another_process_are_left_alone(variables, pass_on):
    environ = {**pass_on(listening()), **variables, "LISTEN_FDNAMES": "x", "PATH": "/bin"}
    assert passed_sockets(environ) == ([], [])
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize("kind", ["a file", "not listening", "datagrams"])
def test_descriptors_that_do_not_listen_are_refused(kind, pass_on):
    if kind == "a file":
        wrong = open(os.devnull)  # noqa: SIM115
    else:
        wrong = socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "not listening" else socket.SOCK_DGRAM)
    environ = pass_on(wrong, LISTEN_FDNAMES="mine")
    with pytest.raises(OperatorError, match=rf"descriptor {FIRST} \(mine\).*ListenStream="):
        passed_sockets(environ)
