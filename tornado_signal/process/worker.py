"""Entry point of a worker: reads its settings and socket numbers from standard input and serves."""

import logging
import os
import socket
import sys

import uvloop

from ..settings.settings import Settings
from ..stores.redis import checks
from ..system import logs
from ..system.boundary import CLEAN, guarded
from .handover import Balance, Inherited, decode
from .server import serve


def main() -> int:
    """Serve until the end of standard input, and return the exit status."""
    # Unbuffered, because `watch_pipe` reads the rest.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as source:
        line = source.readline()
    if not line.endswith(b"\n"):
        return CLEAN  # the supervisor has exited
    number, settings, public, admin, balance = decode(line)
    assert isinstance(settings, Settings)
    logs.set_up(settings.log_level, settings.log_format, number)
    os.umask(0o077)
    if number > 1:  # the first worker has logged the warnings
        logging.getLogger(checks.__name__).setLevel(logging.ERROR)
    inherited = Inherited(
        number,
        [socket.socket(fileno=descriptor) for descriptor in public],
        [socket.socket(fileno=admin)],
        sys.stdin.fileno(),
        Balance(balance, number),
    )
    return guarded(lambda: uvloop.run(serve(settings, lambda: settings, inherited)))


if __name__ == "__main__":
    sys.exit(main())
