"""A process that sends a tiny request every few milliseconds. Its duration shows how long other clients wait.

Arguments: the pause in seconds and the server's address. It prints "ready" after the first response. When standard
input ends, it prints the moments and durations in seconds as JSON.
"""

import contextlib
import json
import os
import select
import socket
import sys
import time

from .wire import PROBE, Place, make_socket, request

PATIENCE_S = 60.0
RAW = request("GET", "/health", origin="https://probe.example")


def connect(place: Place) -> socket.socket:
    made = make_socket(PROBE)
    made.settimeout(PATIENCE_S)
    made.connect(("127.0.0.1", place.port))
    context = place.context()
    return context.wrap_socket(made, server_hostname="127.0.0.1") if context else made


def main(pause_s: float, place: Place) -> None:
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # measure the server and not the load of the machine
    taken: list[tuple[float, float]] = []
    connected = None
    while not select.select([sys.stdin], [], [], pause_s)[0]:
        began_s = time.monotonic()
        try:
            connected = connected or connect(place)
            connected.sendall(RAW)
            if not connected.recv(65536).startswith(b"HTTP/1.1 200"):
                raise ConnectionError
        except OSError:
            if connected is not None:
                connected.close()
                connected = None
        if not taken:
            print("ready", flush=True)
        taken.append((began_s, time.monotonic() - began_s))
    json.dump({"taken": taken}, sys.stdout)


if __name__ == "__main__":
    main(float(sys.argv[1]), Place.parse(*sys.argv[2:]))
