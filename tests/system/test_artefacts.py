"""Artefacts of a release: sdist, wheel and npm package install and work in empty environments."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import npm_package
from support.checkout import copy_checkout, git, new_repository
from support.command import ORIGIN, Server
from support.documents import all_blocks, pages
from support.paths import ROOT
from support.pythons import do, once

from tornado_signal.system import assets

pytestmark = [pytest.mark.slow, pytest.mark.needs("git", "build", "node")]

STATED = json.loads((npm_package.WEB / "package.json").read_text())["version"]
RELEASING = all_blocks((ROOT / "CONTRIBUTING.md").read_text())
ASK = """
import { SignalClient } from "tornado-signal";
const [url, origin] = process.argv.slice(1);
console.log((await new SignalClient(url, { origin }).version()).version);
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The commit of a release, and the folder with what the commands of CONTRIBUTING.md make of it."""

    def make(source):
        copy_checkout(source)
        new_repository(source)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        me = {"GIT_COMMITTER_NAME": "Tester", "GIT_COMMITTER_EMAIL": "tester@example.invalid"}
        do("bash", "-ec", RELEASING[-1][1].replace("0.2.0", STATED), cwd=source, PATH=path, **me)

    source = once(tmp_path_factory.getbasetemp(), "release", make)
    return git(source, "rev-parse", "HEAD"), source / "dist"


@pytest.fixture(params=["wheel", "sdist"])
def installed(request, built, tmp_path):
    (found,) = built[1].glob({"wheel": "*.whl", "sdist": "*.tar.gz"}[request.param])
    do(sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python]
    do(*pip, "install", "--no-compile", found)
    return python.with_name("tornado-signal")


def test_packages_have_the_version_of_the_tag(built):
    python, npm = f"tornado_signal-{STATED}", f"tornado-signal-{STATED}"
    assert {path.name for path in built[1].iterdir()} == {
        f"{python}.tar.gz",
        f"{python}-py3-none-any.whl",
        f"{npm}.tgz",
    }


def test_installed_packages_serve_and_report_their_version(installed, built, tmp_path):
    commit, folder = built
    assert do(installed, "--version") == f"{STATED} ({commit})\n"
    web = next(installed.parents[1].glob("lib/*/site-packages/tornado_signal/web"))
    files = {str(path.relative_to(web)) for path in web.rglob("*") if path.is_file()}
    assert files == {name for name, _ in (assets.CLIENT | assets.DEMO).values()} | {"client/types.d.ts"}
    server = Server("--data-dir", tmp_path / "data", command=installed)
    try:
        assert server.call("/") == (200, {"version": commit})
        server.offer()
        application = tmp_path / "application"
        application.mkdir()
        (package,) = folder.glob("*.tgz")
        do("npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", package, cwd=application)
        asking = ["node", "--input-type=module", "--eval", ASK, server.url, ORIGIN]
        said = subprocess.run(asking, cwd=application, capture_output=True, text=True, check=True)
        assert (said.stdout, said.stderr) == (f"{commit}\n", "")
    finally:
        server.end()


def test_changelog_begins_with_unreleased_and_this_release():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(STATED)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_unreleased_commands_are_documented():
    shown = all_blocks(pages()["contributing"])
    assert [block for block in RELEASING if block not in shown] == RELEASING[-1:]
