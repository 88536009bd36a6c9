"""Whether the samples are level and all actions succeeded."""

import statistics
from collections import Counter

# The limit for the last quarter of the long stretch: a factor of the second quarter, plus a constant. Memory varies
# with LevelDB's write buffer, the disk with compactions. Latency also depends on the machine.
BOUNDS = {"memory_mib": (1.05, 0), "descriptors": (1.25, 50), "disk_mib": (1.5, 32)}
BOUNDS |= {"p50_ms": (3, 250), "p99_ms": (4, 1500)}
# The shortest stretch in which memory is judged. Each quarter of it contains a compaction, which empties the write
# buffer once a minute. Caches are full after the first quarter.
MEMORY_STRETCH_S = 290.0
# Actions that must have succeeded. Otherwise the run proves nothing.
MUST_HAVE = {
    "answer", "candidate", "event of a resumed stream", "event of a session", "event: gone", "event: session",
    "found at the end", "held beyond its lifetime", "listing", "looked", "met", "offer", "poll", "refresh",
    "taken over", "wait", "withdraw", "withdrawn after its connection",
}  # fmt: skip

# With a cluster: the limit of growth from the first to the last third after the warm-up, as a factor. It applies to the
# server that is never restarted, whose caches are full after the warm-up. Keys on Redis vary with the peers.
GROWTH = {"memory_mib": 1.02, "descriptors": 1.02, "tasks": 1.02, "keys": 1.1}
WARM_S = 1800.0
GROWTH_STRETCH_S = 3000.0  # the shortest stretch after the warm-up in which growth is judged
CLUSTER_MUST_HAVE = {
    "PeerJS: offers answered", "answer", "candidate", "data checked", "found at the end", "listing", "offer", "poll",
    "tracker: offers answered", "tracker: responses with all members", "wait", "ws-relay: messages at all members",
    "y-webrtc: messages at all members",
}  # fmt: skip


def quarters(samples: list[dict], name: str) -> tuple[float, float]:
    values = [sample[name] for sample in samples]
    size = len(values) // 4
    return statistics.median(values[size : 2 * size]), statistics.median(values[-size:])


def judges_memory(stretch: list[dict]) -> bool:
    return bool(stretch) and stretch[-1]["at_s"] - stretch[0]["at_s"] >= MEMORY_STRETCH_S


def judge(stretch: list[dict], done: dict[str, int], wrong: list[str], *, restarted: bool = True) -> list[str]:
    """Return the failures of a run.

    Without restarts, no connection takes over an offer from another one.

    Args:
        stretch: samples of one warm process.
        done: how often each action succeeded.
        wrong: unexpected events, as sentences.
        restarted: whether the server was restarted.
    """
    if len(stretch) < 4:
        return [*failures(wrong), "the run was too short to say anything"]
    growing = []
    for name, (factor, more) in BOUNDS.items():
        second, last = quarters(stretch, name)
        if last > factor * second + more and (name != "memory_mib" or judges_memory(stretch)):
            growing.append(f"{name} grows: {second:.1f} in the second quarter, {last:.1f} in the last")
    must_have = MUST_HAVE if restarted else MUST_HAVE - {"taken over"}
    return [*failures(wrong), *growing, *missing(must_have, done)]


def failures(wrong: list[str]) -> list[str]:
    return [f"{count} times: {sentence}" for sentence, count in sorted(Counter(wrong).items())]


def missing(must_have: set[str], done: dict[str, int]) -> list[str]:
    return [f"never: {name}" for name in sorted(must_have) if not done.get(name)]


def warm(samples: list[dict]) -> list[dict]:
    """Return the samples after the warm-up, or all of a short run."""
    return [sample for sample in samples if sample["at_s"] >= WARM_S] if judges_growth(samples) else samples


def thirds(samples: list[dict], name: str) -> tuple[float, float]:
    """Return the means of the first and the last third of the samples after the warm-up."""
    values = [sample[name] for sample in warm(samples)]
    size = max(1, len(values) // 3)
    return statistics.fmean(values[:size]), statistics.fmean(values[-size:])


def judges_growth(samples: list[dict]) -> bool:
    return bool(samples) and samples[-1]["at_s"] >= WARM_S + GROWTH_STRETCH_S


def judge_cluster(samples: list[dict], done: dict[str, int], wrong: list[str]) -> list[str]:
    """Return the failures of a run with a cluster. The arguments are those of `judge`, with samples of all the run."""
    growing = []
    for name, factor in GROWTH.items() if judges_growth(samples) else ():
        first, last = thirds(samples, name)
        if last > factor * first:
            growing.append(f"{name} grows: {first:.1f} in the first third, {last:.1f} in the last")
    return [*failures(wrong), *growing, *missing(CLUSTER_MUST_HAVE, done)]
