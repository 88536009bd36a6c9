"""The package for npm as applications have it: packed, and installed beside what the tests install from npm."""

import os
import subprocess
from pathlib import Path

from bench import npm

from .paths import ROOT, TESTS

WEB = ROOT / "tornado_signal" / "web"


def pack(directory: Path) -> Path:
    """The file that `npm pack` makes of the package's folder, in another one."""
    command = ["npm", "pack", "--silent", "--pack-destination", directory]
    done = subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=True)
    return directory / done.stdout.strip()


def install(directory: Path) -> Path:
    """A folder inside another one where the package is found, and all packages of package-lock.json."""
    (directory / "node_modules").symlink_to(npm.node_modules(TESTS / "generated"))
    installed = directory / "application" / "node_modules" / "tornado-signal"
    installed.mkdir(parents=True)
    extract = ["tar", "--extract", "--strip-components=1", "--directory", installed, "--file", pack(directory)]
    subprocess.run(extract, check=True)
    return directory / "application"


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a program of npm's to its successful end, without a complaint; what it printed."""
    path = f"{npm.node_modules(TESTS / 'generated')}/.bin:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path} | variables
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
