"""Artefacts of a release: the wheels, made from the sdists, and the npm package work in empty environments."""

import json
import re
import runpy
import subprocess
import sys

import pytest
from packaging.utils import canonicalize_name
from support import npm_package
from support.checkout import git
from support.command import ORIGIN, Server
from support.documents import all_blocks, pages
from support.paths import ROOT
from support.pythons import RELEASING, STATED, do, install, release

from tornado_signal.system import assets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.needs("git", "build", "node", "cyclonedx_py")]

ASK = """
import { SignalClient } from "tornado-signal";
const [url, origin] = process.argv.slice(1);
console.log((await new SignalClient(url, { origin }).version()).version);
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The commit of a release, and the folder with what the commands of CONTRIBUTING.md make of it."""
    source = release(tmp_path_factory.getbasetemp())
    return git(source, "rev-parse", "HEAD"), source / "dist"


@pytest.fixture
def installed(built, tmp_path):
    (wheel,) = built[1].glob("tornado_signal-*.whl")  # `python -m build` makes it from the sdist
    return install(tmp_path / "empty", wheel) / "tornado-signal"


@pytest.mark.needs("twine", "check_wheel_contents")
def test_packages_have_the_version_of_the_tag_and_checkers_find_nothing(built):
    python = [f"{name}-{STATED}" for name in ("tornado_signal", "tornado_signal_client")]
    names = {f"{name}{suffix}" for name in python for suffix in (".tar.gz", "-py3-none-any.whl")}
    names |= {f"{name.replace('_', '-')}.cdx.json" for name in python}
    assert {path.name for path in built[1].iterdir()} == names | {f"tornado-signal-{STATED}.tgz"}
    for command in (("twine", "check", "--strict"), ("check_wheel_contents",)):
        packages = [path for path in built[1].iterdir() if path.name.endswith((".whl", ".tar.gz")[: len(command)])]
        do(sys.executable, "-m", *command, *packages)


@pytest.mark.parametrize(("name", "extras"), [("tornado-signal", "auth,redis"), ("tornado-signal-client", "peer")])
def test_bill_of_materials_is_complete_and_has_licences(name, extras, built):
    """It lists what pip resolves for the wheel, no more and no less, and the JavaScript of others in it."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (wheel,) = built[1].glob(f"{name.replace('-', '_')}-*.whl")
    file = built[1] / f"{name}-{STATED}.cdx.json"
    document = json.loads(file.read_text())
    validator = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"]))
    assert validator.validate_str(file.read_text()) is None
    package = document["metadata"]["component"]
    assert (package["name"], package["version"], package["type"]) == (name, STATED, "application")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report=-"]
    report = json.loads(subprocess.run([*pip, f"{wheel}[{extras}]"], check=True, capture_output=True).stdout)
    found = [each["metadata"] for each in report["install"]]
    resolved = {(canonicalize_name(each["name"]), each["version"]) for each in found}
    listed = {(each["purl"].partition("/")[0], each["name"], each["version"]) for each in document["components"]}
    python = {(canonicalize_name(each), version) for kind, each, version in listed if kind == "pkg:pypi"}
    assert python == resolved - {(name, STATED)}
    vendored = [path.read_text() for path in (npm_package.WEB / "vendor").iterdir() if name == "tornado-signal"]
    assert listed - {each for each in listed if each[0] == "pkg:pypi"} == {
        ("pkg:npm", *re.match(r"/\*\n \* (\S+) (\S+):", text).groups()) for text in vendored
    }
    assert [each["name"] for each in (package, *document["components"]) if not each["licenses"]] == []
    assert str(built[1].parent) not in file.read_text(), "it names a directory of this machine"
    references = {package["bom-ref"], *(each["bom-ref"] for each in document["components"])}
    assert {each["ref"] for each in document["dependencies"]} == references


@pytest.mark.parametrize(
    ("licences", "problem"),
    [
        ([], "states no licence"),
        ([{"license": {"id": "GPL-3.0-only"}}], "is under GPL-3.0-only"),
        ([{"license": {"id": "MIT"}}, {"expression": "MIT AND AGPL-3.0-only"}], "is under AGPL-3.0-only"),
        ([{"license": {"name": "Freeware"}}], "has an unknown licence: Freeware"),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], None),
        ([{"expression": "MPL-2.0 AND (Apache-2.0 OR MIT)"}], None),
    ],
)
def test_licences_that_mit_does_not_allow_stop_a_release(licences, problem):
    find_problem = runpy.run_path(str(ROOT / "tests/release-sbom"))["find_problem"]
    assert find_problem({"name": "x", "licenses": licences}) == problem


def test_installed_packages_serve_and_report_their_version(installed, built, tmp_path):
    commit, folder = built
    assert do(installed, "--version") == f"{STATED} ({commit})\n"
    web = next(installed.parents[1].glob("lib/*/site-packages/tornado_signal/web"))
    files = {str(path.relative_to(web)) for path in web.rglob("*") if path.is_file()}
    served = assets.CLIENT | assets.READABLE | assets.VERSIONED | assets.MAPS | assets.DEMO | assets.OPERATOR
    compressed = {f"{name}.br" for name, _ in assets.VERSIONED.values()}
    assert files == {name for name, _ in served.values()} | compressed | {"client/types.d.ts"}
    with Server("--data-dir", tmp_path / "data", command=installed) as server:
        assert server.call("/") == (200, {"version": commit})
        server.offer()
        application = tmp_path / "application"
        application.mkdir()
        (package,) = folder.glob("*.tgz")
        do("npm", "install", "--silent", "--offline", "--no-audit", "--no-fund", package, cwd=application)
        asking = ["node", "--input-type=module", "--eval", ASK, server.url, ORIGIN]
        said = subprocess.run(asking, cwd=application, capture_output=True, text=True, check=True)
        assert (said.stdout, said.stderr) == (f"{commit}\n", "")


def test_client_works_without_what_the_server_needs(installed, built, tmp_path):
    """Of this project and its requirements the client has only its own."""
    (wheel,) = built[1].glob("tornado_signal_client-*.whl")
    folder = install(tmp_path / "client", f"{wheel}[peer]")
    present = "import sys, importlib.util as u; print(*[name for name in sys.argv[1:] if u.find_spec(name)])"
    servers = ("tornado_signal", "tornado", "plyvel", "plyvel_next", "uvloop", "httptools", "orjson", "jwt")
    assert do(folder / "python", "-I", "-c", present, *servers, "tornado_signal_client") == "tornado_signal_client\n"
    command = folder / "tornado-signal-client"
    assert do(command, "--version") == f"{STATED}\n"
    do(folder / "python", "-I", "-c", "import tornado_signal_client.room, tornado_signal_client.cli.check_ice")
    with Server("--data-dir", tmp_path / "data", command=installed) as server:
        code = server.offer()
        listed = do(command, "sessions", "lobby", "--url", server.url, "--origin", ORIGIN)
        assert json.loads(listed)["code"] == code
        assert json.loads(do(command, "ping", "--count", "2", "--url", server.url))["count"] == 2


def test_unreleased_changes_and_commands_are_documented():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(STATED)}\] - \d{{4}}-\d\d-\d\d", headings[1])
    shown = all_blocks(pages()["contributing"])
    assert [block for block in RELEASING if block[0] == "sh" and block not in shown] == RELEASING[-1:]
