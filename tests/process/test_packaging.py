"""A package states its version and the commit that it was built from."""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from support.checkout import copy_checkout, git, new_repository, run
from support.paths import ROOT

pytestmark = pytest.mark.slow

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
CLIENT = Path("clients/python")
PREPARE = "import sys; from setuptools.build_meta import *; prepare_metadata_for_build_wheel(sys.argv[1])"
ASK = "import tornado_signal; print(tornado_signal.__version__, tornado_signal.COMMIT)"


@pytest.fixture(autouse=True)
def no_git_variables(monkeypatch):
    """Hide the repository of a git hook that runs the tests."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module", autouse=True)
def build_requirements(tmp_path_factory):
    """Install what builds the package once, and not for each build."""
    path = tmp_path_factory.mktemp("build")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    run(*PIP, "install", "--no-compile", "--target", path, *required)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(path))
        yield


@pytest.fixture
def source(tmp_path):
    """A copy of the working tree that is not a repository yet."""
    copy_checkout(tmp_path / "source")
    return tmp_path / "source"


def read_version(source, path, **env):
    """Return the version and the commit that a package of a source states. Its backend writes both before it packs.

    The client has the same version.
    """
    metadata = set()
    for each in (source, source / CLIENT):
        with tempfile.TemporaryDirectory(dir=path) as folder:
            run(sys.executable, "-c", PREPARE, folder, cwd=each, **env)
            metadata |= {found.name for found in Path(folder).glob("*.dist-info")}
    version, commit = run(sys.executable, "-c", ASK, cwd=source).split()
    assert metadata == {f"{name}-{version}.dist-info" for name in ("tornado_signal", "tornado_signal_client")}
    return [version, commit]


def test_checkout(source, tmp_path, monkeypatch):
    """The version is that of the tag, or counts the commits since. Hooks of another repository are ignored.

    `git archive`, which hosts of repositories offer as downloads, keeps version and commit.
    """
    first = new_repository(source)
    assert read_version(source, tmp_path) == ["0.1.dev1", first]
    git(source, "tag", "v1.2.3")
    git(source, "tag", "unrelated")
    git(source, "archive", "--prefix=unpacked/", f"--output={tmp_path}/archive.tar", "HEAD")
    run("tar", "--extract", "--directory", tmp_path, "--file", tmp_path / "archive.tar")
    assert read_version(tmp_path / "unpacked", tmp_path) == ["1.2.3", first]
    (source / "docs" / "index.md").unlink()  # as in the context of a container build
    assert read_version(source, tmp_path) == ["1.2.3", first]
    git(source, "commit", "--quiet", "--all", "--message=next")
    (tmp_path / "other").mkdir()
    new_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    found = read_version(source, tmp_path, GIT_TEST_ASSUME_DIFFERENT_OWNER="1")  # as root sees a user's checkout
    monkeypatch.delenv("GIT_DIR")
    assert found == ["1.2.4.dev1", git(source, "rev-parse", "HEAD")]


def test_source_without_history(source, tmp_path):
    new_repository(tmp_path)
    assert read_version(source, tmp_path) == ["0.1.dev0", "unknown"]


def test_editable_install_is_updated(source, tmp_path):
    """`pip install -e .` states the commit at which it was last run."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    for _ in range(2):
        commit = new_repository(source)
        run(*PIP, "--python", python, "install", "--no-build-isolation", "--no-deps", "--editable", source)
        assert run(python, "-I", "-c", ASK).split()[1] == commit


def test_release_check(source):
    chart = source / "examples/kubernetes/tornado-signal/Chart.yaml"
    check, package = source / "tests" / "release-check", source / "tornado_signal" / "web" / "package.json"
    stated = json.loads((ROOT / "tornado_signal" / "web" / "package.json").read_text())["version"]

    def refused():
        done = subprocess.run([check], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    new_repository(source)
    assert refused()
    git(source, "tag", f"v{stated}")
    assert run(check) == ""
    package.write_text(package.read_text().replace(stated, "9.9.9"))
    assert refused() == f"release-check: the tag is v{stated}, but tornado_signal/web/package.json states 9.9.9\n"
    git(source, "commit", "--quiet", "--all", "--message=9.9.9")
    git(source, "tag", "v9.9.9")
    for name in ("version", "appVersion"):
        place = "examples/kubernetes/tornado-signal/Chart.yaml"
        assert refused() == f"release-check: {place} must state '{name}: 9.9.9'\n"
        chart.write_text(chart.read_text().replace(f"\n{name}: {stated}\n", f"\n{name}: 9.9.9\n"))
    assert refused() == "release-check: CHANGELOG.md has no heading '## [9.9.9] - YYYY-MM-DD'\n"
