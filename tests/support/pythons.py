"""The CPythons of this machine, and what the package promises to each."""

import configparser
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from .checkout import copy_checkout
from .once import once
from .paths import ROOT
from .readme import blocks

BINDINGS = ("plyvel", "plyvel-next")
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
PROMISED = SpecifierSet(SETUP["options"]["python_requires"])
NAME = re.compile(r"python3(\.\d+)?")
# Only a released CPython answers, and not a free-threaded one, for which no binding has wheels.
ASK = """
import importlib.util, json, platform, sys, sysconfig
cpython = platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if cpython and sys.version_info.releaselevel == "final":
    has_pip = importlib.util.find_spec("ensurepip") is not None
    version = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps([version, sys._base_executable, platform.machine(), has_pip]))
"""


class Python(NamedTuple):
    """A CPython.

    Attributes:
        version: all of it.
        path: its executable; not that of an environment made with it.
        machine: what it runs on, as environment markers call it.
        has_pip: whether environments made with it have a pip; on Debian that is a package of its own.
    """

    version: str
    path: str
    machine: str
    has_pip: bool

    @property
    def minor(self) -> str:
        """The version that wheels are made for."""
        return ".".join(self.version.split(".")[:2])

    @property
    def binding(self) -> str:
        """The binding of LevelDB that the package chooses for it."""
        (name,) = {each.name for each in required(self.minor, self.machine)} & {*BINDINGS}
        return name

    def environment(self, path: Path) -> None:
        """Make an empty environment, with or without a pip in it."""
        options = [] if self.has_pip else ["--without-pip"]
        do(self.path, "-m", "venv", *options, path)

    def installed(self, base: Path) -> Path:
        """The command of the package, installed as the README says from a copy of the checkout, once for all tests.

        Args:
            base: `tmp_path_factory.getbasetemp()`.
        """

        def make(checkout: Path) -> None:
            copy_checkout(checkout)
            if self.has_pip:
                (_, script), *_ = blocks("Try it in one minute", "sh")
                *install, _ = script.split(" && ")
                says = " && ".join(install).replace("python3 ", shlex.quote(self.path) + " ", 1)
                do("bash", "-euc", says, cwd=checkout, PIP_DISABLE_PIP_VERSION_CHECK="1")
            else:
                self.environment(checkout / ".venv")
                self.install(checkout / ".venv", checkout)

        return once(base, f"with-{self.version}", make) / ".venv/bin/tornado-signal"

    def install(self, path: Path, *what: str | Path) -> None:
        """Install something into an environment made by `environment`."""
        pip = [path / "bin" / "pip"] if self.has_pip else [sys.executable, "-m", "pip", "--python", path / "bin/python"]
        do(*pip, "--disable-pip-version-check", "install", "--quiet", *what)


def do(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    """Run a command that has to end well; what it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def required(minor: str, machine: str, extra: str = "") -> list[Requirement]:
    """What the package requires for a Python on Linux, without the conditions that are met there.

    Args:
        minor: the version of the Python.
        machine: what it runs on.
        extra: the name of an extra, for what that requires and the package itself does not.
    """
    place = {"python_version": minor, "platform_machine": machine, "sys_platform": "linux"}
    text = SETUP["options.extras_require"][extra] if extra else SETUP["options"]["install_requires"]
    found = []
    for each in map(Requirement, text.strip().splitlines()):
        if each.marker is None or each.marker.evaluate(place):
            each.marker = None
            found.append(each)
    return found


@functools.cache
def installed() -> list[Python]:
    """The CPythons that are found and that the package is for, the oldest first: the newest of each minor version."""
    pyenv = shutil.which("pyenv")
    roots = {Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")}
    roots |= {Path(pyenv).resolve().parents[1]} if pyenv else set()
    folders = [Path(each) for each in (*os.get_exec_path(), "/usr/bin", "/usr/local/bin")]
    folders = [each for each in folders if each.parent not in roots]  # what is there only passes commands on
    folders += [each / "bin" for root in roots for each in root.glob("versions/*")]
    paths = {path.resolve() for folder in folders for path in folder.glob("python3*") if NAME.fullmatch(path.name)}
    found = {}
    for path in sorted(paths):
        asked = subprocess.run([path, "-I", "-c", ASK], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout:
            python = Python(*json.loads(asked.stdout))
            if PROMISED.contains(python.version):
                found[python.version] = python
    ordered = sorted(found.values(), key=lambda python: Version(python.version))
    return list({python.minor: python for python in ordered}.values())
