"""Soak test of tornado-signal with thousands of peers, kills and restarts. See `tests/soak/run --help`.

Half of the peers use WebSockets, and some of them hold offers.

In the first two fifths the server is alternately killed and restarted. Then it runs for half of the time, in which
memory, descriptors, disk and latency are judged. At the end it is restarted and killed again, and everything
acknowledged is checked. With --no-restarts it is killed only once, at the end. Memory is judged in runs of at least ten
minutes (five with --no-restarts). The exit status is 0 if all was level, nothing was lost, and only restarts caused
failures.

With --cluster three servers share a cluster, and most peers speak the protocols of PeerJS, y-webrtc, ws-relay and
WebTorrent trackers. The first server is never restarted. The two others are killed and drained in turns, and primaries
of the cluster are killed and replaced. Memory, descriptors and tasks of the first server may grow by 2 % from the first
to the last third after a warm-up of half an hour. This is judged in runs of 85 minutes or more.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import uvloop
from bench.client import percentile
from bench.processes import Server, many_files, tornado_signal
from hostile.watcher import disk_mib, look
from support.redis_servers import KINDS

from . import verdict
from .cluster import ClusterSoak
from .peers import World
from .servers import RestartedServer, Run

CHURN_SHARE, STRETCH_SHARE = 0.4, 0.5
RESTART_PAUSE_S = (4, 15)  # between two restarts


class Soak(Run):
    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        super().__init__(options, where)
        self.restarted = not options.no_restarts
        self.churn_share, self.stretch_share = (CHURN_SHARE, STRETCH_SHARE) if self.restarted else (0.0, 1.0)
        self.stretch_s = (0.0, 0.0)
        self.server = RestartedServer(self.tally, self._make)
        self.world = World(self.tally, options.peers, self.timeout_ms, self.grace_ms)

    async def run(self) -> None:
        await self.server.start()
        await self.live(self._cause_outages())
        await self._restart("kill")
        self.world.done["found at the end"] = await self.world.find_all()
        await self.server.end(signal.SIGTERM)

    def close(self) -> None:
        self.server.close()

    def _make(self, port: int) -> Server:
        options = {"port": port, "session-timeout-ms": self.timeout_ms, "hold-grace-ms": self.grace_ms}
        return tornado_signal(self.where / "data", durability="fsync", **options)

    async def _cause_outages(self) -> None:
        pause_s = min(max(RESTART_PAUSE_S[0], self.duration_s / 20), RESTART_PAUSE_S[1])
        await self._churn(self.churn_share * self.duration_s, pause_s)
        self.stretch_s = (self.now_s(), self.now_s() + self.stretch_share * self.duration_s)
        await asyncio.sleep(self.stretch_share * self.duration_s)
        await self._churn(self.duration_s, pause_s)

    async def _churn(self, until_s: float, pause_s: float) -> None:
        while self.now_s() + pause_s <= until_s:
            await asyncio.sleep(pause_s)
            await self._restart("stop" if len(self.restarts) % 2 else "kill")
        await asyncio.sleep(max(0, until_s - self.now_s()))

    async def _restart(self, kind: str) -> None:
        self.restarts.append((self.now_s(), kind))
        await self.server.restart(kind)

    async def sample(self) -> dict | None:
        process, latencies_s, data = self.server.process, self.tally.latencies_s, self.where / "data"
        if process is None or not latencies_s:
            return None
        try:
            seen = look(process.pid, data)
        except OSError as error:
            self.tally.wrong.append(f"the server is gone: {error}")
            return None
        sample = {"memory_mib": seen.memory_mib, "descriptors": seen.descriptors}
        sample["disk_mib"] = disk_mib(data, lambda stat: stat.st_size)
        return sample | {f"p{share}_ms": percentile(latencies_s, share / 100) for share in (50, 99)}

    def report(self) -> tuple[dict, list[str]]:
        stretch = [sample for sample in self.samples if self.stretch_s[0] <= sample["at_s"] <= self.stretch_s[1]]
        report = {
            "failed by restarts": sum(self.tally.excused.values()),
            "restarts": dict(Counter(kind for _, kind in self.restarts)),
            "memory is judged": verdict.judges_memory(stretch),
        }
        if len(stretch) > 3:
            quarters = {name: verdict.quarters(stretch, name) for name in verdict.BOUNDS}
            report["second and last quarter"] = {name: [round(each, 1) for each in of] for name, of in quarters.items()}
        return report, verdict.judge(stretch, self.world.done, self.tally.wrong, restarted=self.restarted)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/soak/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10, help="how long (default: %(default)s)")
    add("--peers", type=int, default=2000, help="how many at once (default: %(default)s)")
    add("--session-timeout-ms", type=int, default=20_000, help="lifetime of a session (default: %(default)s)")
    add("--no-restarts", action="store_true", help="let one server run the whole time")
    add("--cluster", choices=KINDS, help="run three servers that share a cluster of this kind")
    add("--pause", type=float, default=1, help="factor of the peers' pauses, with --cluster (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write down what was recorded")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise servers and nodes would continue to run
    with many_files(), tempfile.TemporaryDirectory(prefix="tornado-signal-soak-") as name:
        soak = (ClusterSoak if options.cluster else Soak)(options, Path(name))
        try:
            uvloop.run(soak.run())
        finally:
            soak.close()
    more, against = soak.report()
    report = {
        "minutes": options.minutes,
        "peers": options.peers,
        "requests": sum(soak.tally.answers.values()),
        "answers": dict(sorted(soak.tally.answers.items())),
        "done": dict(sorted(soak.world.done.items())),
        **more,
    }
    for key, value in report.items():
        print(f"{key}: {value}")
    if options.json:
        report |= {"against": against, "samples": soak.samples, "restarted": soak.restarts}
        options.json.write_text(json.dumps(report, indent=1))
    for each in against:
        print(f"AGAINST: {each}")
    print("not good" if against else "level, nothing lost, nothing failed but by the outages")
    return bool(against)


if __name__ == "__main__":
    sys.exit(main())
