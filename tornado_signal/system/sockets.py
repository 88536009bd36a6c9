"""Listening sockets: TCP ports and Unix sockets."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

from ..errors import OperatorError
from ..settings.value_types import UNIX_PREFIX

PICKS = 10  # further attempts to find a port that is free at all addresses


class UnixSocket(socket.socket):
    """A listening Unix socket. Closing it removes its file, unless another file has replaced it.

    An event loop that serves on it may have closed the descriptor already. Close this object nevertheless. A file
    without a listener is replaced. The new one has the permissions `mode`, regardless of the umask, before a client can
    connect.
    """

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self.setblocking(False)
        self._path = path
        self._file: tuple[int, ...] | None = None
        try:
            remove_stale(path)
            self.bind(os.fspath(path))
            self._file = identity(path)
            set_mode(path, mode)
            self.listen()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None and identity(self._path) == self._file:
                os.unlink(self._path)
        self._file = None
        super().close()


def set_mode(path: Path, mode: int) -> None:
    """Set the permissions of a socket file. A link that another user has put in its place is not followed."""
    if not hasattr(os, "O_PATH"):  # such as macOS
        os.chmod(path, mode, follow_symlinks=False)
        return
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.EADDRINUSE, "another program has replaced the socket file")
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


def identity(path: Path) -> tuple[int, ...]:
    """Return what distinguishes a file from a later one at the same path, even with the same inode."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def remove_stale(path: Path) -> None:
    """Remove the socket file of a killed server."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EADDRINUSE, "a file exists there that is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            client.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    except BlockingIOError:
        pass  # its backlog is full
    raise OSError(errno.EADDRINUSE, "another server listens there")


def open_sockets(addresses: Sequence[str], port: int, flag: str, mode: int = 0o600) -> list[socket.socket]:
    """Bind and listen. `::` also accepts IPv4, unless an IPv4 address or a host name is listed as well.

    An address is an IP address, a host name, or `unix:` and a path. Port 0 picks one that is free at all addresses.
    Errors name the setting `flag`. `mode` has the permissions of a Unix socket.
    """
    for _ in range(PICKS if port == 0 else 0):
        try:
            return _open_all(addresses, port, flag, mode)
        except OperatorError as error:
            # The port that is free at the first address can be in use at another one.
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
    return _open_all(addresses, port, flag, mode)


def _open_all(addresses: Sequence[str], port: int, flag: str, mode: int) -> list[socket.socket]:
    opened: list[socket.socket] = []
    dual_stack = all(address.startswith(UNIX_PREFIX) or ":" in address for address in addresses)
    with contextlib.ExitStack() as stack:
        for address in dict.fromkeys(addresses):
            sockets = _open_sockets(address, port, flag, mode, dual_stack)
            for listening in sockets:
                stack.callback(listening.close)
            if not address.startswith(UNIX_PREFIX):
                port = sockets[0].getsockname()[1]
            opened += sockets
        stack.pop_all()
    return opened


def bind_sockets(port: int, address: str, dual_stack: bool = False) -> list[socket.socket]:
    """Listen at the addresses of a host, all at one port. Unlike Tornado's function, close all sockets on an error.

    `::1` is ignored if it cannot be used and an IPv4 address works, since containers can lack IPv6.
    """
    opened: list[socket.socket] = []
    found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as stack:
        for family, _, _, _, (host, _, *scope) in sorted(found, key=lambda each: each[0]):  # IPv4 first
            where = (host, opened[0].getsockname()[1] if opened else port, *scope)
            try:
                listening = socket.create_server(where, family=family, dualstack_ipv6=dual_stack)
            except OSError as error:
                if opened and host == "::1" and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue
                raise
            stack.callback(listening.close)
            listening.setblocking(False)
            opened.append(listening)
        stack.pop_all()
    return opened


def _open_sockets(address: str, port: int, flag: str, mode: int, dual_stack: bool) -> list[socket.socket]:
    where, remedy = f"{address} port {port}", "stop the program that uses it"
    try:
        if address.startswith(UNIX_PREFIX):
            where, flag = address, "--address"
            return [UnixSocket(Path(address.removeprefix(UNIX_PREFIX)), mode)]
        return bind_sockets(port, address, dual_stack and is_unspecified(address))
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while attempting to bind")[0]
        if isinstance(error, FileNotFoundError):
            remedy = "create its directory"
        elif isinstance(error, PermissionError):
            remedy = "allow this user to create it"
            if flag != "--address":
                remedy = "ports under 1024 need root or the capability CAP_NET_BIND_SERVICE; grant it"
        elif isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            remedy = "use an address of this machine, such as 127.0.0.1 or 0.0.0.0"
            flag = flag.replace("port", "address")
        elif error.errno == errno.EINVAL and re.match("fe[89ab].:", address, re.IGNORECASE) and "%" not in address:
            remedy = f"add its interface, such as {address}%eth0"
            flag = flag.replace("port", "address")
        raise OperatorError(f"cannot listen on {where}: {reason}; {remedy}, or choose another {flag}") from error


def is_unspecified(address: str) -> bool:
    """Return whether an address is `::`, however it is written."""
    return ":" in address and int(ipaddress.IPv6Address(address)) == 0


def is_local(listening: socket.socket) -> bool:
    """Return whether only this machine can connect to a listening socket."""
    return listening.family == socket.AF_UNIX or ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def url(listening: socket.socket, scheme: str) -> str:
    if listening.family == socket.AF_UNIX:
        return UNIX_PREFIX + str(listening.getsockname())
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
