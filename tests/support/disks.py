"""Small filesystems that really fill up, for the tests. They need root, as CI has."""

import contextlib
import subprocess

from .needs import require

SIZE_MIB = 64  # of the fixture `small_disk`


@contextlib.contextmanager
def mounted(path, size_mib):
    """A filesystem of its own with little room, at a place that is made; its path."""
    require("root")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill_up(file):
    """Take all the room that there is, by a file."""
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while opened.write(b"\0" * (1 << 16)):
            pass
