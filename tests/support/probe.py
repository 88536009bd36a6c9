"""Reports what the service's sandbox permits. It is started instead of the server."""

import json
import mmap
import os
from pathlib import Path

DEPTH = 4


def runs_what_it_writes():
    try:
        return bool(mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC))
    except OSError:
        return False


def writable(top="/"):
    """Yield the topmost writable directories."""
    for path, names, _ in os.walk(top):
        is_writable = path not in ("/proc", "/sys") and os.access(path, os.W_OK)
        if is_writable:
            yield path
        if is_writable or path in ("/proc", "/sys") or path.count("/") == DEPTH:
            names.clear()


for place in (".", "/tmp", "/var/tmp"):
    Path(place, "probed").write_text("here")
report = {"user": os.getuid(), "home": os.getcwd(), "writable": [*writable()], "runs": runs_what_it_writes()}
print(json.dumps(report))
