"""A short soak finds no fault, misses data that is deleted, and its verdict names what grows or fails."""

import subprocess
import sys
import time

import pytest
from soak import verdict
from soak.tally import Outages, Tally
from support.paths import TESTS

RUN = TESTS / "soak" / "run"
LEVEL = {"memory_mib": 60.0, "descriptors": 300, "disk_mib": 20.0, "p50_ms": 3.0, "p99_ms": 40.0}
ALL_DONE = dict.fromkeys(verdict.MUST_HAVE, 1)
pytestmark = pytest.mark.slow


SPLIT = """
import argparse, asyncio, pathlib, sys, uvloop
from soak import cluster, protocols

class Split(cluster.ClusterSoak):
    def _maker(self, number):
        make = super()._maker(number)
        return lambda port: make(port, **{"redis-prefix": f"server-{number}:"})

    async def _cause_outages(self):
        async with asyncio.timeout(60):
            while len({line.split(":")[0] for line in self.tally.wrong}) < 5:
                await asyncio.sleep(0.1)

protocols.ARRIVAL_S = 1.0
options = argparse.Namespace(
    minutes=0.01, peers=60, pause=0.5, session_timeout_ms=20_000, cluster="valkey", replicas=1
)
soak = Split(options, pathlib.Path(sys.argv[1]))
try:
    uvloop.run(soak.run())
finally:
    soak.close()
print(*sorted({line.split(":")[0] for line in soak.tally.wrong}), sep="\\n")
"""


@pytest.mark.weekly
def test_soak_reports_servers_that_do_not_share_their_cluster(tmp_path):
    python = [sys.executable, "-c", SPLIT, tmp_path]
    done = subprocess.run(python, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {"PeerJS", "sessions", "tracker", "ws-relay", "y-webrtc"}
    assert expected <= set(done.stdout.split("\n")), done.stdout


FORGETFUL = """
import argparse, pathlib, shutil, sys, uvloop
from soak.__main__ import Soak

class Forgetful(Soak):
    def _make(self, port):
        shutil.rmtree(self.where / "data", ignore_errors=True)
        return super()._make(port)

options = argparse.Namespace(minutes=0.05, peers=50, session_timeout_ms=20_000, no_restarts=True)
soak = Forgetful(options, pathlib.Path(sys.argv[1]))
uvloop.run(soak.run())
print(*sorted({line.split(":")[0] for line in soak.tally.wrong}), sep="\\n")
"""


def test_soak_reports_lost_sessions(tmp_path):
    python = [sys.executable, "-c", FORGETFUL, tmp_path]
    done = subprocess.run(python, cwd=TESTS, capture_output=True, text=True, check=False)
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


TWO_HOURS = range(0, 7200, 60)
STEADY = {"memory_mib": 30.0, "descriptors": 200, "tasks": 50, "keys": 600}
ALL_DONE_ON_CLUSTER = dict.fromkeys(verdict.CLUSTER_MUST_HAVE, 1)


def judge_growth(name, share, seconds=TWO_HOURS):
    """Judge samples in which one quantity grows from the first to the last second, by a share."""
    samples = [STEADY | {"at_s": at_s, name: STEADY[name] * (1 + share * at_s / seconds[-1])} for at_s in seconds]
    return verdict.judge_cluster(samples, ALL_DONE_ON_CLUSTER, [])


@pytest.mark.parametrize("name", ["memory_mib", "descriptors", "tasks"])
def test_growth_above_two_percent_between_thirds_is_reported(name):
    assert judge_growth(name, 0.03) == []
    (sentence,) = judge_growth(name, 0.05)
    assert sentence.startswith(f"{name} grows: ")
    assert judge_growth(name, 0.05, range(0, 1000, 10)) == []  # too short to judge


def test_failures_and_missing_exchanges_of_a_cluster_are_reported():
    done = ALL_DONE_ON_CLUSTER | {"PeerJS: offers answered": 0}
    assert verdict.judge_cluster([], done, ["b"]) == ["1 times: b", "never: PeerJS: offers answered"]


def test_failures_are_accepted_only_during_outages_of_what_they_used():
    tally = Tally(0)
    other = tally.of(1, Outages())

    def accepted(which, opened_s, began_s):
        before = tally.excused.total()
        which.broken("HTTP", "a request", opened_s, began_s)
        return tally.excused.total() > before

    began_s = time.monotonic()
    assert not accepted(tally, began_s, began_s)
    tally.outages.begin()
    assert accepted(tally, began_s, time.monotonic())
    assert not accepted(other, began_s, began_s)
    tally.outages.end()
    assert accepted(tally, began_s, time.monotonic())  # its connection was lost
    assert not accepted(tally, time.monotonic(), time.monotonic())
    tally.node_outages.begin()
    assert accepted(tally, time.monotonic(), time.monotonic())
    assert accepted(other, time.monotonic(), time.monotonic())
    tally.node_outages.end()
    assert not accepted(other, began_s, time.monotonic())  # the connection was not lost
    tally.node_outages.begin()
    tally.node_outages.end(settled_s=3600)
    assert accepted(other, began_s, time.monotonic())
    assert tally.wrong == ["HTTP, a request"] * 4
