"""The service manager that started the process: its sockets, and notifications to it.

Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3). Passed sockets outlive the process: during a restart,
connections wait in their backlog.
"""

import contextlib
import logging
import os
import socket
import time
from collections.abc import MutableMapping

from ..errors import OperatorError

log = logging.getLogger(__name__)

SEND_S = 1.0  # limit for a service manager that is too busy to read
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


class Notifier:
    """Reports the state of the process to the service manager, if there is one.

    Variables for this process only are removed from `environ`.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.listening = bool(address)  # whether there is a service manager
        # The longest pause that the watchdog allows between two `alive`, or None without a watchdog.
        self.watchdog_s: float | None = None
        microseconds = environ.pop("WATCHDOG_USEC", "")
        # The variable may be inherited and meant for another process.
        for_us = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if self.listening and for_us and microseconds.isdecimal() and int(microseconds):
            self.watchdog_s = int(microseconds) / 1_000_000

    def pause_s(self, most_s: float) -> float:
        """Return the pause before the next `alive`: half of what the watchdog allows, at most `most_s`."""
        return min(most_s, self.watchdog_s / 2) if self.watchdog_s else most_s

    def ready(self, status: str) -> None:
        """Report that the server is ready, also at the end of a reload."""
        self._notify("READY=1", f"STATUS={status}")

    def alive(self, status: str) -> None:
        """Report that the server is alive, which resets the watchdog."""
        self._notify("WATCHDOG=1", f"STATUS={status}")

    def reloading(self) -> None:
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        self._notify("STOPPING=1", f"STATUS={status}")

    def _notify(self, *lines: str) -> None:
        if not self.listening:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_S)
            try:
                sender.sendto("\n".join(lines).encode(), self._address)
            except OSError as error:
                log.warning("cannot notify the service manager of %s: %s", lines[0], error)
