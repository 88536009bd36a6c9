"""The CPythons of this machine, and the requirements of the package for each."""

import configparser
import fcntl
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from . import npm_package
from .checkout import copy_checkout, new_repository
from .command import COMMAND
from .documents import all_blocks
from .paths import ROOT
from .waiting import output, run_command

BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
BINDINGS = ("plyvel", "plyvel-next")
CLIENT = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text())
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PROMISED = SpecifierSet(SETUP["options"]["python_requires"])
STATED = json.loads((npm_package.WEB / "package.json").read_text())["version"]
RELEASING = all_blocks((ROOT / "CONTRIBUTING.md").read_text())
NAME = re.compile(r"python3(\.\d+)?")
# Prints nothing for other implementations, prereleases and free-threaded builds, for which no binding has wheels.
ASK = """
import json, platform, sys, sysconfig
cpython = platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if cpython and sys.version_info.releaselevel == "final":
    version = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps([version, sys._base_executable, platform.machine()]))
"""


class Python(NamedTuple):
    """A CPython. `path` is its executable outside virtual environments, `machine` is as in environment markers."""

    version: str
    path: str
    machine: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def binding(self) -> str:
        (name,) = {each.name for each in required(self.minor, self.machine)} & {*BINDINGS}
        return name

    def installed(self, base: Path) -> Path:
        """Return the command of this Python, installed from the wheel of a release. `base` is as for `once`."""
        if self.version == platform.python_version():
            return COMMAND

        def make(environment: Path) -> None:
            install(environment, *release(base).glob("dist/tornado_signal-*.whl"), python=self.path)

        return once(base, f"with-{self.version}", make) / "bin/tornado-signal"


def install(path: Path, *what: str | Path, python: str = sys.executable) -> Path:
    """Create an environment with packages, and return the folder of its commands.

    The tests' pip installs them, which is faster than adding pip to the environment.
    """
    do(python, "-m", "venv", "--without-pip", path)
    pip = [sys.executable, "-m", "pip", "--python", path / "bin/python", "--disable-pip-version-check"]
    do(*pip, "install", "--quiet", "--no-compile", *what)
    return path / "bin"


def download(folder: Path) -> None:
    """Download what an installation of a checkout for the Python of Debian needs from PyPI."""
    pip = [sys.executable, "-m", "pip", "--python", "/usr/bin/python3", "--disable-pip-version-check", "download"]
    extras = SETUP["options.extras_require"]
    wanted = "".join((SETUP["options"]["install_requires"], extras["auth"], extras["redis"]))
    do(*pip, "--quiet", "--dest", folder, *BUILD, *wanted.strip().splitlines())


def do(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    return output(run_command(*command, cwd=cwd, env=environ | variables, stderr=subprocess.STDOUT))


def required(minor: str, machine: str) -> list[Requirement]:
    """Return the requirements of the server for a Python on Linux, without markers."""
    place = {"python_version": minor, "platform_machine": machine, "sys_platform": "linux"}
    requirements = []
    for requirement in map(Requirement, SETUP["options"]["install_requires"].strip().splitlines()):
        if requirement.marker is None or requirement.marker.evaluate(place):
            requirement.marker = None
            requirements.append(requirement)
    return requirements


def once(base: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that the first worker creates for all. `base` is `tmp_path_factory.getbasetemp()`."""
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(place, ignore_errors=True)  # a previous worker may have failed
            make(place)
            made.touch()
    return place


def release(base: Path) -> Path:
    """Return a copy of the checkout where the commands of CONTRIBUTING.md made a release. `base` is as for `once`."""

    def make(source: Path) -> None:
        copy_checkout(source)
        new_repository(source)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        me = {"GIT_COMMITTER_NAME": "Tester", "GIT_COMMITTER_EMAIL": "tester@example.invalid"}
        do("bash", "-ec", RELEASING[-1][1].replace("0.2.0", STATED), cwd=source, PATH=path, **me)

    return once(base, "release", make)


@functools.cache
def installed() -> list[Python]:
    """Find the supported CPythons, the newest of each minor version, and return them in order."""
    pyenv = shutil.which("pyenv")
    roots = {Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")}
    roots |= {Path(pyenv).resolve().parents[1]} if pyenv else set()
    folders = [Path(each) for each in (*os.get_exec_path(), "/usr/bin", "/usr/local/bin")]
    folders = [each for each in folders if each.parent not in roots]  # without pyenv's shims
    folders += [each / "bin" for root in roots for each in root.glob("versions/*")]
    paths = {path.resolve() for folder in folders for path in folder.glob("python3*") if NAME.fullmatch(path.name)}
    pythons = {}
    for path in sorted(paths):
        process = run_command(path, "-I", "-c", ASK)
        if process.returncode == 0 and process.stdout:
            python = Python(*json.loads(process.stdout))
            if PROMISED.contains(python.version):
                pythons[python.version] = python
    ordered = sorted(pythons.values(), key=lambda python: Version(python.version))
    return list({python.minor: python for python in ordered}.values())
