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
import statistics
import sys
import tempfile
import time
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
from .servers import RestartedServer
from .tally import Tally

SAMPLES = 1200  # maximum number, at intervals of one second or more
CHURN_SHARE, STRETCH_SHARE = 0.4, 0.5
RESTART_PAUSE_S = (4, 15)  # between two restarts


class Soak:
    """One run, with the command-line options and a directory for the database."""

    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        self.duration_s = options.minutes * 60
        self.timeout_ms = options.session_timeout_ms
        self.churn_share, self.stretch_share = (0.0, 1.0) if options.no_restarts else (CHURN_SHARE, STRETCH_SHARE)
        self.where = where
        self.samples: list[dict] = []
        self.restarts: list[tuple[float, str]] = []
        self.stretch_s = (0.0, 0.0)
        self.tally = Tally(0)
        self.server = RestartedServer(self.tally, self._make)
        self.grace_ms = self.timeout_ms // 5
        self.world = World(self.tally, options.peers, self.timeout_ms, self.grace_ms)

    async def run(self) -> None:
        self.began_s = time.monotonic()
        await self.server.start()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.world.live()), group.create_task(self._record())]
            pause_s = min(max(RESTART_PAUSE_S[0], self.duration_s / 20), RESTART_PAUSE_S[1])
            await self._churn(self.churn_share * self.duration_s, pause_s)
            self.stretch_s = (self._now_s(), self._now_s() + self.stretch_share * self.duration_s)
            await asyncio.sleep(self.stretch_share * self.duration_s)
            await self._churn(self.duration_s, pause_s)
            for task in tasks:
                task.cancel()
        await self._restart("kill")
        self.world.done["found at the end"] = await self.world.find_all()
        await self.server.end(signal.SIGTERM)

    def close(self) -> None:
        self.server.close()

    def _make(self, port: int) -> Server:
        options = {"port": port, "session-timeout-ms": self.timeout_ms, "hold-grace-ms": self.grace_ms}
        return tornado_signal(self.where / "data", durability="fsync", **options)

    def _now_s(self) -> float:
        return time.monotonic() - self.began_s

    async def _churn(self, until_s: float, pause_s: float) -> None:
        while self._now_s() + pause_s <= until_s:
            await asyncio.sleep(pause_s)
            await self._restart("stop" if len(self.restarts) % 2 else "kill")
        await asyncio.sleep(max(0, until_s - self._now_s()))

    async def _restart(self, kind: str) -> None:
        self.restarts.append((self._now_s(), kind))
        await self.server.restart(kind)

    async def _record(self) -> None:
        pause_s = max(1.0, self.duration_s / SAMPLES)
        answers = 0
        while True:
            await asyncio.sleep(pause_s)
            self.world.forget()
            total = sum(self.tally.answers.values())
            rate, answers = (total - answers) / pause_s, total
            latencies_s = self.tally.latencies_s[:]
            self.tally.latencies_s.clear()
            process = self.server.process
            if process is None or not latencies_s:
                continue
            try:
                seen = look(process.pid, self.where / "data")
            except OSError as error:  # the server is being restarted, or has exited
                if self.server.process is process:
                    self.tally.wrong.append(f"the server is gone: {error}")
                continue
            sample = {"at_s": self._now_s(), "requests_per_s": rate, "failed": len(self.tally.wrong)}
            sample |= {"p50_ms": percentile(latencies_s, 0.5), "p99_ms": percentile(latencies_s, 0.99)}
            sample |= {"memory_mib": seen.memory_mib, "descriptors": seen.descriptors}
            sample["disk_mib"] = disk_mib(self.where / "data", lambda stat: stat.st_size)
            self.samples.append(sample)


def report_on(soak: Soak, restarted: bool) -> tuple[dict, list[str]]:
    """Return what a run on one server has shown, and what is against it."""
    stretch = [sample for sample in soak.samples if soak.stretch_s[0] <= sample["at_s"] <= soak.stretch_s[1]]
    report = {
        "failed by restarts": sum(soak.tally.excused.values()),
        "restarts": {kind: sum(each == kind for _, each in soak.restarts) for kind in ("kill", "stop")},
    }
    if len(stretch) > 3:
        quarters = {key: verdict.quarters(stretch, key) for key in verdict.BOUNDS}
        report["second and last quarter"] = {key: [round(each, 1) for each in of] for key, of in quarters.items()}
        report["memory is judged"] = verdict.judges_memory(stretch)
    return report, verdict.judge(stretch, soak.world.done, soak.tally.wrong, restarted=restarted)


def report_on_cluster(soak: ClusterSoak) -> tuple[dict, list[str]]:
    """Return what a run with a cluster has shown, and what is against it."""
    report = {
        "peers by protocol": soak.peers,
        "messages": dict(soak.crowd.messages),
        "failed by outages": dict(soak.tally.excused),
        "outages": dict(Counter(kind for _, kind in soak.restarts)),
    }
    if soak.samples:
        thirds = {key: verdict.thirds(soak.samples, key) for key in verdict.GROWTH}
        report["first and last third"] = {key: [round(each, 1) for each in of] for key, of in thirds.items()}
        report["growth is judged"] = verdict.judges_growth(soak.samples)
        used = {key: [sample[key] for sample in soak.samples] for key in soak.samples[0] if key.startswith("cpu of")}
        report["% of a processor"] = {key: round(statistics.median(values), 1) for key, values in used.items()}
    return report, verdict.judge_cluster(soak.samples, soak.world.done, soak.tally.wrong)


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
    add("--replicas", type=int, default=2, help="of each primary of the cluster (default: %(default)s)")
    add("--pause", type=float, default=1, help="factor of the peers' pauses, with --cluster (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write down what was recorded")
    add("--dir", type=Path, default=tempfile.gettempdir(), help="where the database goes (default: %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise servers and nodes would continue to run
    with many_files(), tempfile.TemporaryDirectory(prefix="tornado-signal-soak-", dir=options.dir) as name:
        soak = (ClusterSoak if options.cluster else Soak)(options, Path(name))
        try:
            uvloop.run(soak.run())
        finally:
            soak.close()
    more, against = report_on_cluster(soak) if options.cluster else report_on(soak, not options.no_restarts)
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
