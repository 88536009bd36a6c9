"""Notifications to the service manager that started the process (sd_notify(3), sd_watchdog_enabled(3))."""

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

SEND_S = 1.0  # for a service manager that is too busy to read


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
