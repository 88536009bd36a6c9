"""Benchmarks of tornado-signal. See `tests/bench/run --help`.

Figures that depend on the machine are measured in alternation with a reference, such as the server of PeerJS. Compare
ratios within one run, never figures of different runs or machines.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pytest

from . import figures, instructions, life, protocols, report, websockets
from .processes import BenchError

ALL = (life.life, websockets.websockets, protocols.protocols, instructions.instructions)
PARTS = {measure.__name__: measure for measure in ALL}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/bench/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a few minutes")
    several = f"one part, or several with several --only: {', '.join(PARTS)}"
    add("--only", metavar="PART", action="append", choices=PARTS, help=several)
    other = "`instructions` also counts those of the server of this checkout, which has a .venv"
    add("--server", metavar="CHECKOUT", type=lambda name: Path(name).resolve(), help=other)
    arguments = parser.parse_args()
    parts = arguments.only or list(PARTS)
    began_s = time.perf_counter()
    status = 0
    with tempfile.TemporaryDirectory(prefix="tornado-signal-bench-") as name:
        bench = figures.Bench(Path(name), arguments.server, whole=not arguments.quick)
        print(f"{'quick' if arguments.quick else 'full'} run; parts: {', '.join(parts)}")
        for name, value in report.setup(bench.where).items():
            print(f"{name + ':':13}{value}", flush=True)
        for part in parts:
            print(f"{time.perf_counter() - began_s:5.0f} s: measuring {part} …", file=sys.stderr, flush=True)
            try:
                PARTS[part](bench)
            except (BenchError, pytest.skip.Exception) as error:  # the machine may lack a requirement
                print(f"{part}: {error}", file=sys.stderr)
                status = 1
            except KeyboardInterrupt:
                print("stopped: what was measured until then", file=sys.stderr)
                status = 1
                break
    report.print_figures(bench.figures)
    print(f"took {time.perf_counter() - began_s:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
