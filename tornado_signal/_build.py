"""The build backend: setuptools, which first captures the source's commit (Specification 4, GET /).

The commit goes into ``tornado_signal/_commit.py``, which git ignores and every wheel, sdist and editable
install carries, so that nothing asks git at run time.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from setuptools import build_meta

ROOT = Path(__file__).resolve().parent.parent


def capture_commit(root: Path = ROOT) -> None:
    """Write the commit that a git checkout stands at, or ``unknown``.

    A source without ``.git`` of its own is an unpacked sdist: what it brought along stays, and no repository
    that happens to enclose it is asked. In a checkout git alone is believed, never a file left by an earlier
    build.
    """
    git_dir = root / ".git"
    captured = root / "tornado_signal" / "_commit.py"
    if captured.exists() and not git_dir.exists():
        return
    try:
        # An explicit --git-dir means no search upwards and no refusal of another user's checkout.
        command = ["git", f"--git-dir={git_dir}", "rev-parse", "--verify", "--quiet", "HEAD"]
        commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        # Written, not left out: an older copy left under build/, or another installation of this package
        # further down the path, would be believed instead.
        commit = "unknown"
    captured.write_text(f'COMMIT = "{commit}"\n')


def _capturing(build: Callable[..., str]) -> Callable[..., str]:
    def hook(*args: Any, **kwargs: Any) -> str:
        capture_commit()
        return build(*args, **kwargs)

    return hook


# The hooks of PEP 517 and 660.
build_wheel = _capturing(build_meta.build_wheel)
build_sdist = _capturing(build_meta.build_sdist)
build_editable = _capturing(build_meta.build_editable)
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
