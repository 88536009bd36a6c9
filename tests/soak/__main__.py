"""Soak test of tornado-signal with thousands of peers, kills and restarts. See `tests/soak/run --help`.

Half of the peers use WebSockets, and some of them hold offers.

In the first two fifths the server is alternately killed and restarted. Then it runs for half of the time, in which
memory, descriptors, disk and latency are judged. At the end it is restarted and killed again, and everything
acknowledged is checked. Growth is judged in runs of at least ten minutes. The exit status is 0 if all was level,
nothing was lost, and only restarts caused failures.

With --cluster three servers share a cluster, and most peers speak the protocols of PeerJS, y-webrtc, ws-relay and
WebTorrent trackers. The first server is never restarted. The two others are killed and drained in turns, and primaries
of the cluster are killed and replaced. Memory, descriptors and tasks of the first server may grow by 2 % from the first
to the last third after a warm-up of a quarter of the run. This is judged in runs of two hours or more.
"""

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

import uvloop
from bench.processes import many_files
from support.redis_servers import KINDS

from .cluster import ClusterSoak
from .servers import Soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/soak/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10, help="how long (default: %(default)s)")
    add("--peers", type=int, default=2000, help="how many at once (default: %(default)s)")
    add("--session-timeout-ms", type=int, default=20_000, help="lifetime of a session (default: %(default)s)")
    add("--cluster", choices=KINDS, help="run three servers that share a cluster of this kind")
    add("--pause", type=float, default=1, help="factor of the peers' pauses (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write down what was recorded")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise servers and nodes would continue to run
    with many_files(), tempfile.TemporaryDirectory(prefix="tornado-signal-soak-") as name:
        soak = (ClusterSoak if options.cluster else Soak)(options, Path(name))
        try:
            uvloop.run(soak.run())
        finally:
            soak.close()
    report, against = soak.report()
    for key, value in report.items():
        print(f"{key}: {value}")
    if options.json:
        report |= {"against": against, "samples": soak.samples, "outages": soak.outages}
        options.json.write_text(json.dumps(report, indent=1))
    for each in against:
        print(f"AGAINST: {each}")
    print("not good" if against else "level, nothing lost, nothing failed but by the outages")
    return bool(against)


if __name__ == "__main__":
    sys.exit(main())
