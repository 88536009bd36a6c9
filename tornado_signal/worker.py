"""One of the servers that share a port, as `supervisor` starts it: told on standard input what to serve."""

import logging
import os
import pickle
import socket
import sys

import uvloop

from .__main__ import CLEAN, guarded
from .server import Inherited, serve
from .settings.settings import Settings
from .stores.redis import checks
from .system import logs


def main() -> int:
    """Serve what standard input says until that ends; the exit status."""
    try:
        number, settings, public, admin = pickle.load(sys.stdin.buffer)
    except EOFError:
        return CLEAN  # the supervisor has ended meanwhile
    assert isinstance(settings, Settings)
    logs.set_up(settings.log_level, settings.log_format, worker=number)
    os.umask(0o077)
    if number > 1:  # what the first has warned of
        logging.getLogger(checks.__name__).setLevel(logging.ERROR)
    inherited = Inherited(
        [socket.socket(fileno=descriptor) for descriptor in public], [socket.socket(fileno=admin)], sys.stdin.fileno()
    )
    return guarded(lambda: uvloop.run(serve(settings, inherited)))


if __name__ == "__main__":
    sys.exit(main())
