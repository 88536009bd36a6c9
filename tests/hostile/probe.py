"""A tiny request on a kept connection every few milliseconds, as a process: how long it takes is how long others wait.

It begins at once and ends when its standard input does; then it prints moments and seconds, as JSON.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time

from .wire import PROBE, Place, make_socket, request

PAUSE_S = 0.012  # its rate is below that of an address
PATIENCE_S = 60.0
RAW = request("GET", "/health", origin="https://probe.example")


def connect(place: Place) -> socket.socket:
    made = make_socket(PROBE)
    made.settimeout(PATIENCE_S)
    made.connect(("127.0.0.1", place.port))
    context = place.context()
    return context.wrap_socket(made, server_hostname="127.0.0.1") if context else made


def main(place: Place) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # it measures the server, and not how busy the machine is
    taken: list[tuple[float, float]] = []
    broken = 0
    connected = None
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began_s = time.monotonic()
        try:
            connected = connected or connect(place)
            connected.sendall(RAW)
            if not connected.recv(65536).startswith(b"HTTP/1.1 200"):
                raise ConnectionError
        except OSError:
            broken += 1
            if connected is not None:
                connected.close()
                connected = None
        taken.append((began_s, time.monotonic() - began_s))
    json.dump({"taken": taken, "broken": broken}, sys.stdout)


if __name__ == "__main__":
    main(Place.given(*sys.argv[1:]))
