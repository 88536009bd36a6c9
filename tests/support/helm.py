"""The Helm chart, rendered by Helm's own library.

Helm runs in a process of its own, because Python warns about forks of processes with threads.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .needs import require
from .paths import ROOT

CHART = ROOT / "examples/kubernetes/tornado-signal"
EXAMPLES = ROOT / "examples/kubernetes/values"
BOUND_S = 100
RENDER = """
import json, sys
import helm_python as helm
chart, namespace, all_values = json.load(sys.stdin)
answers = []
with helm.Chart.load(chart) as loaded:
    for text in all_values:
        try:
            values = helm.values_from_yaml(text)
            loaded.validate_schema(values)
            found = {"files": loaded.render(values, name="signal", namespace=namespace)}
            found["lint"] = helm.lint(chart, values, strict=True)["messages"]
        except helm.HelmError as error:
            found = {"error": str(error)}
        answers.append(found)
json.dump(answers, sys.stdout)
"""


class Rejected(Exception):
    """Values that the chart refuses."""


class Release:
    """The rendered release `signal`: its manifests, notes, and findings of `helm lint` without recommendations."""

    def __init__(self, files: dict[str, str], lint: list[dict[str, Any]]) -> None:
        import yaml

        self.notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
        manifests = [text for name, text in files.items() if name.endswith(".yaml")]
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C it takes a tenth of the time
        self.objects = [each for text in manifests for each in yaml.load_all(text, loader) if each is not None]
        self.lint = [each["error"] for each in lint if each["severity"] > 1]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = self.all(kind)
        return found

    @property
    def variables(self) -> dict[str, str]:
        return self.one("ConfigMap")["data"]

    @property
    def pod(self) -> dict[str, Any]:
        return self.one("Deployment")["spec"]["template"]["spec"]

    @property
    def container(self) -> dict[str, Any]:
        (found,) = self.pod["containers"]
        return found


def render_all(all_values: Sequence[str]) -> list[Release | Rejected]:
    """Render the chart with each of some values, which are YAML or JSON."""
    require("helm_python", "yaml")
    given = json.dumps([str(CHART), "default", list(all_values)])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELM_")}
    options = {"input": given, "capture_output": True, "text": True, "timeout": BOUND_S, "env": environment}
    done = subprocess.run([sys.executable, "-c", RENDER], check=False, **options)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return [Rejected(each["error"]) if "error" in each else Release(**each) for each in answers]


def render(values: str | Path) -> Release:
    """Render the chart with values that it accepts, which are YAML or the path of a file with it."""
    (found,) = render_all([values.read_text() if isinstance(values, Path) else values])
    assert isinstance(found, Release), found
    return found
