"""What is installed from a source says its version, and the commit that it was made from."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.checkout import copy_checkout, git, new_repository, run

from tornado_signal import _build

pytestmark = pytest.mark.slow

STALE = "0" * 40
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# Other tests build it in isolation, and run what is installed.
NO_ISOLATION = ("--no-deps", "--no-build-isolation")
INSTALL = ("install", "--no-compile", *NO_ISOLATION)
STATED, UNTAGGED = "1.2.3", "1.2.3.dev0"


def captured(source: Path, **options: str) -> tuple[str, str]:
    """Return what capturing leaves in a source tree: version and commit."""
    _build.capture_version(source, **options)
    found: dict[str, str] = {}
    exec((source / "tornado_signal" / "_version.py").read_text(), found)
    return found["VERSION"], found["COMMIT"]


def said_by(python: str | Path, directory: Path, **env: str) -> list[str]:
    """Return the version and the commit that an installed package names where git cannot be found."""
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    code = "import shutil, tornado_signal as t; assert not shutil.which('git'); print(t.__version__, t.COMMIT)"
    said = subprocess.run(
        [python, "-c", code],
        cwd=empty,
        env={"PATH": str(empty), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.split()


def stale(source: Path) -> None:
    """Leave in a source tree what a build of another commit would have left there."""
    (source / "tornado_signal" / "_version.py").write_text(f'VERSION = "0"\nCOMMIT = "{STALE}"\n')


@pytest.fixture(autouse=True)
def no_repository_from_outside(monkeypatch):
    """Run as part of a git hook, no test touches the repository that the hook is about."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def source(tmp_path):
    """The working tree as it is now, ignored files left out, and no repository yet."""
    copy_checkout(tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def bare(tmp_path):
    """A source tree with nothing in it but the version that it states, and what another build has captured."""
    (tmp_path / "bare" / "tornado_signal" / "web").mkdir(parents=True)
    (tmp_path / "bare" / "tornado_signal" / "web" / "package.json").write_text(f'{{"version": "{STATED}"}}')
    stale(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_checkout_is_believed_over_a_stale_file(bare):
    """In a checkout the commit is git's, whatever an earlier build left."""
    commit = new_repository(bare)
    assert captured(bare) == (UNTAGGED, commit)


def test_a_linked_worktree_has_its_own_commit(bare, tmp_path):
    """A worktree, whose .git is a file, is captured like any checkout."""
    new_repository(bare)
    git(bare, "worktree", "add", "--quiet", "--force", tmp_path / "linked")
    git(tmp_path / "linked", "commit", "--quiet", "--allow-empty", "--message=next")
    commit = git(tmp_path / "linked", "rev-parse", "HEAD")
    assert captured(tmp_path / "linked") == (UNTAGGED, commit)


def test_another_users_checkout(bare, monkeypatch):
    """A checkout that git calls dubiously owned (as root sees a user's) is captured too."""
    commit = new_repository(bare)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(AssertionError, match="dubious ownership"):
        git(bare, "rev-parse", "HEAD")
    assert captured(bare) == (UNTAGGED, commit)


def test_a_hooks_git_dir_is_not_mistaken_for_ours(bare, tmp_path, monkeypatch):
    """A build started by another repository's hook, which sets GIT_DIR, captures its own commit."""
    commit = new_repository(bare)
    (tmp_path / "other").mkdir()
    new_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert captured(bare) == (UNTAGGED, commit)


def test_a_checkout_that_git_cannot_read_is_unknown(bare, tmp_path, monkeypatch):
    """Without git, or without a commit, a stale file is still not believed."""
    git(bare, "init", "--quiet")
    assert captured(bare) == (UNTAGGED, "unknown")
    new_repository(bare)
    stale(bare)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert captured(bare) == (UNTAGGED, "unknown")


def test_an_unpacked_sdist_keeps_what_it_brought(bare):
    """A source without .git of its own ignores the repository around it."""
    new_repository(bare.parent)
    assert captured(bare) == ("0", STALE)


def test_a_source_without_history_is_unknown(bare):
    """What was downloaded without git history, and never captured, says so, whatever repository it lies in."""
    new_repository(bare.parent)
    (bare / "tornado_signal" / "_version.py").unlink()
    assert captured(bare) == (UNTAGGED, "unknown")


def test_versions(bare):
    """A tag is the version, and what comes after it a development version before the next one."""
    new_repository(bare)
    found = []
    for name in ("something-else", None, f"v{STATED}", None, None):
        if name:
            git(bare, "tag", name)
        version, commit = captured(bare)
        assert commit == git(bare, "rev-parse", "HEAD")
        found.append(version)
        git(bare, "commit", "--quiet", "--allow-empty", "--message=next")
    assert found == [UNTAGGED, UNTAGGED, STATED, "1.2.4.dev1", "1.2.4.dev2"]


@pytest.mark.parametrize(
    ("stated", "release", "version"),
    [
        ("1.3.0", "v1.2.3-4-gabcdef0", "1.3.0.dev4"),
        ("2.0.0-rc.1", "v2.0.0-rc.1", "2.0.0-rc.1"),
        ("2.0.0-rc.1", "v2.0.0-rc.1-12-gabcdef0", "2.0.0-rc.2.dev12"),
        # What a git says that is too old to describe.
        ("1.2.3", "%(describe:tags=true,match=v[0-9]*)", "1.2.3.dev0"),
    ],
)
def test_other_versions(stated, release, version):
    """What is stated is the next release, once it is more than the last one."""
    assert _build.version_of(stated, release) == version


def test_another_tag_is_refused(bare):
    """Nothing is built with two versions: one by its tag, another one for npm."""
    new_repository(bare)
    git(bare, "tag", "v1.2.4")
    with pytest.raises(ValueError, match=r"^the tag is v1\.2\.4, and .*package\.json says 1\.2\.3$"):
        captured(bare)


def test_a_shallow_clone(bare, tmp_path):
    """A clone without history and without tags has a version, as in CI."""
    commit = new_repository(bare)
    git(bare, "tag", f"v{STATED}")
    git(tmp_path, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{bare}", "shallow")
    assert captured(tmp_path / "shallow") == (UNTAGGED, commit)


@pytest.mark.slow
def test_an_archive(source, tmp_path):
    """`pip install .` of what `git archive` has made, as hosts of repositories do, says version and commit."""
    commit = new_repository(source)
    stated = json.loads((source / "tornado_signal" / "web" / "package.json").read_text())["version"]
    git(source, "tag", f"v{stated}")
    git(source, "archive", "--prefix=unpacked/", f"--output={tmp_path}/archive.tar", "HEAD")
    run("tar", "--extract", "--directory", tmp_path, "--file", tmp_path / "archive.tar")
    run(*PIP, *INSTALL, "--target", tmp_path / "target", tmp_path / "unpacked")
    assert said_by(sys.executable, tmp_path, PYTHONPATH=str(tmp_path / "target")) == [stated, commit]


@pytest.mark.slow
def test_installs_from_a_checkout(source, tmp_path):
    """`pip install -e .` and `pip install .` say the commit they were installed at, and have the command."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    first = new_repository(source)
    stale(source)
    run(*PIP, "--python", python, "install", "--no-deps", "--editable", source)
    assert said_by(python, tmp_path)[1] == first
    git(source, "commit", "--quiet", "--allow-empty", "--message=next")
    run(*PIP, "--python", python, "install", "--no-deps", source)
    assert said_by(python, tmp_path)[1] == git(source, "rev-parse", "HEAD") != first
    assert os.access(python.with_name("tornado-signal"), os.X_OK)


@pytest.mark.slow
def test_an_install_without_history_is_unknown(source, tmp_path):
    """`pip install` of a source without git history says `unknown`, also beside an installation that knows more."""
    run(*PIP, *INSTALL, "--target", tmp_path / "target", source)
    assert said_by(sys.executable, tmp_path, PYTHONPATH=str(tmp_path / "target"))[1] == "unknown"
