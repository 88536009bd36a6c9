"""Small filesystems for tests of full disks."""

import contextlib
import subprocess

from .needs import require

SIZE_MIB = 64  # size of the fixture `small_disk`


@contextlib.contextmanager
def mounted(path, size_mib):
    require("root")
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@contextlib.contextmanager
def injected(process, fault):
    """Let each `fdatasync` of a process fail or wait, as strace's `inject` says."""
    require("strace")
    command = ["strace", "-f", "-p", str(process.pid), "-e", f"inject=fdatasync:{fault}", "-o", "/dev/null"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        while "attached" not in tracer.stderr.readline():
            assert tracer.poll() is None
        try:
            yield
        finally:
            tracer.terminate()


def fill_up(file):
    with file.open("wb", buffering=0) as opened, contextlib.suppress(OSError):
        while opened.write(b"\0" * (1 << 16)):
            pass
