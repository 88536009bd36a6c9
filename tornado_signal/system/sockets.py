"""The sockets that are listened on: TCP ports, and the files of Unix sockets."""

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path

from tornado.netutil import bind_sockets

from ..errors import OperatorError
from ..settings.value_types import UNIX_PREFIX


class UnixSocket(socket.socket):
    """A listening Unix socket. Closing it removes its file, unless another one has taken its place.

    An event loop that serves on it may close the descriptor behind this object's back: close it all the same.

    Args:
        path: where to make the file; one without a listener is replaced.
        mode: its permissions, set before a client can connect, whatever the umask.

    Raises:
        OSError: it cannot be made there, or another program listens there.
    """

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._path = path
        self._file: tuple[int, ...] | None = None
        try:
            remove_stale(path)
            self.bind(os.fspath(path))
            self._file = identity(path)
            os.chmod(path, mode)
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


def identity(path: Path) -> tuple[int, ...]:
    """What tells a socket's file from another one that has taken its place, be it with the same inode."""
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns


def remove_stale(path: Path) -> None:
    """Remove the socket of a server that was killed.

    Raises:
        OSError: it is in use, or is no socket, or cannot be removed.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EADDRINUSE, "there is a file that is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
            client.connect(os.fspath(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    except BlockingIOError:
        pass  # its backlog is full
    raise OSError(errno.EADDRINUSE, "another server listens there")


def open_sockets(address: str, port: int, flag: str, mode: int = 0o600) -> list[socket.socket]:
    """Bind and listen at an IP address, a host name, or `unix:` and a path, whose permissions are `mode`.

    Port 0 picks a free one; `flag` is the setting to name when the port cannot be had.

    Raises:
        OperatorError: another program has it, it is not this machine's, or this user may not have it.
    """
    where, mend = f"{address} port {port}", "stop what has it"
    try:
        if not address.startswith(UNIX_PREFIX):
            return bind_sockets(port, address)
        where, flag = address, "--address"
        return [UnixSocket(Path(address.removeprefix(UNIX_PREFIX)), mode)]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileNotFoundError):
            mend = "make its directory"
        raise OperatorError(f"cannot listen on {where}: {reason}; {mend}, or choose another {flag}") from error


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can connect to a listening socket."""
    return listening.family == socket.AF_UNIX or ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def url(listening: socket.socket, scheme: str) -> str:
    """Where a listening socket can be reached."""
    if listening.family == socket.AF_UNIX:
        return UNIX_PREFIX + str(listening.getsockname())
    host, port = listening.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
