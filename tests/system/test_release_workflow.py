"""The workflow that releases a tag: its rights, its steps, and the commands that can run here."""

import functools
import json
import re

import pytest
from support.checkout import copy_checkout
from support.documents import all_blocks
from support.npm_package import WEB
from support.paths import ROOT
from support.pythons import do
from support.waiting import run_command

pytestmark = [pytest.mark.slow, pytest.mark.needs("git", "node", "yaml")]

FOLDER = ROOT / ".github/workflows"
VERSION = json.loads((WEB / "package.json").read_text())["version"]
# The rights of each job to write. Other jobs can only read the source.
WRITES = {"attest": {"id-token", "attestations"}, "pypi": {"id-token"}, "npm": {"id-token"}, "release": {"contents"}}
WRITES["images"] = {"id-token", "attestations", "packages"}


@functools.cache
def workflow(name="release"):
    """Return a workflow. YAML 1.1 would read its key `on` as true."""
    import yaml

    return yaml.safe_load((FOLDER / f"{name}.yml").read_text().replace("\non:", "\n'on':"))


def jobs():
    return workflow()["jobs"]


def commands(job):
    return [step["run"] for step in jobs()[job]["steps"] if "run" in step]


def uses(job, action):
    return [step["with"] for step in jobs()[job].get("steps", ()) if step.get("uses", "").startswith(f"{action}@")]


def test_only_tags_of_versions_are_released_and_each_job_has_the_least_rights():
    assert workflow()["on"] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    assert workflow()["permissions"] == {}
    for name, job in jobs().items():
        writes = {right for right, level in job["permissions"].items() if level == "write"}
        assert writes == WRITES.get(name, set()), name
    # Only the checkout of a job that pushes nothing to the repository, and it does not leave a password behind.
    assert "actions/checkout" not in str(jobs()["release"])
    given = [each for name in ("build", "images") for each in uses(name, "actions/checkout")]
    assert [each["persist-credentials"] for each in given] == [False, False]


def test_nothing_is_published_before_checks_tests_and_signatures():
    stated = {name: job.get("needs", ()) for name, job in jobs().items()}
    needed = {name: {needs} if isinstance(needs, str) else {*needs} for name, needs in stated.items()}

    def before(name):
        return needed[name].union(*map(before, needed[name]))

    for name in ("pypi", "npm", "images", "release"):
        assert {"check", "tests", "build", "attest"} <= before(name)
    assert {"pypi", "npm", "images"} == needed["release"]
    assert commands("check") == ["tests/release-check"]
    assert jobs()["tests"]["uses"] == "./.github/workflows/ci.yml"
    ci = workflow("ci")
    assert "workflow_call" in ci["on"]
    assert ci["concurrency"]["group"].startswith("${{ github.workflow }}-")
    assert workflow()["concurrency"]["group"] == "release", "a group in common with ci.yml would cancel one of them"


def test_builds_what_the_documentation_builds():
    documented = all_blocks((ROOT / "CONTRIBUTING.md").read_text())[-1][1].splitlines()[2:]
    assert len(documented) == 4
    assert [command for command in commands("build") if command in documented] == documented


def test_images_are_for_two_architectures_and_have_labels():
    (given,) = uses("images", "docker/build-push-action")
    assert given["platforms"] == "linux/amd64,linux/arm64"
    assert (given["push"], given["sbom"], given["provenance"]) == (True, True, "mode=max")
    arguments = [line.partition("=")[0] for line in given["build-args"].splitlines()]
    declared = re.findall(r"^ARG (\w+)=", (ROOT / given["file"]).read_text(), re.MULTILINE)
    assert sorted(arguments) == sorted(declared)


def test_no_registry_is_named():
    """A fork publishes nowhere until its owner says where."""
    text = "".join(path.read_text() for path in FOLDER.iterdir())
    code = re.sub("^ *#.*", "", text, flags=re.MULTILINE)
    assert re.findall(r"[\w-]+(?:\.[\w-]+)*\.(?:io|org|com|dev)\b", code) == []


def test_release_has_the_section_of_the_changelog(tmp_path):
    (script,) = (command for command in commands("build") if "notes.md" in command)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    do(*command, cwd=tmp_path, GITHUB_REF_NAME=f"v{VERSION}")
    notes = (tmp_path / "notes/notes.md").read_text()
    assert f"## [{VERSION}] - " in changelog.partition(notes)[0].splitlines()[-1]
    assert "### Added" in notes
    assert "\n## " not in notes
    missing = {"PATH": "/usr/bin:/bin", "GITHUB_REF_NAME": "v99.0.0"}
    assert run_command(*command, cwd=tmp_path, env=missing).returncode != 0, "a release without notes"


def test_npm_package_names_the_repository_of_the_workflow(tmp_path):
    (step,) = (step for step in jobs()["build"]["steps"] if "npm pkg set" in step.get("run", ""))
    copy_checkout(tmp_path / "source")
    folder = tmp_path / "source" / step["working-directory"]
    do("bash", "-ec", step["run"], cwd=folder, GITHUB_SERVER_URL="https://git.example", GITHUB_REPOSITORY="a/b")
    stated = json.loads((folder / "package.json").read_text())
    assert stated.pop("repository") == {"type": "git", "url": "git+https://git.example/a/b.git"}
    assert stated == json.loads((WEB / "package.json").read_text())


def test_image_names_are_in_lower_case(tmp_path):
    (script,) = (command for command in commands("images") if "GITHUB_OUTPUT" in command)
    given = {"REGISTRY": "registry.example", "GITHUB_REPOSITORY": "Some/Signal", "GITHUB_REPOSITORY_OWNER": "Some"}
    do("bash", "-ec", script, GITHUB_OUTPUT=str(tmp_path / "output"), GITHUB_REF_NAME="v0.2.0", **given)
    names = ["image=registry.example/some/signal", "charts=registry.example/some/charts"]
    assert (tmp_path / "output").read_text().splitlines() == [*names, "version=0.2.0"]
