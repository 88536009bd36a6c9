"""Repeat single faults of a cluster under load, and count lost acknowledged writes. The number must be 0."""

import argparse
import statistics
import sys

from support.command import Server
from support.networks import own_network
from support.redis_servers import KINDS, binary
from support.waiting import output, run_command

from .trials import SHAPES, make_cluster

SERVERS = 2


def main():
    parser = argparse.ArgumentParser(prog="tests/faults/run", description=__doc__)
    parser.add_argument("--only", choices=SHAPES, help="one kind of fault")
    parser.add_argument("--kind", choices=KINDS, help="one kind of server")
    parser.add_argument("--trials", type=int, default=10, help="of each (default: %(default)s)")
    arguments = parser.parse_args()
    lost = 0
    for kind in [arguments.kind] if arguments.kind else KINDS:
        print(output(run_command(binary(kind), "--version")).strip(), flush=True)
        for shape in [arguments.only] if arguments.only else SHAPES:
            outcomes = []
            for number in range(arguments.trials):
                outcomes.append(outcome := trial(kind, shape))
                print(f"{kind}, {shape}, {number + 1}: {outcome}", flush=True)
            gaps_s = [each.longest_gap_s for each in outcomes]
            lost += sum(each.lost for each in outcomes)
            found_s = [each.found_s for each in outcomes if each.found_s is not None]
            delay = f", median {statistics.median(found_s):.2f} s after the election" if found_s else ""
            print(
                f"{kind}, {shape}: {len(outcomes)} trials, {sum(each.acknowledged for each in outcomes)} acknowledged, "
                f"{sum(each.lost for each in outcomes)} lost; longest time without writes "
                f"{max(gaps_s):.1f} s, median {statistics.median(gaps_s):.1f} s{delay}",
                flush=True,
            )
    return 1 if lost else 0


def trial(kind, shape):
    with own_network():
        cluster = make_cluster(kind)
        options = ("--store", "redis", "--redis-nodes", cluster.address)
        servers = [Server(*options, "--redis-timeout-ms", "1000") for _ in range(SERVERS)]
        try:
            outcome = SHAPES[shape](cluster, servers, cluster.primaries_now()[0])
            if outcome.lost:
                print(cluster.evidence(), flush=True)
            return outcome
        finally:
            for server in servers:
                server.end()
            cluster.kill()


if __name__ == "__main__":
    sys.exit(main())
