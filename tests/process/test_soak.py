"""A short soak finds no fault, misses data that is deleted, and its verdict names what grows or fails."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from soak import verdict
from support.paths import TESTS

RUN = TESTS / "soak" / "run"
LEVEL = {"memory_mib": 60.0, "descriptors": 300, "disk_mib": 20.0, "p50_ms": 3.0, "p99_ms": 40.0}
ALL_DONE = dict.fromkeys(verdict.MUST_HAVE, 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_soak_is_level_and_loses_nothing(tmp_path):
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


FORGETFUL = """
import argparse, pathlib, shutil, sys, uvloop
from tests.soak.__main__ import Soak

class Forgetful(Soak):
    async def _start(self):
        shutil.rmtree(self.where / "data", ignore_errors=True)
        await super()._start()

options = argparse.Namespace(minutes=0.05, peers=50, session_timeout_ms=20_000, no_restarts=True)
soak = Forgetful(options, pathlib.Path(sys.argv[1]))
uvloop.run(soak.run())
print(*sorted({line.split(":")[0] for line in soak.tally.wrong}), sep="\\n")
"""


def test_soak_reports_lost_sessions(tmp_path):
    python = [sys.executable, "-c", FORGETFUL, tmp_path]
    done = subprocess.run(python, cwd=RUN.parents[2], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert {"poll", "sessions"} <= set(done.stdout.split("\n")), done.stdout


def make_stretch(change):
    """Return samples of six minutes. `change` returns the quantities that differ from LEVEL at a second."""
    return [LEVEL | {"at_s": at_s} | change(at_s) for at_s in range(100, 460, 9)]


def test_oscillating_quantity_is_level():
    stretch = make_stretch(lambda at_s: {name: value * (1 + at_s % 60 / 200) for name, value in LEVEL.items()})
    assert verdict.judge(stretch, ALL_DONE, []) == []


@pytest.mark.parametrize("name", LEVEL)
def test_growing_quantities_are_reported(name):
    stretch = make_stretch(lambda at_s: {name: LEVEL[name] + (at_s - 100) ** 3})
    (sentence,) = verdict.judge(stretch, ALL_DONE, [])
    assert sentence.startswith(f"{name} grows: ")


def test_memory_growth_above_five_percent_is_reported():
    def grow(share):
        return make_stretch(lambda at_s: {"memory_mib": 60 * (1 + share * (at_s - 145) / 180)})

    assert verdict.judge(grow(0.04), ALL_DONE, []) == []
    assert verdict.judge(grow(0.07), ALL_DONE, []) == ["memory_mib grows: 62.0 in the second quarter, 66.2 in the last"]
    assert verdict.judge(grow(0.07)[:20], ALL_DONE, []) == []  # too short to judge memory


def test_failures_and_missing_kinds_of_events_are_reported():
    done = ALL_DONE | {"met": 0}
    assert verdict.judge([], done, ["b", "a", "b"]) == [
        "1 times: a",
        "2 times: b",
        "the run was too short to say anything",
    ]
    assert verdict.judge(make_stretch(lambda at_s: {}), done, []) == ["never: met"]
    assert verdict.judge(make_stretch(lambda at_s: {}), ALL_DONE | {"taken over": 0}, [], restarted=False) == []
