"""Single faults of a cluster that must not lose an acknowledged write."""

import contextlib
import time
from typing import NamedTuple

from support.networks import dropping
from support.redis_servers import RedisCluster
from support.redis_traffic import Publishers
from support.waiting import until

SERVER = "127.0.0.1"  # source address of the servers
BOUND_S = 60
WRITTEN_S = 1.0  # duration of the load before and after the fault
PAUSED_S = 1.5
LINK_LOST_S = 0.2
OPTIONS = ("--appendonly", "yes", "--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")


class Outcome(NamedTuple):
    acknowledged: int
    refused: int
    lost: int
    longest_gap_s: float
    winner: str  # the replica that was promoted
    found_s: float | None = None  # between the election and the first write


def make_cluster(kind):
    return RedisCluster(kind, 3, 2, *OPTIONS, apart=True)


def between(some, others):
    """Return firewall rules for packets between two sets of addresses."""
    some, others = (f"{{ {', '.join(each)} }}" for each in (some, others))
    return [f"ip saddr {some} ip daddr {others}", f"ip saddr {others} ip daddr {some}"]


@contextlib.contextmanager
def _writing(cluster, servers, primary, written_s):
    """Yield writers to the slots of the primary, and a function that ends the trial, given the winner."""
    cluster.mark_logs()
    writers = Publishers(servers, 8, cluster.slots_of(primary))

    def end(winner, found_s=None):
        """Wait until the cluster is complete and accepts writes, and count lost writes."""
        primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")
        cluster.wait_until_whole()
        writers.wait_for(20)
        time.sleep(written_s)
        lost = writers.wrong()
        refused = writers.statuses.total() - writers.statuses[200]
        return Outcome(len(writers.writes), refused, len(lost), writers.longest_gap_s(), winner, found_s)

    try:
        time.sleep(written_s)
        yield writers, end
    finally:
        writers.stop()


def minority(cluster, servers, primary, written_s=WRITTEN_S):
    """Cut the primary, one replica and the servers off from the majority and the other replica."""
    near, far = cluster.replicas_of(primary)
    here = {primary.host, near.host}
    others = {node.host for node in cluster.servers} - here
    with _writing(cluster, servers, primary, written_s) as (_, end):
        with dropping(*between([*here, SERVER], others)):
            until(lambda: _has_won(far), BOUND_S)
            time.sleep(2 * written_s)
        return end(far.address)


def cut_off(cluster, servers, primary, written_s=WRITTEN_S):
    """Isolate the primary in both directions."""
    replicas = cluster.replicas_of(primary)
    with _writing(cluster, servers, primary, written_s) as (writers, end):
        with dropping(f"ip saddr {primary.host}", f"ip daddr {primary.host}"):
            winner = until(lambda: next(filter(_has_won, replicas), None), BOUND_S, pause_s=0.002)
            won_s = time.monotonic()
            writers.wait_for(20)
            found_s = next(time_s for time_s, _ in writers.writes if time_s > won_s) - won_s
        return end(winner.address, found_s)


def late_replica(cluster, servers, primary, written_s=WRITTEN_S):
    """Kill the primary after it has lost one replica. The other replica has every write and is late in the election."""
    good, bad = cluster.replicas_of(primary)
    with _writing(cluster, servers, primary, written_s) as (_, end):
        with dropping(*between([primary.host], [bad.host])):
            time.sleep(LINK_LOST_S)
            primary.kill()
            # An election that a busy machine began earlier can keep the outdated one from this one.
            delayed = "Start of election delayed"
            until(lambda: delayed in bad.new_log() or cluster.replaced(primary), BOUND_S, pause_s=0.002)
            with good.frozen():
                time.sleep(PAUSED_S)
            until(lambda: cluster.replaced(primary), BOUND_S)
        winner = next(its for _, _, its in cluster.slots(besides=primary) if its in (good, bad))
        primary.start()
        return end("the late one" if winner is good else "the outdated one")


def _has_won(node):
    return "Failover election won" in node.new_log()


SHAPES = {"cut-off": cut_off, "minority": minority, "late-replica": late_replica}
