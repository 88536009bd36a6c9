"""A short soak finds no fault, misses data that is deleted, and its verdict names what grows or fails."""

import sys
import time

import pytest
from soak import verdict
from soak.tally import Outages, Tally
from support.paths import TESTS
from support.waiting import output, run_command

LEVEL = {"memory_mib": 60.0, "descriptors": 300, "disk_mib": 20.0, "p50_ms": 3.0, "p99_ms": 40.0}
STEADY = {"memory_mib": 30.0, "descriptors": 200, "tasks": 50, "keys": 600}  # of a server of a cluster
ALL_DONE, ALL_DONE_ON_CLUSTER = (dict.fromkeys(names, 1) for names in (verdict.MUST_HAVE, verdict.CLUSTER_MUST_HAVE))
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
cluster.REPLICAS = 1
options = argparse.Namespace(minutes=0.01, peers=60, pause=0.5, session_timeout_ms=20_000, cluster="valkey")
soak = Split(options, pathlib.Path(sys.argv[1]))
try:
    uvloop.run(soak.run())
finally:
    soak.close()
print(*sorted({line.split(":")[0] for line in soak.tally.wrong}), sep="\\n")
"""


@pytest.mark.weekly
def test_soak_reports_servers_that_do_not_share_their_cluster(tmp_path):
    found = output(run_command(sys.executable, "-c", SPLIT, tmp_path, cwd=TESTS)).split("\n")
    assert {"PeerJS", "sessions", "tracker", "ws-relay", "y-webrtc"} <= {*found}


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
    found = output(run_command(sys.executable, "-c", FORGETFUL, tmp_path, cwd=TESTS)).split("\n")
    assert {"poll", "sessions"} <= {*found}


def make_stretch(seconds=range(100, 460, 9), **changes):
    """Return samples of six minutes. Each change returns a quantity of LEVEL at a second."""
    return [LEVEL | {"at_s": at_s} | {name: change(at_s) for name, change in changes.items()} for at_s in seconds]


def test_oscillating_quantities_are_level_and_growing_ones_are_reported():
    oscillating = {name: lambda at_s, value=value: value * (1 + at_s % 60 / 200) for name, value in LEVEL.items()}
    assert verdict.judge(make_stretch(**oscillating), ALL_DONE, []) == []
    for name, value in LEVEL.items():
        growing = make_stretch(**{name: lambda at_s, value=value: value + (at_s - 100) ** 3})
        (sentence,) = verdict.judge(growing, ALL_DONE, [])
        assert sentence.startswith(f"{name} grows: ")


def test_memory_growth_above_five_percent_is_reported():
    less, more = (
        make_stretch(memory_mib=lambda at_s, by=by: 60 * (1 + by * (at_s - 145) / 180)) for by in (0.04, 0.07)
    )
    assert verdict.judge(less, ALL_DONE, []) == []
    assert verdict.judge(more, ALL_DONE, []) == ["memory_mib grows: 62.0 in the second quarter, 66.2 in the last"]
    assert verdict.judge(more[:20], ALL_DONE, []) == []  # too short to judge memory


@pytest.mark.parametrize("name", ["memory_mib", "descriptors", "tasks"])
def test_growth_above_two_percent_between_thirds_is_reported_of_a_cluster(name):
    def judge(share, seconds=range(0, 7200, 60)):
        samples = [STEADY | {"at_s": at_s, name: STEADY[name] * (1 + share * at_s / seconds[-1])} for at_s in seconds]
        return verdict.judge_cluster(samples, ALL_DONE_ON_CLUSTER, [])

    assert judge(0.03) == []
    (sentence,) = judge(0.05)
    assert sentence.startswith(f"{name} grows: ")
    assert judge(0.05, range(0, 1000, 10)) == []  # too short to judge


def test_failures_and_missing_kinds_of_events_are_reported():
    done = ALL_DONE | {"met": 0}
    failures = ["1 times: a", "2 times: b", "the run was too short to say anything"]
    assert verdict.judge([], done, ["b", "a", "b"]) == failures
    assert verdict.judge(make_stretch(), done, []) == ["never: met"]
    assert verdict.judge(make_stretch(), ALL_DONE | {"taken over": 0}, [], restarted=False) == []
    on_cluster = ALL_DONE_ON_CLUSTER | {"PeerJS: offers answered": 0}
    assert verdict.judge_cluster([], on_cluster, ["b"]) == ["1 times: b", "never: PeerJS: offers answered"]


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
