"""Copies of the working tree, and repositories created from them."""

import os
import shutil
import subprocess
from pathlib import Path

from .paths import ROOT
from .waiting import output, run_command


def copy_checkout(copy):
    """Copy the working tree without ignored files."""
    listing = ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in run(*listing).split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def previous_version(copy):
    """Unpack the last commit whose package differs from that of the working tree."""
    changed = run_command("git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", "tornado_signal").returncode
    unpack(copy, "HEAD" if changed else git(ROOT, "rev-list", "--max-count=1", "HEAD", "--", "tornado_signal") + "~1")


def unpack(copy, commit):
    lookup = run_command("git", "-C", ROOT, "rev-parse", "--verify", "--quiet", commit)
    assert lookup.returncode == 0, f"this clone has no commit {commit}: git fetch --unshallow"
    archive = ["git", "-C", ROOT, "archive", commit, "tornado_signal"]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "--extract", "--directory", copy], stdin=packing.stdout, check=True)
    assert packing.returncode == 0


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> str:
    return output(run_command(*command, cwd=cwd, stderr=subprocess.STDOUT, env=os.environ | env))


def git(directory: Path, *arguments: str) -> str:
    me = ("-c", "user.name=Tester", "-c", "user.email=tester@example.invalid", "-c", "commit.gpgsign=false")
    return run("git", *me, "-C", directory, *arguments).strip()


def new_repository(directory: Path) -> str:
    git(directory, "init", "--quiet")
    git(directory, "add", "--all")
    git(directory, "commit", "--quiet", "--allow-empty", f"--message=made for {directory}")
    return git(directory, "rev-parse", "HEAD")
