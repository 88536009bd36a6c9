"""A short soak finds no fault, misses data that is deleted, and its verdict names what grows or fails."""

import argparse
import shutil
import time

import pytest
import uvloop
from soak import cluster, protocols, verdict
from soak.servers import Soak
from soak.tally import Outages, Tally
from support.rpc import until

LEVEL = {"memory_mib": 60.0, "descriptors": 300, "disk_mib": 20.0, "p50_ms": 3.0, "p99_ms": 40.0}
LEVEL |= {"tasks": 50, "keys": 600}  # of a server of a cluster
ALONE, CLUSTER = verdict.ALONE, verdict.CLUSTER
pytestmark = pytest.mark.slow


def wrong_in(soak_class, where, **options):
    """Return what a short run with broken servers finds wrong."""
    soak = soak_class(argparse.Namespace(session_timeout_ms=20_000, **options), where)
    try:
        uvloop.run(soak.run())
    finally:
        soak.close()
    return {line.split(":")[0] for line in soak.tally.wrong}


@pytest.mark.weekly
def test_soak_reports_servers_that_do_not_share_their_cluster(tmp_path, monkeypatch):
    class Split(cluster.ClusterSoak):
        def maker(self, number):
            make = super().maker(number)
            return lambda port: make(port, **{"redis-prefix": f"server-{number}:"})

        async def cause_outages(self):
            await until(lambda: len({line.split(":")[0] for line in self.tally.wrong}) >= 5)

    monkeypatch.setattr(protocols, "ARRIVAL_S", 1.0)
    monkeypatch.setattr(cluster, "REPLICAS", 1)
    found = wrong_in(Split, tmp_path, minutes=0.01, peers=60, pause=0.5, cluster="valkey")
    assert {"PeerJS", "sessions", "tracker", "ws-relay", "y-webrtc"} <= found


def test_soak_reports_lost_sessions(tmp_path):
    class Forgetful(Soak):
        def make(self, port):
            shutil.rmtree(self.where / "data", ignore_errors=True)
            return super().make(port)

    assert {"poll", "sessions"} <= wrong_in(Forgetful, tmp_path, minutes=0.05, peers=50, pause=1)


def judge(rules, wrong=(), seconds=range(0, 7200, 60), undone=(), **changes):
    """Return the verdict about samples of two hours. Each change returns a figure of LEVEL at a share of the run."""
    shares = [(at_s, at_s / seconds[-1]) for at_s in seconds]
    samples = [LEVEL | {"at_s": at_s} | {name: of(share) for name, of in changes.items()} for at_s, share in shares]
    done = dict.fromkeys(rules.done, 1) | dict.fromkeys(undone, 0)
    return verdict.judge(samples, rules, done, list(wrong))


def test_oscillating_figures_are_level_and_growing_ones_are_reported():
    oscillating = {name: lambda share, name=name: LEVEL[name] * (1 + share * 40 % 1 / 4) for name in LEVEL}
    assert judge(ALONE, **oscillating) == []
    for rules, name in [(each, name) for each in (ALONE, CLUSTER) for name in each.most]:
        (sentence,) = judge(rules, **{name: lambda share, name=name: LEVEL[name] + 10_000 * max(0, share - 0.6)})
        assert sentence.startswith(f"{name} grows: ")


@pytest.mark.parametrize(
    ("rules", "name", "fine", "too_much"),
    [
        (ALONE, "memory_mib", 0.09, 0.11),
        *((CLUSTER, name, 0.03, 0.05) for name in ("memory_mib", "descriptors", "tasks")),
    ],
)
def test_growth_between_the_first_and_the_last_third_is_limited(rules, name, fine, too_much):
    less, more = ({name: lambda share, by=by: LEVEL[name] * (1 + by * share)} for by in (fine, too_much))
    assert judge(rules, **less) == judge(rules, seconds=range(0, 280, 7), **more) == []  # the latter is too short
    (sentence,) = judge(rules, **more)
    assert sentence.startswith(f"{name} grows: ")


def test_failures_and_missing_actions_are_reported():
    assert judge(ALONE, ["b", "a", "b"], undone=["met"]) == ["1 times: a", "2 times: b", "never: met"]
    missing = "PeerJS: offers answered"
    assert judge(CLUSTER, ["b"], undone=[missing]) == ["1 times: b", f"never: {missing}"]
    assert verdict.judge([], ALONE, {}, []) == [f"never: {name}" for name in sorted(ALONE.done)]


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
