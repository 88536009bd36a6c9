"""The runner: attacks one after the other, and one table of what they did."""

import argparse
import dataclasses
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from support.command import COMMAND

from .attacks import ATTACKS
from .trial import (
    GONE_S,
    KEPT_DESCRIPTORS,
    KEPT_DISK_MIB,
    KEPT_MIB,
    KEPT_THREADS,
    MEMORY_MIB,
    POLL_S,
    STOPPED_S,
    WAKE_S,
    Outcome,
    attempt,
)

SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        title: what stands above it.
        target: what is to be reached.
        show: what it says of an outcome.
        reached: whether that is enough.
    """

    title: str
    target: str
    show: object
    reached: object


def shown(value: float | None, form: str = ".0f", scale: float = 1) -> str:
    """A number, or a dash."""
    return "-" if value is None else format(value * scale, form)


COLUMNS = [
    Column(
        "memory MiB",
        f"<= {MEMORY_MIB}",
        lambda each: shown(each.memory_mib),
        lambda each: each.memory_mib <= MEMORY_MIB,
    ),
    Column(
        "disk MiB",
        "<= bound",
        lambda each: shown(each.disk_mib),
        lambda each: each.disk_mib <= (each.bound_mib or KEPT_DISK_MIB),
    ),
    Column(
        "poll ms",
        f"p99 <= {POLL_S * 1000:.0f}",
        lambda each: shown(each.poll_s if each.polls else None, ".1f", 1000),
        lambda each: each.polls and each.poll_s <= POLL_S,
    ),
    Column(
        "wake ms",
        f"p99 <= {WAKE_S * 1000:.0f}",
        lambda each: shown(each.wake_s if each.wakes else None, ".1f", 1000),
        lambda each: each.wakes and each.wake_s <= WAKE_S,
    ),
    Column(
        "stop ms",
        f"<= {STOPPED_S * 1000:.0f}",
        lambda each: shown(each.stopped_s, ".0f", 1000),
        lambda each: each.stopped_s <= STOPPED_S,
    ),
    Column(
        "gone s",
        f"p99 <= {GONE_S}",
        lambda each: shown(each.gone_s, ".1f"),
        lambda each: each.gone_s <= GONE_S,
    ),
    Column("failed", "0", lambda each: str(sum(each.failed.values())), lambda each: not each.failed),
    Column("wrong", "0", lambda each: str(sum(each.wrong.values())), lambda each: not each.wrong),
    Column(
        "memory after",
        f"<= {KEPT_MIB}",
        lambda each: f"{each.kept_mib:+.0f}",
        lambda each: each.kept_mib <= KEPT_MIB,
    ),
    Column(
        "fds after",
        f"<= {KEPT_DESCRIPTORS}",
        lambda each: f"{each.kept_descriptors:+d}",
        lambda each: each.kept_descriptors <= KEPT_DESCRIPTORS,
    ),
    Column(
        "threads after",
        f"<= {KEPT_THREADS}",
        lambda each: f"{each.kept_threads:+d}",
        lambda each: each.kept_threads <= KEPT_THREADS,
    ),
    Column(
        "disk after",
        f"<= {KEPT_DISK_MIB}",
        lambda each: f"{each.kept_disk_mib:+.0f}",
        lambda each: each.kept_disk_mib <= KEPT_DISK_MIB,
    ),
    Column("log", "0", lambda each: str(len(each.log)), lambda each: not each.log),
    Column(
        "end s", "0, < 10", lambda each: shown(each.end_s, ".1f"), lambda each: each.status == 0 and each.end_s < 10
    ),
]


def cells(outcome: Outcome) -> list[str]:
    """A line of the table."""
    values = [f"{column.show(outcome)} {'yes' if column.reached(outcome) else 'NO'}" for column in COLUMNS]
    return [outcome.attack, *values]


def table(outcomes: list[Outcome]) -> str:
    """The whole of it."""
    lines = [["attack", *(column.title for column in COLUMNS)], ["to reach", *(column.target for column in COLUMNS)]]
    lines += map(cells, outcomes)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def header(options: argparse.Namespace, command: list[str]) -> str:
    """Where and with what."""
    code = Path(command[0]).resolve().parent
    told = subprocess.run(
        ["git", "-C", code, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    found = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.M)
    return (
        f"commit {told.stdout.strip() or 'unknown'}; {options.seconds:g} s an attack; "
        f"{len(os.sched_getaffinity(0))} processors ({found[1].strip() if found else platform.machine()}), shared by "
        f"server, peers and attacker; {platform.release()}; Python {platform.python_version()}"
    )


def explain(outcome: Outcome) -> str:
    """What else is to be known of an outcome."""
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
    """Run what is asked for."""
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
    for name in options.attack or ATTACKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        outcomes.append(
            attempt(
                name,
                options.seconds,
                command=command,
                directory=options.dir,
                after_s=options.after,
                disk_after_s=options.disk_after,
            )
        )
        print(explain(outcomes[-1]), "  ".join(cells(outcomes[-1])), sep="\n", file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps([dataclasses.asdict(each) for each in outcomes], indent=1))
    print(header(options, command), table(outcomes), "", *map(explain, outcomes), sep="\n")
    return int(not all(column.reached(outcome) for outcome in outcomes for column in COLUMNS))


if __name__ == "__main__":
    sys.exit(main())
