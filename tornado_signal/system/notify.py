"""Notifications to the service manager that started the process (sd_notify(3), sd_watchdog_enabled(3))."""

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

SEND_S = 1.0  # for a service manager that is too busy to read


class Notifier:
    """Notifies the service manager of the state of the process; does nothing without one.

    Args:
        environ: the environment; what is meant for this process alone is taken out of it.

    Attributes:
        listening: whether there is a service manager.
        watchdog_s: how often the manager has to hear that the process is alive; None if it does not ask for that.
    """

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.listening = bool(address)
        self.watchdog_s: float | None = None
        microseconds = environ.pop("WATCHDOG_USEC", "")
        # A variable for another process was inherited.
        asked = environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if self.listening and asked and microseconds.isdecimal() and int(microseconds):
            self.watchdog_s = int(microseconds) / 1_000_000

    def pause_s(self, most_s: float) -> float:
        """How long to wait before the next `alive`: half of what the watchdog allows, at most `most_s`."""
        return min(most_s, self.watchdog_s / 2) if self.watchdog_s else most_s

    def ready(self, status: str) -> None:
        """The server is ready; also at the end of a reload."""
        self._notify("READY=1", f"STATUS={status}")

    def alive(self, status: str) -> None:
        """The server is alive: resets the watchdog."""
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
                log.warning("cannot tell the service manager %s: %s", lines[0], error)
