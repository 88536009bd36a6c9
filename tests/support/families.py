"""Families of slow tests that depend on few files. `.ci/run` leaves out those whose files have not changed."""

import hashlib
import json
from pathlib import Path

from .checkout import run
from .paths import ROOT, TESTS

PASSED = TESTS / "families.json"
"""The hash of each family's files when its tests last passed."""
COMMON = [
    "setup.cfg",
    "pyproject.toml",
    "clients/python/pyproject.toml",
    "tests/debian-packages.txt",
    "tests/environment.sh",
    "tests/support/families.py",
]
# The tests of each family, and the other files that they depend on, as patterns of git.
FAMILIES = {
    "release": (
        "system/test_artefacts.py system/test_release_workflow.py process/test_packaging.py",
        ".github .git* CONTRIBUTING.md LICENSE tests/release-* tests/support/npm_package.py tests/support/pythons.py "
        "clients/python/*.md tornado_signal/__init__.py tornado_signal/web/package.json",
    ),
    "generated clients": (
        "system/test_generated_clients.py",
        "tests/generated tornado_signal/http/openapi.py tornado_signal/service/*s.py",
    ),
    "chart": (
        "system/test_kubernetes.py",
        "examples/kubernetes docs/kubernetes.md tests/support/helm.py tornado_signal/settings",
    ),
    "containers": (
        "system/test_containers.py",
        "Containerfile .dockerignore compose*.yaml examples/containers docs/containers.md tests/support/containers.py "
        "tornado_signal/__main__.py tornado_signal/settings",
    ),
    "systemd": (
        "system/test_systemd_real.py",
        "systemd docs/systemd.md tests/support/machine.py tests/support/service_manager.py tornado_signal/process "
        "tornado_signal/system",
    ),
}


def tests_of(family: str) -> set[Path]:
    """Return the files with the tests of a family."""
    return {TESTS / name for name in FAMILIES[family][0].split()}


def hashes() -> dict[str, str]:
    """Return the hash of each family's files as they are now, and of which kinds of files the packages consist."""
    tracked = run("git", "-C", ROOT, "ls-files", "-z", "--", "tornado_signal", "clients").split("\0")
    kinds = sorted({f"{Path(name).parent}/*{Path(name).suffix}" for name in tracked})
    return {family: _hash(family, kinds) for family in FAMILIES}


def _hash(family: str, kinds: list[str]) -> str:
    tests, others = FAMILIES[family]
    patterns = [*COMMON, *(f"tests/{name}" for name in tests.split()), *others.split()]
    names = run("git", "-C", ROOT, "ls-files", "-z", "--", *patterns)
    digest = hashlib.sha256("\n".join(kinds).encode())
    for name in sorted({*names.split("\0")} - {""}):
        digest.update(f"{name}\0".encode() + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return digest.hexdigest()


def unchanged() -> set[str]:
    """Return the families whose files have the hashes of the last time that they passed."""
    passed = json.loads(PASSED.read_text()) if PASSED.exists() else {}
    return {family for family, each in hashes().items() if passed.get(family) == each}


def record_passed() -> None:
    """Write the current hashes, because the tests of all families that were not left out have passed."""
    PASSED.write_text(json.dumps(hashes(), indent=1) + "\n")
