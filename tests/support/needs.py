"""Requirements of tests on the machine. A test without them is skipped, or fails under `tests/run all`."""

import functools
import importlib.util
import os
import shutil
import subprocess

import pytest

from .paths import TESTS

# The Debian package of each program.
LINES = [line.split() for line in (TESTS / "debian-packages.txt").read_text().splitlines() if line[0] != "#"]
PACKAGES = {program: package for program, package, *_ in LINES}


@functools.cache
def missing(need: str) -> str | None:
    """Return why a need is not met, or None if it is met.

    Args:
        need: a program or file of debian-packages.txt, `root` for the right to mount, `namespace` for the right to
            create a network namespace, or the name of an optional Python module.
    """
    if need == "root":
        may_mount = os.geteuid() == 0 and _succeeds("unshare", "--mount", "true")
        return None if may_mount else "needs root and the right to mount"
    if need == "namespace":
        return None if _succeeds("unshare", "-n" if os.geteuid() == 0 else "-rn", "true") else "needs unshare -rn"
    if need == "node":
        return None if shutil.which(need) else "needs Node.js 20.19 or newer (extra test-all)"
    if need in PACKAGES:
        located = os.path.exists(need) if need.startswith("/") else shutil.which(need)
        return None if located else f"needs {need} (Debian package {PACKAGES[need]})"
    return None if importlib.util.find_spec(need) else f"needs the Python module {need} (extra test-all)"


def require(*needs: str) -> None:
    """Skip the current test unless all needs are met."""
    for need in needs:
        if reason := missing(need):
            pytest.skip(reason)


def _succeeds(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
