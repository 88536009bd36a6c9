"""The runner: runs attacks one after the other, and prints one table of their effects."""

import argparse
import dataclasses
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.report import aligned, processor
from support.command import COMMAND

from . import trial
from .attacks import ATTACKS
from .trial import Outcome, attempt

SECONDS = 60.0


class Column(NamedTuple):
    """A column of the table: the heading, the goal, the text, and whether the goal is reached."""

    title: str
    target: str
    show: Callable[[Outcome], str]
    reached: Callable[[Outcome], object]


def shown(value: float | None, form: str = ".0f", scale: float = 1) -> str:
    return "-" if value is None else format(value * scale, form)


def most(title: str, name: str, bound: float, form=".0f", scale=1, of="", count="") -> Column:

    def show(each: Outcome) -> str:
        return shown(getattr(each, name) if not count or getattr(each, count) else None, form, scale)

    def reached(each: Outcome) -> bool:
        return getattr(each, name) <= bound and (not count or getattr(each, count) > 0)

    return Column(title, f"{of}<= {bound * scale:g}", show, reached)


def none(title: str, name: str) -> Column:

    def count(each: Outcome) -> int:
        value = getattr(each, name)
        return sum(value.values()) if isinstance(value, dict) else len(value)

    return Column(title, "0", lambda each: str(count(each)), lambda each: not count(each))


def on_disk(each: Outcome) -> bool:
    return each.disk_mib <= (each.bound_mib or trial.KEPT_DISK_MIB)


COLUMNS = [
    most("memory MiB", "memory_mib", trial.MEMORY_MIB),
    Column("disk MiB", "<= bound", lambda each: shown(each.disk_mib), on_disk),
    most("poll ms", "poll_s", trial.POLL_S, ".1f", 1000, "p99 ", "polls"),
    most("wake ms", "wake_s", trial.WAKE_S, ".1f", 1000, "p99 ", "wakes"),
    most("stop ms", "stopped_s", trial.STOPPED_S, scale=1000),
    most("gone s", "gone_s", trial.GONE_S, ".1f", of="p99 "),
    none("failed", "failed"),
    none("wrong", "wrong"),
    most("memory after", "kept_mib", trial.KEPT_MIB, "+.0f"),
    most("fds after", "kept_descriptors", trial.KEPT_DESCRIPTORS, "+d"),
    most("threads after", "kept_threads", trial.KEPT_THREADS, "+d"),
    most("disk after", "kept_disk_mib", trial.KEPT_DISK_MIB, "+.0f"),
    none("log", "log"),
    Column(
        "end s", "0, < 10", lambda each: shown(each.end_s, ".1f"), lambda each: each.status == 0 and each.end_s < 10
    ),
]


def cells(outcome: Outcome) -> list[str]:
    values = [f"{column.show(outcome)} {'yes' if column.reached(outcome) else 'NO'}" for column in COLUMNS]
    return [outcome.attack, *values]


def table(outcomes: list[Outcome]) -> str:
    heads = [["attack", *(column.title for column in COLUMNS)], ["to reach", *(column.target for column in COLUMNS)]]
    return "\n".join(aligned([*heads, *map(cells, outcomes)], right=range(len(COLUMNS) + 1)))


def header(options: argparse.Namespace, command: list[str]) -> str:
    describe = ["git", "-C", Path(command[0]).resolve().parent, "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False)
    return (
        f"commit {commit.stdout.strip() or 'unknown'}; {options.seconds:g} s an attack; {processor()}, shared by "
        f"server, peers and attacker; {platform.release()}; Python {platform.python_version()}"
    )


def explain(outcome: Outcome) -> str:
    lines = [
        f"{outcome.attack}: {ATTACKS[outcome.attack].meaning}",
        f"    {outcome.polls} polls; p99 before the attack {outcome.quiet_poll_s * 1000:.1f} ms; told of an expiry "
        f"{outcome.gone_s:.2f} s late; loop late by {shown(outcome.lag_s, '.3g')} s at most",
        f"    as before after {shown(outcome.level_s, '.1f')} s, the disk {shown(outcome.disk_level_s, '.1f')} s; "
        f"{outcome.failed_after} failed in the last 5 s; exit status {outcome.status}",
        f"    the attacker got {outcome.answers}",
    ]
    lines += [f"    failed {count} times: {what}" for what, count in list(outcome.failed.items())[:4]]
    lines += [f"    log: {line[:200]}" for line in outcome.log[:3]]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/hostile/run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each attack is (default: %(default)g)")
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--server", default=str(COMMAND), help="the command to attack (default: that of this .venv)")
    parser.add_argument("--dir", type=Path, help="where data is written (default: that of temporary files)")
    parser.add_argument("--after", type=float, default=30, help="seconds for memory to be as before (default: 30)")
    parser.add_argument("--disk-after", type=float, default=120, help="seconds for the disk, 0: none (default: 120)")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    command = shlex.split(options.server)
    outcomes = []
    how = {"command": command, "directory": options.dir, "after_s": options.after, "disk_after_s": options.disk_after}
    for name in options.attack or ATTACKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        outcomes.append(attempt(name, options.seconds, **how))
        print(explain(outcomes[-1]), "  ".join(cells(outcomes[-1])), sep="\n", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps([dataclasses.asdict(each) for each in outcomes], indent=1))
    print(header(options, command), table(outcomes), "", *map(explain, outcomes), sep="\n")
    return int(not all(column.reached(outcome) for outcome in outcomes for column in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
