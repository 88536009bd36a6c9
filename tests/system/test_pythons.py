"""The package installs, serves and restarts with every CPython of this machine that it is for, and with no other."""

import re
import subprocess
import sys

import pytest
from support.checkout import copy_checkout
from support.command import Server
from support.documents import pages
from support.paths import ROOT
from support.pythons import PROMISED, SETUP, do, installed, required

pytestmark = pytest.mark.slow

FOUND = installed()
MINORS = ["3.11", "3.12", "3.13", "3.14"]
BEYOND = ["3.10", "3.15"]
MACHINES = ["x86_64", "aarch64"]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture
def command_of(tmp_path_factory):
    return lambda python: python.installed(tmp_path_factory.getbasetemp())


@pytest.fixture
def served(tmp_path):
    def serving(command, use):
        # What a Python is going to drop is an error.
        lifetime = ("--session-timeout-ms", "3600000")
        server = Server("--data-dir", tmp_path / "data", *lifetime, command=command, PYTHONWARNINGS="error")
        try:
            found = use(server)
            assert server.stop() == 0
            assert "Warning" not in "".join(server.log)
            return found
        finally:
            server.end()

    return serving


@pytest.mark.timeout(300)
@pytest.mark.parametrize("python", FOUND, ids=[each.version for each in FOUND])
def test_installs_and_serves(python, command_of, served):
    command = command_of(python)
    says = (
        "import platform; from tornado_signal.stores.leveldb.binding import plyvel; "
        "print(platform.python_version(), plyvel.__name__)"
    )
    name = python.binding.replace("-", "_")
    assert do(command.with_name("python"), "-I", "-c", says) == f"{python.version} {name}\n"
    code = served(command, Server.offer)
    assert served(command, Server.codes) == [code]


@pytest.mark.timeout(300)
def test_a_directory_outlives_its_python(command_of, served):
    codes = []
    for python in [*FOUND, *FOUND[-2::-1]]:
        assert served(command_of(python), Server.codes) == codes
        codes.insert(0, served(command_of(python), Server.offer))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("minor", MINORS)
def test_nothing_has_to_be_compiled(minor, machine, tmp_path):
    wanted = required(minor, machine)
    if (minor, machine) == ("3.11", "aarch64"):
        wanted = [each for each in wanted if each.name != "plyvel"]
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    only = ["--no-deps", "--only-binary=:all:", f"--python-version={minor}", *platforms]
    do(*PIP, "download", *only, "--dest", tmp_path, *map(str, wanted))
    assert len([*tmp_path.glob("*.whl")]) == len(wanted) >= 8


def test_others_are_refused_in_a_sentence(tmp_path):
    copy_checkout(tmp_path / "source")
    do(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tmp_path / "source")
    (wheel,) = tmp_path.glob("*.whl")
    for minor in BEYOND:
        only = ["--no-deps", "--only-binary=:all:", f"--python-version={minor}"]
        asked = subprocess.run([*PIP, "download", *only, "--dest", tmp_path, wheel], capture_output=True, text=True)
        assert asked.returncode == 1
        assert f"requires a different Python: {minor}" in asked.stderr


def test_the_pythons_tried_are_those_promised():
    for page in ("README", "quickstart"):
        need = re.search(r"You need Linux and Python (\S+) to (\S+), on x86-64 or ARM\.", pages()[page])
        assert need.groups() == (MINORS[0], MINORS[-1])
    assert re.findall(r"^Programming Language :: Python :: (3\.\d+)$", SETUP["metadata"]["classifiers"], re.M) == MINORS
    assert [each for each in [*MINORS, *BEYOND] if PROMISED.contains(each)] == MINORS
    for script in ("tests/environment.sh", "systemd/install"):
        text = (ROOT / script).read_text()
        assert text.count("(3, 11) <= sys.version_info < (3, 15)") == text.count("sys.version_info") == 1
        assert f"be {MINORS[0]} to {MINORS[-1]}" in text
