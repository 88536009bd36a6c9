"""Packages are built and installed for real, and each says the commit that it was made from."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support.checkout import copy_checkout, git, new_repository, run

from tornado_signal import _build
from tornado_signal.http import assets

pytestmark = pytest.mark.slow

STALE = "0" * 40
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# Other tests build it in isolation, and run what is installed.
NO_ISOLATION = ("--no-deps", "--no-build-isolation")
INSTALL = ("install", "--no-compile", *NO_ISOLATION)
BUILD = (sys.executable, "-m", "build", "--no-isolation")


def captured(source: Path) -> str:
    """Return what capturing leaves in a source tree."""
    _build.capture_commit(source)
    return (source / "tornado_signal" / "_commit.py").read_text()


def said_by(python: str | Path, directory: Path, **env: str) -> str:
    """Return the commit that an installed package names where git cannot be found."""
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    code = "import shutil, tornado_signal; assert not shutil.which('git'); print(tornado_signal.COMMIT)"
    said = subprocess.run(
        [python, "-c", code],
        cwd=empty,
        env={"PATH": str(empty), **env},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip()


def stale(source: Path) -> None:
    """Leave in a source tree what a build of another commit would have left there."""
    (source / "tornado_signal" / "_commit.py").write_text(f'COMMIT = "{STALE}"\n')


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
    """A source tree with nothing in it but a commit captured by another build."""
    (tmp_path / "bare" / "tornado_signal").mkdir(parents=True)
    stale(tmp_path / "bare")
    return tmp_path / "bare"


def test_a_checkout_is_believed_over_a_stale_file(bare):
    """In a checkout the commit is git's, whatever an earlier build left."""
    commit = new_repository(bare)
    assert captured(bare) == f'COMMIT = "{commit}"\n'


def test_a_linked_worktree_has_its_own_commit(bare, tmp_path):
    """A worktree, whose .git is a file, is captured like any checkout."""
    new_repository(bare)
    git(bare, "worktree", "add", "--quiet", "--force", tmp_path / "linked")
    git(tmp_path / "linked", "commit", "--quiet", "--allow-empty", "--message=next")
    commit = git(tmp_path / "linked", "rev-parse", "HEAD")
    assert captured(tmp_path / "linked") == f'COMMIT = "{commit}"\n'


def test_another_users_checkout(bare, monkeypatch):
    """A checkout that git calls dubiously owned (as root sees a user's) is captured too."""
    commit = new_repository(bare)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(AssertionError, match="dubious ownership"):
        git(bare, "rev-parse", "HEAD")
    assert captured(bare) == f'COMMIT = "{commit}"\n'


def test_a_hooks_git_dir_is_not_mistaken_for_ours(bare, tmp_path, monkeypatch):
    """A build started by another repository's hook, which sets GIT_DIR, captures its own commit."""
    commit = new_repository(bare)
    (tmp_path / "other").mkdir()
    new_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert captured(bare) == f'COMMIT = "{commit}"\n'


def test_a_checkout_that_git_cannot_read_is_unknown(bare, tmp_path, monkeypatch):
    """Without git, or without a commit, a stale file is still not believed."""
    git(bare, "init", "--quiet")
    assert captured(bare) == 'COMMIT = "unknown"\n'
    new_repository(bare)
    stale(bare)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert captured(bare) == 'COMMIT = "unknown"\n'


def test_an_unpacked_sdist_keeps_what_it_brought(bare):
    """A source without .git of its own ignores the repository around it."""
    new_repository(bare.parent)
    assert captured(bare) == f'COMMIT = "{STALE}"\n'


def test_a_source_without_history_is_unknown(bare):
    """What was downloaded without git history, and never captured, says so, whatever repository it lies in."""
    new_repository(bare.parent)
    (bare / "tornado_signal" / "_commit.py").unlink()
    assert captured(bare) == 'COMMIT = "unknown"\n'


@pytest.mark.network
def test_wheels_and_sdists(source, tmp_path):
    """A wheel from a checkout, an sdist, and the wheel made from that sdist say the commit, and hold the files."""
    commit = new_repository(source)
    stale(source)
    # `build` makes an sdist, and a wheel from that; `pip wheel` makes one from the checkout.
    run(*BUILD, "--outdir", tmp_path / "by_build", source)
    run(*PIP, "wheel", *NO_ISOLATION, "--wheel-dir", tmp_path / "by_pip", source)
    (sdist,) = (tmp_path / "by_build").glob("*.tar.gz")
    wheels = [*(tmp_path / "by_build").glob("*.whl"), *(tmp_path / "by_pip").glob("*.whl")]
    assert len(wheels) == 2
    for number, package in enumerate([sdist, *wheels]):
        target = tmp_path / f"target{number}"
        run(*PIP, *INSTALL, "--target", target, package)
        assert said_by(sys.executable, tmp_path, PYTHONPATH=str(target)) == commit, package
        web = target / "tornado_signal" / "web"
        files = {str(path.relative_to(web)) for path in web.rglob("*") if path.is_file()}
        assert files == {name for name, _ in (assets.CLIENT | assets.DEMO).values()}


@pytest.mark.network
def test_installs_from_a_checkout(source, tmp_path):
    """`pip install -e .` and `pip install .` say the commit they were installed at, and have the command."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    first = new_repository(source)
    stale(source)
    run(*PIP, "--python", python, "install", "--no-deps", "--editable", source)
    assert said_by(python, tmp_path) == first
    git(source, "commit", "--quiet", "--allow-empty", "--message=next")
    run(*PIP, "--python", python, "install", "--no-deps", source)
    assert said_by(python, tmp_path) == git(source, "rev-parse", "HEAD") != first
    assert os.access(python.with_name("tornado-signal"), os.X_OK)


@pytest.mark.network
def test_an_install_without_history_is_unknown(source, tmp_path):
    """`pip install` of a source without git history says `unknown`, also beside an installation that knows more."""
    run(*PIP, *INSTALL, "--target", tmp_path / "target", source)
    assert said_by(sys.executable, tmp_path, PYTHONPATH=str(tmp_path / "target")) == "unknown"
