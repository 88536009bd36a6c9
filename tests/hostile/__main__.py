"""The runner: runs attacks one after the other, and prints one table of their effects."""

import argparse
import sys

from bench.report import aligned, processor

from .attacks import ATTACKS
from .trial import GOALS, Outcome, against, attempt, measured


def table(outcomes: list[Outcome]) -> str:
    """Return the figures of each attack. One that is too large is followed by NO."""
    rows = [["attack", *(name.replace("_", " ") for name in GOALS)], ["at most", *map("{:g}".format, GOALS.values())]]
    for each in outcomes:
        wrong = against(each)
        rows.append([each.attack, *(f"{measured(each, name):.3g}" + " NO" * (name in wrong) for name in GOALS)])
    return "\n".join(aligned(rows, right=range(1, len(GOALS) + 1)))


def explain(outcome: Outcome) -> str:
    lines = [
        f"{outcome.attack}: {ATTACKS[outcome.attack].meaning}",
        f"    {outcome.polls} polls; exit status {outcome.status}; the attacker got {outcome.answers}",
        *(f"    failed {count} times: {what}" for what, count in list(outcome.failed.items())[:4]),
        *(f"    log: {line[:200]}" for line in outcome.log[:3]),
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/hostile/run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each attack is (default: %(default)g)")
    parser.add_argument("--attack", nargs="+", choices=ATTACKS, metavar="NAME", help=f"of {', '.join(ATTACKS)}")
    options = parser.parse_args()
    outcomes = []
    for name in options.attack or ATTACKS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        outcomes.append(attempt(name, options.seconds))
        print(explain(outcomes[-1]), *against(outcomes[-1]).values(), sep="\n", file=sys.stderr, flush=True)
    print(f"{options.seconds:g} s an attack; {processor()}, shared by server, peers and attacker")
    print(table(outcomes), "", *map(explain, outcomes), sep="\n")
    return int(any(map(against, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
