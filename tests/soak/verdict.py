"""Whether the samples are level and all actions succeeded."""

import statistics
from collections import Counter
from typing import NamedTuple

WARM_SHARE = 0.25  # of the samples. Caches are full after them


class Rules(NamedTuple):
    """The figures and the actions that a run needs."""

    judged_s: float  # the shortest time with samples in which growth is judged
    most: dict[str, tuple[float, float]]  # limits in the last third: a factor of the first third, plus a constant
    done: set[str]  # actions that must have succeeded. Otherwise the run proves nothing


EVERYWHERE = {"answer", "candidate", "found at the end", "listing", "offer", "poll", "wait"}
# Memory varies with LevelDB's write buffer, which a compaction empties once a minute, and the disk with compactions.
# Latency also depends on the machine.
ALONE = Rules(
    290.0,
    {
        "memory_mib": (1.05, 0),
        "descriptors": (1.25, 50),
        "disk_mib": (1.5, 32),
        "p50_ms": (3, 250),
        "p99_ms": (4, 1500),
    },
    EVERYWHERE
    | {"event of a resumed stream", "event of a session", "event: gone", "event: session", "held beyond its lifetime"}
    | {"looked", "met", "refresh", "taken over", "withdraw", "withdrawn after its connection"},
)
# For the server of a cluster that is never restarted. Keys on Redis vary with the peers.
CLUSTER = Rules(
    7000.0,
    {"memory_mib": (1.02, 0), "descriptors": (1.02, 0), "tasks": (1.02, 0), "keys": (1.1, 0)},
    EVERYWHERE
    | {"PeerJS: offers answered", "data checked", "tracker: offers answered", "tracker: responses with all members"}
    | {f"{protocol}: messages at all members" for protocol in ("ws-relay", "y-webrtc")},
)


def thirds(samples: list[dict], name: str) -> tuple[float, float]:
    """Return the means of the first and the last third of the samples after the warm-up."""
    values = [sample[name] for sample in samples[int(len(samples) * WARM_SHARE) :]]
    size = max(1, len(values) // 3)
    return statistics.fmean(values[:size]), statistics.fmean(values[-size:])


def judges_growth(samples: list[dict], rules: Rules) -> bool:
    return bool(samples) and samples[-1]["at_s"] - samples[0]["at_s"] >= rules.judged_s


def judge(samples: list[dict], rules: Rules, done: dict[str, int], wrong: list[str]) -> list[str]:
    """Return the failures of a run: unexpected events, each a sentence, what grows, and actions never done."""
    growing = []
    for name, (factor, more) in rules.most.items() if judges_growth(samples, rules) else ():
        first, last = thirds(samples, name)
        if last > factor * first + more:
            growing.append(f"{name} grows: {first:.1f} in the first third, {last:.1f} in the last")
    failures = [f"{count} times: {sentence}" for sentence, count in sorted(Counter(wrong).items())]
    return [*failures, *growing, *(f"never: {name}" for name in sorted(rules.done) if not done.get(name))]
