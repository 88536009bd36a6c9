"""Unix sockets: their files made, replaced, refused and removed, and everything served over them."""

import contextlib
import errno
import http.client
import os
import socket
import stat

import pytest
from support.command import BOUND_S, ORIGIN, call

from tornado_signal.errors import OperatorError
from tornado_signal.system.sockets import UnixSocket, bind_sockets, open_sockets, url


@pytest.fixture
def path(tmp_path):
    return tmp_path / "signal.sock"


@pytest.fixture
def open_one(path):
    """Return a function that listens on a Unix socket, which is closed after the test."""
    opened = []

    def opening(mode=0o600):
        opened.extend(open_sockets([f"unix:{path}"], 0, "--port", mode))
        return opened[-1]

    yield opening
    for each in opened:
        each.close()


def test_link_local_address_without_an_interface_gets_fitting_advice(monkeypatch):
    def refuse(port, address, dual_stack):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("tornado_signal.system.sockets.bind_sockets", refuse)
    with pytest.raises(OperatorError, match="add its interface, such as fe80::1%eth0, or choose another --address"):
        open_sockets(["fe80::1"], 0, "--port")


@pytest.mark.parametrize("addresses", [["127.0.0.2", "127.0.0.1"], ["127.0.0.2", "localhost"], ["::"]])
def test_address_that_is_in_use_leaves_no_socket_open(addresses):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OperatorError, match=r"Address already in use; stop the program that uses it,"):
            open_sockets(addresses, taken.getsockname()[1], "--port")
        assert os.listdir("/proc/self/fd") == before


def test_picked_port_that_is_in_use_at_a_later_address_is_picked_again(monkeypatch):
    refused = []

    def bind(port, address, dual_stack):
        if address == "127.0.0.2" and not refused:
            refused.append(port)
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return bind_sockets(port, address)

    monkeypatch.setattr("tornado_signal.system.sockets.bind_sockets", bind)
    opened = open_sockets(["127.0.0.1", "127.0.0.2"], 0, "--port")
    first, second = (each.getsockname()[1] for each in opened)
    for each in opened:
        each.close()
    assert refused
    assert first == second


def answering(server, *hosts):
    """Return those addresses where the server responds. Another test's server can have its port at another address."""
    port, code = server.port, server.offer()
    answers = []
    for host in hosts:
        client = http.client.HTTPConnection(host, port, timeout=BOUND_S)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(client):
            client.request("GET", "/lobby/sessions", headers={"Origin": ORIGIN})
            if code.encode() in client.getresponse().read():
                answers.append(host)
    return answers


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("::", ["127.0.0.1", "127.0.0.2", "::1"]),
        ("0.0.0.0,::", ["127.0.0.1", "127.0.0.2", "::1"]),
        ("::, 127.0.0.1", ["127.0.0.1", "::1"]),
        ("127.0.0.2,::1", ["127.0.0.2", "::1"]),
        ("127.0.0.1,127.0.0.1", ["127.0.0.1"]),
    ],
)
def test_each_address_of_a_list_is_listened_on_at_one_port(addresses, expected, start):
    server = start("--address", addresses)
    assert answering(server, "127.0.0.1", "127.0.0.2", "::1") == expected
    server.stop()
    named = [line.rpartition("listening on ")[2] for line in server.log if "listening on http" in line]
    assert len(named) == len(dict.fromkeys(addresses.replace(" ", "").split(",")))
    assert len({url.rpartition(":")[2] for url in named}) == 1


def test_check_names_each_address_and_a_failed_start_leaves_no_file(path, tmp_path):
    checked = call("serve", "--check", "--port", 0, "--address", f"unix:{path},127.0.0.1", cwd=tmp_path)
    assert (checked.returncode, checked.stderr, path.exists()) == (0, "", False)
    assert f"\nlistener: unix:{path}\nlistener: http://127.0.0.1:" in checked.stdout
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for addresses, admin_port, reason in (
            (f"unix:{path},192.0.2.1", "off", "cannot listen on 192.0.2.1"),
            (f"unix:{path}", taken.getsockname()[1], f"port {taken.getsockname()[1]}"),
        ):
            refused = call("serve", "--port", 0, "--address", addresses, "--admin-port", admin_port, cwd=tmp_path)
            assert (refused.returncode, reason in refused.stderr, path.exists()) == (1, True, False)


@pytest.mark.parametrize(("mode", "umask"), [(0o600, 0o000), (0o660, 0o022), (0o666, 0o777)])
def test_socket_file_has_the_configured_mode_for_every_umask(mode, umask, open_one, path):
    before = os.umask(umask)
    try:
        listening = open_one(mode)
    finally:
        os.umask(before)
    found = path.stat().st_mode
    assert (stat.S_ISSOCK(found), stat.S_IMODE(found)) == (True, mode)
    assert url(listening, "http") == f"unix:{path}"
    assert not listening.getblocking()


def test_no_connection_is_accepted_before_the_mode_is_set(open_one, path, monkeypatch):
    tried = []

    def chmod(name, mode):
        with socket.socket(socket.AF_UNIX) as client:
            tried.append(client.connect_ex(str(path)))
        before(name, mode)

    before = os.chmod
    monkeypatch.setattr(os, "chmod", chmod)
    open_one()
    assert tried == [111]  # ECONNREFUSED


def test_stale_socket_file_is_replaced(open_one, path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    before = path.stat()
    open_one()
    assert path.stat() != before
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def refuse(open_one, path, reason):
    with pytest.raises(OperatorError) as raised:
        open_one()
    assert str(raised.value) == f"cannot listen on unix:{path}: {reason}, or choose another --address"


def test_socket_in_use_is_refused_also_when_its_queue_is_full(open_one, path):
    in_use = "another server listens there; stop the program that uses it"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        before = path.stat().st_ino
        refuse(open_one, path, in_use)
        with contextlib.ExitStack() as waiting:
            while True:
                client = waiting.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                try:
                    client.connect(str(path))
                except BlockingIOError:
                    break
            refuse(open_one, path, in_use)
        assert path.stat().st_ino == before


@pytest.mark.parametrize("make", ["touch", "mkdir", "symlink_to"])
def test_file_that_is_not_a_socket_is_refused_and_kept(make, open_one, path):
    getattr(path, make)(*["elsewhere"] if make == "symlink_to" else [])
    before = path.lstat()
    refuse(open_one, path, "a file exists there that is not a socket; stop the program that uses it")
    assert path.lstat() == before


def test_datagram_socket_and_missing_directory_are_refused(open_one, path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))
        refuse(open_one, path, "Protocol wrong type for socket; stop the program that uses it")
        assert path.exists()
    with pytest.raises(OperatorError, match="No such file or directory; create its directory, or choose another --"):
        open_sockets([f"unix:{path.parent}/missing/signal.sock"], 0, "--port")


def test_closing_removes_only_its_own_socket_file(open_one, path):
    first = open_one()
    first.close()
    assert not path.exists()
    first.close()
    second = open_one()
    path.unlink()
    open_one()
    second.close()
    assert path.exists()


def test_link_in_place_of_the_new_socket_is_not_followed(path, tmp_path):
    other = tmp_path / "other"
    other.touch(mode=0o600)

    class Replaced(UnixSocket):
        def bind(self, address):
            super().bind(address)
            os.unlink(address)
            os.symlink(other, address)

    with pytest.raises(OSError, match="replaced"):
        Replaced(path, 0o666)
    assert stat.S_IMODE(other.stat().st_mode) == 0o600


def test_failed_chmod_leaves_no_socket_file(open_one, path, monkeypatch):
    def chmod(name, mode):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", chmod)
    refuse(open_one, path, "Operation not permitted; allow this user to create it")
    assert not path.exists()


def test_unix_socket_beside_a_port_has_its_mode_and_goes_with_the_server(start, path):
    server = start("--address", "127.0.0.1,unix:signal.sock", "--socket-mode", "666")
    for number in range(20):
        server.offer(offer=f"{number:0200000}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(BOUND_S)
        client.connect(str(path))
        client.sendall(f"GET /lobby/sessions HTTP/1.0\r\nHost: a\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
        with client.makefile("rb") as response:
            shown = response.read()
    assert (shown.startswith(b"HTTP/1.1 200 "), len(shown) > 4_000_000, shown.endswith(b"]}")) == (True, True, True)
    assert server.stop() == 0
    assert not path.exists()
    assert any(line.endswith("listening on unix:signal.sock\n") for line in server.log)
    assert [line for line in server.log if " INFO " not in line] == []
