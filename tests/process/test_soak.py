"""The soak runs for less than a minute and finds nothing, and its verdict names what grows or fails."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest
from soak import verdict
from support.paths import TESTS

RUN = TESTS / "soak" / "run"
LEVEL = {"memory_mib": 60.0, "descriptors": 300, "disk_mib": 20.0, "p50_ms": 3.0, "p99_ms": 40.0}
ALL_DONE = dict.fromkeys(verdict.MUST_HAVE, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_most_of_a_minute_is_level_and_nothing_is_lost(tmp_path):
    options = ["--minutes", 0.8, "--peers", 100, "--session-timeout-ms", 10_000, "--dir", tmp_path]
    files = ["--json", tmp_path / "soak.json", "--plot", tmp_path / "soak.svg"]
    done = subprocess.run([RUN, *map(str, options + files)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = json.loads((tmp_path / "soak.json").read_text())
    assert written["against"] == []
    assert written["requests"] > 1000
    assert min(written["restarts"].values()) >= 1
    assert len(written["samples"]) > 20
    curves = ElementTree.parse(tmp_path / "soak.svg").findall(".//{*}polyline")
    assert len(curves) == 7
    assert {path.name for path in tmp_path.iterdir()} == {"soak.json", "soak.svg"}


def test_what_goes_up_and_down_is_level():
    stretch = [{name: value * (1 + number % 3 / 10) for name, value in LEVEL.items()} for number in range(40)]
    assert verdict.judge(stretch, ALL_DONE, []) == []


@pytest.mark.parametrize("name", LEVEL)
def test_each_quantity_that_grows_is_named(name):
    stretch = [LEVEL | {name: LEVEL[name] + number**3} for number in range(40)]
    (sentence,) = verdict.judge(stretch, ALL_DONE, [])
    assert sentence.startswith(f"{name} grows: ")


def test_failures_are_counted_and_what_never_happened_is_named():
    done = ALL_DONE | {"met": 0}
    assert verdict.judge([], done, ["b", "a", "b"]) == [
        "1 times: a",
        "2 times: b",
        "the run was too short to say anything",
    ]
    assert verdict.judge([LEVEL] * 4, done, []) == ["never: met"]
