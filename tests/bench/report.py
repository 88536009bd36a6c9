"""The results, the conditions of the measurement, and their presentation."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import os
import platform
import subprocess
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from tornado_signal.stores.leveldb.binding import plyvel

from .processes import ROOT

PACKAGES = ("tornado", plyvel.__name__, "httptools", "uvloop", "orjson", "sortedcontainers")


@dataclasses.dataclass
class Figure:
    part: str
    name: str
    value: float
    unit: str
    reference: float | None = None  # the reference's value in the same run, if comparable
    target: str = ""  # the target, if any
    reached: bool | None = None  # None if the target is not judged, or not in a run of this size
    note: str = ""  # information that a reader of the figure needs


def processor() -> str:
    models = [line.partition(": ")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return f"{models[0].strip() if models else '?'}, {len(os.sched_getaffinity(0))} cores to run on"


def setup(where: Path) -> dict[str, str]:
    mounts = [line.split()[1:3] for line in _lines("/proc/mounts")]
    changed = _output("git", "status", "--porcelain", "--", "tornado_signal", "tests/bench")
    return {
        "Date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "Commit": (_output("git", "rev-parse", "HEAD") or "unknown") + (", and changes on top" if changed else ""),
        "CPU": processor(),
        "Kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Load before": " ".join(f"{load:.2f}" for load in os.getloadavg()) + " (1, 5 and 15 minutes; 0 is best)",
        "Disk": max((len(place), kind) for place, kind in mounts if where.resolve().is_relative_to(place))[1],
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "Packages": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _output(*command: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def print_figures(figures: list[Figure]) -> None:
    notes = list(dict.fromkeys(figure.note for figure in figures if figure.note))
    rows = [("figure", "value", "reference", "ratio", "to reach", "reached")]
    for figure in figures:
        reached = {None: "not judged" if figure.target else "", True: "yes", False: "NO"}[figure.reached]
        name = figure.name + (f" [{notes.index(figure.note) + 1}]" if figure.note else "")
        compared = ("", "")
        if figure.reference is not None:
            compared = _amount(figure.reference, figure.unit), f"{figure.value / figure.reference:.2f}"
        rows.append((name, _amount(figure.value, figure.unit), *compared, figure.target, reached))
    lines = aligned(rows, right=(1, 2, 3))
    print(lines[0])
    for part, group in itertools.groupby(zip(figures, lines[1:], strict=True), lambda each: each[0].part):
        print(f"-- {part} ".ljust(max(map(len, lines)), "-"))
        for _, line in group:
            print(line)
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}")
    judged = [figure.reached for figure in figures if figure.reached is not None]
    print(f"{sum(judged)} of {len(judged)} targets reached")


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """Return the lines of a table, of which some columns are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _amount(value: float, unit: str) -> str:
    digits = 0 if isinstance(value, int) else sum(abs(value) < most for most in (1000, 100, 1))
    return f"{value:,.{digits}f} {unit}".rstrip()
