"""The package works with every supported CPython of this machine, and refuses others."""

import re
import subprocess
import sys

import pytest
from support.command import Server
from support.documents import pages
from support.paths import ROOT
from support.pythons import CLIENT, PROMISED, SETUP, do, installed, release, required
from support.waiting import run_command

pytestmark = [pytest.mark.slow, pytest.mark.needs("git", "build", "node", "cyclonedx_py")]

MINORS = ["3.11", "3.12", "3.13", "3.14"]
BEYOND = ["3.10", "3.15"]
MACHINES = ["x86_64", "aarch64"]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.mark.needs("pypy3")
def test_older_python_is_refused_at_once(tmp_path):
    """PyPy is a Python 3.9."""
    done = run_command("pypy3", "-m", "tornado_signal", "serve", cwd=ROOT)
    assert done.returncode == 1
    assert re.search(r"tornado-signal needs Python 3\.11 or newer, and this is Python 3\.\d\.", done.stderr)
    do("pypy3", "-m", "venv", tmp_path / "old")
    done = run_command(tmp_path / "old/bin/pip", "install", ROOT, stderr=subprocess.STDOUT)
    assert done.returncode == 1
    assert "No such file or directory: '/tornado-signal-needs-Python-3.11-or-newer'" in done.stdout
    assert "Collecting" not in done.stdout


@pytest.mark.timeout(600)
def test_each_python_installs_and_opens_the_data_of_the_previous_one(tmp_path, tmp_path_factory):
    """Newer and then older versions on any binding of LevelDB, without a warning."""
    says = "import platform; from tornado_signal.stores.leveldb.binding import plyvel; "
    says += "print(platform.python_version(), plyvel.__name__)"
    codes, pythons = [], installed()
    for python in [*pythons, *pythons[::-1]]:
        command = python.installed(tmp_path_factory.getbasetemp())
        binding = python.binding.replace("-", "_")
        assert do(command.with_name("python"), "-I", "-c", says) == f"{python.version} {binding}\n"
        # Deprecations are errors.
        flags = ("--data-dir", tmp_path / "data", "--session-timeout-ms", "3600000")
        with Server(*flags, command=command, PYTHONWARNINGS="error") as server:
            assert server.codes() == codes
            codes.insert(0, server.offer())
            assert server.stop() == 0
            assert "Warning" not in "".join(server.log)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("minor", MINORS)
def test_installation_compiles_nothing(minor, machine, tmp_path):
    wanted = required(minor, machine)
    if (minor, machine) == ("3.11", "aarch64"):
        wanted = [each for each in wanted if each.name != "plyvel"]
    platforms = [f"--platform={name}_{machine}" for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    only = ["--no-deps", "--only-binary=:all:", f"--python-version={minor}", *platforms]
    do(*PIP, "download", *only, "--dest", tmp_path, *map(str, wanted))
    assert len([*tmp_path.glob("*.whl")]) == len(wanted) >= 7


@pytest.mark.timeout(600)
@pytest.mark.parametrize("platform", ["win_amd64", "macosx_14_0_arm64"])
def test_client_installs_on_other_systems_without_a_compiler(platform, tmp_path):
    """Each requirement, also of peers, has a wheel for the system or for all."""
    wanted = [*CLIENT["project"]["dependencies"], *CLIENT["project"]["optional-dependencies"]["peer"]]
    only = ["--only-binary=:all:", "--python-version=3.12", f"--platform={platform}"]
    do(*PIP, "download", *only, "--dest", tmp_path, *wanted)
    names = {path.name.partition("-")[0] for path in tmp_path.glob("*.whl")}
    assert names >= {"httpx", "websockets", "aiortc", "cryptography"}
    assert not names & {"tornado", "plyvel", "plyvel_next", "uvloop"}


@pytest.mark.timeout(600)
def test_other_pythons_are_refused_with_one_sentence(tmp_path, tmp_path_factory):
    (wheel,) = release(tmp_path_factory.getbasetemp()).glob("dist/tornado_signal-*.whl")
    for minor in BEYOND:
        only = ["--no-deps", "--only-binary=:all:", f"--python-version={minor}"]
        asked = subprocess.run([*PIP, "download", *only, "--dest", tmp_path, wheel], capture_output=True, text=True)
        assert asked.returncode == 1
        assert f"requires a different Python: {minor}" in asked.stderr


def test_tested_pythons_are_the_documented_ones():
    for page in ("README", "quickstart"):
        need = re.search(r"You need Linux and Python (\S+) to (\S+), on x86-64 or ARM\.", pages()[page])
        assert need.groups() == (MINORS[0], MINORS[-1])
    assert re.findall(r"^Programming Language :: Python :: (3\.\d+)$", SETUP["metadata"]["classifiers"], re.M) == MINORS
    assert [each for each in [*MINORS, *BEYOND] if PROMISED.contains(each)] == MINORS
    for script in ("tests/environment.sh", "systemd/install"):
        text = (ROOT / script).read_text()
        assert text.count("(3, 11) <= sys.version_info < (3, 15)") == text.count("sys.version_info") == 1
        assert re.search(rf"must be (Python )?{MINORS[0]} to {MINORS[-1]}", text)
