"""The npm package as applications use it: packed, and installed next to other npm packages."""

import os
import subprocess
from pathlib import Path

from bench import npm

from .needs import require
from .paths import ROOT, TESTS
from .waiting import output, run_command

WEB = ROOT / "tornado_signal" / "web"


def node_modules(folder: Path = TESTS / "generated") -> Path:
    """Return the folder with the packages of the package-lock.json in a folder."""
    require("node")
    return npm.node_modules(folder)


def pack(directory: Path) -> Path:
    command = ["npm", "pack", "--silent", "--pack-destination", directory]
    return directory / output(run_command(*command, cwd=WEB)).strip()


def install(directory: Path) -> Path:
    """Create an application folder in `directory`, with the package and all packages of package-lock.json."""
    (directory / "node_modules").symlink_to(node_modules())
    installed = directory / "application" / "node_modules" / "tornado-signal"
    installed.mkdir(parents=True)
    extract = ["tar", "--extract", "--strip-components=1", "--directory", installed, "--file", pack(directory)]
    subprocess.run(extract, check=True)
    return directory / "application"


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run an npm program that must succeed without error output, and return its output."""
    path = f"{node_modules()}/.bin:{os.environ['PATH']}"
    environ = os.environ | {"PATH": path} | variables
    done = run_command(*command, cwd=cwd, env=environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout
