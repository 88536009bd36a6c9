"""Benchmarks of tornado-signal beside a bare ceiling server; `tests/bench/run --help` says how to use it.

Every figure is measured next to the ceiling, or next to what it is compared with, in turns: compare ratios within one
run, never figures of different runs or machines.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

from . import browser, cluster, figures, growth, latency, life, report, rooms, throughput, waits, websockets
from .processes import BenchError, Target

SIZES = {"full": figures.FULL, "quick": figures.QUICK, "smoke": figures.SMOKE}
PARTS = {
    "endpoints": throughput.endpoints,
    "durability": throughput.durability,
    "broker": throughput.broker,
    "latency": latency.latency,
    "connections": growth.connections,
    "waits": waits.waits,
    "websockets": websockets.websockets,
    "life": life.life,
    "browser": browser.browser,
    "rooms": rooms.rooms,
    "growth": growth.growth,
    "sweep": latency.sweep,
    "cluster": cluster.cluster,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/bench/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="size", action="store_const", const="quick", help="less than a minute")
    sizes.add_argument("--smoke", dest="size", action="store_const", const="smoke", help="only shows that it works")
    parser.add_argument(
        "--only",
        metavar="PART",
        action="append",
        choices=PARTS,
        help=f"one part, or several with several --only: {', '.join(PARTS)}",
    )
    parser.add_argument("--seconds", type=float, help="how long `life` lasts (default: 120; --quick: 12)")
    parser.add_argument("--rate", type=float, help="pairs a second in `life` (default: 80)")
    parser.add_argument(
        "--server",
        metavar="COMMAND",
        action="append",
        default=[],
        help="`life` measures this one, too, in the same turns: another checkout's .venv/bin/tornado-signal",
    )
    parser.add_argument("--url", help="measure the server there instead: everything that needs no control over it")
    parser.add_argument("--pid", type=int, help="the process of that server (with its children), for CPU and memory")
    parser.add_argument(
        "--dir",
        type=Path,
        default=tempfile.gettempdir(),
        help="where the databases go; which disk that is matters (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    arguments = parser.parse_args()
    if arguments.pid and not arguments.url:
        parser.error("--pid goes with --url")
    for name in ("seconds", "rate"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < float("inf"):
            parser.error(f"--{name} must be more than 0")
    size = arguments.size or "full"
    changed = {"life_s": arguments.seconds, "life_rate": arguments.rate}
    measured = dataclasses.replace(SIZES[size], **{name: value for name, value in changed.items() if value is not None})
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tornado-signal-bench-", dir=arguments.dir) as name:
        where = Path(name)
        given = Target(arguments.url, arguments.pid) if arguments.url else None
        bench = figures.Bench(measured, where, given, arguments.server)
        conditions = report.setup(
            {
                "Measured": arguments.url or "tornado-signal of this checkout",
                "Options": f"{size} run; parts: {', '.join(arguments.only or PARTS)}",
                "Read so": "ratios within this run hold; its absolute figures are this machine's, at this hour",
            },
            where,
        )
        report.print_setup(conditions)
        status = 0
        for part in arguments.only or PARTS:
            print(f"{time.perf_counter() - began_s:5.0f} s: measuring {part} …", file=sys.stderr, flush=True)
            try:
                PARTS[part](bench)
            except BenchError as error:
                print(f"{part}: {error}", file=sys.stderr)
                status = 1
            except KeyboardInterrupt:
                print("stopped: what was measured until then", file=sys.stderr)
                status = 1
                break
    conditions["Took"] = f"{time.perf_counter() - began_s:.0f} s"
    report.print_figures(bench.figures)
    print(f"took {conditions['Took']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(report.document(conditions, bench.figures), indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
