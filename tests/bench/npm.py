"""The packages of an npm lock file, installed once into a folder that git ignores."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from .processes import ROOT, BenchError

CACHE = ROOT / ".cache"  # ignored by git
NAMES = ("package.json", "package-lock.json")
ATTEMPTS, PAUSE_S = 4, 5  # for npm, which needs the network


def node_modules(source: Path) -> Path:
    """Return the folder with the packages of a package-lock.json. They are installed once and reused by later runs."""
    content = b"".join((source / name).read_bytes() for name in NAMES)
    kept = CACHE / f"npm-{hashlib.sha256(content).hexdigest()[:16]}"
    if not kept.exists():
        CACHE.mkdir(exist_ok=True)
        with (CACHE / "npm.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if kept.exists():  # another run was faster
                return kept / "node_modules"
            fresh = Path(folder, "packages")
            fresh.mkdir()
            for name in NAMES:
                shutil.copy(source / name, fresh)
            install(fresh, "ci")
            fresh.rename(kept)
    return kept / "node_modules"


def install(folder: Path, command: str = "install") -> None:
    """Install the packages of a package.json, or with `ci` those of its lock file."""
    command_line = ["npm", command, "--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(CACHE / "npm")]
    for attempt in range(1, ATTEMPTS + 1):
        done = subprocess.run(command_line, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if attempt < ATTEMPTS:
            time.sleep(PAUSE_S)
    raise BenchError(f"npm cannot install the packages of {folder}:\n{done.stdout}{done.stderr}")
