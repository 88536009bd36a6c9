"""The build backend: setuptools, which first captures the source's version and commit (Specification 4, GET /).

They go into ``tornado_signal/_version.py``, which git ignores and every wheel, sdist and editable install
carries, so that nothing asks git at run time.
"""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent
# The commit, and the last release before it: of a checkout git says it, and into an archive `git archive` writes it.
FORMAT = "%H %(describe:tags=true,match=v[0-9]*)"
ARCHIVED = "$Format:%H %(describe:tags=true,match=v[0-9]*)$"


def capture_version(root: Path = ROOT, archived: str = ARCHIVED) -> None:
    """Write the version and the commit of a source.

    A source without ``.git`` of its own is an unpacked sdist: what it brought along stays, and no repository
    that happens to enclose it is asked; or an archive of a commit, which says which one. In a checkout git
    alone is believed, never a file left by an earlier build.

    Raises:
        ValueError: It is tagged as another version than it says itself.
    """
    git_dir = root / ".git"
    captured = root / "tornado_signal" / "_version.py"
    if git_dir.exists():
        # An explicit --git-dir means no search upwards and no refusal of another user's checkout.
        command = ["git", f"--git-dir={git_dir}", "rev-list", "--max-count=1", f"--format={FORMAT}", "HEAD"]
        try:
            _, found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        except (OSError, subprocess.CalledProcessError):
            found = ""
    elif captured.exists():
        return
    else:
        found = "" if archived.startswith("$") else archived
    commit, _, release = found.partition(" ")
    # Written also if nothing is known: an older copy left under build/, or another installation of this package
    # further down the path, would be believed instead.
    version = version_of(json.loads((root / "tornado_signal/web/package.json").read_text())["version"], release)
    captured.write_text(f'VERSION = "{version}"\nCOMMIT = "{commit or "unknown"}"\n')


def version_of(stated: str, release: str) -> str:
    """The version of a source: that of its tag, or else a development version before the next release.

    Args:
        stated: the version that the source states, for pip and npm.
        release: what `git describe` says of it: ``v1.2.3`` of what is tagged, ``v1.2.3-4-gabcdef`` of the fourth
            commit after that, nothing if no tag is known.

    Raises:
        ValueError: It is tagged as another version than it states.
    """
    known = re.fullmatch(r"v(.+?)(?:-(\d+)-g\w+)?", release)
    last, number = known.groups() if known else (None, None)
    if last and not number:
        if last != stated:
            raise ValueError(f"the tag is v{last}, and tornado_signal/web/package.json says {stated}")
        return stated
    coming = re.sub(r"\d+$", lambda digits: str(int(digits[0]) + 1), stated) if last == stated else stated
    return f"{coming}.dev{number or 0}"


def _capturing(hook: Callable[..., Any]) -> Callable[..., Any]:
    def capturing(*args: Any, **kwargs: Any) -> Any:
        capture_version()
        return hook(*args, **kwargs)

    return capturing


# The hooks of PEP 517 and 660.
get_requires_for_build_wheel = _capturing(build_meta.get_requires_for_build_wheel)
get_requires_for_build_sdist = _capturing(build_meta.get_requires_for_build_sdist)
get_requires_for_build_editable = _capturing(build_meta.get_requires_for_build_editable)
prepare_metadata_for_build_wheel = _capturing(build_meta.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = _capturing(build_meta.prepare_metadata_for_build_editable)
build_wheel = _capturing(build_meta.build_wheel)
build_sdist = _capturing(build_meta.build_sdist)
build_editable = _capturing(build_meta.build_editable)
