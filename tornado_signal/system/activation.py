"""Listening sockets passed by the service manager (sd_listen_fds(3)).

They outlive the process: during a restart, connections wait in their backlog.
"""

import contextlib
import os
import socket
from collections.abc import MutableMapping

from ..errors import OperatorError

FIRST = 3  # the first passed descriptor
ADMIN = "admin"
"""The name (`FileDescriptorName=`) of a socket for the admin listener; all others are for the public one."""


def passed_sockets(environ: MutableMapping[str, str]) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the sockets passed to this process, for the public and for the admin listener.

    The variables that describe them are removed from `environ`, so a second call returns none.
    """
    pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    public: list[socket.socket] = []
    admin: list[socket.socket] = []
    if pid != str(os.getpid()) or not count.isdecimal():
        return public, admin
    names += [""] * (int(count) - len(names))
    for descriptor, name in enumerate(names[: int(count)], FIRST):
        (admin if name == ADMIN else public).append(listening_socket(descriptor, name))
    return public, admin


def listening_socket(descriptor: int, name: str) -> socket.socket:
    with contextlib.suppress(OSError):
        passed = socket.socket(fileno=descriptor)
        if passed.type == socket.SOCK_STREAM and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            passed.set_inheritable(False)
            return passed
        passed.close()
    raise OperatorError(
        f"cannot listen on descriptor {descriptor} ({name or 'no name'}), which was passed at the start: "
        "it is not a listening stream socket; give its .socket unit ListenStream= and Accept=no"
    )
