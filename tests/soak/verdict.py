"""Whether the samples are level and all actions succeeded."""

import statistics

# The limit for the last quarter of the long stretch: a factor of the second quarter, plus a constant. Memory varies
# with LevelDB's write buffer, the disk with compactions. Latency also depends on the machine.
BOUNDS = {
    "memory_mib": (1.05, 0),
    "descriptors": (1.25, 50),
    "disk_mib": (1.5, 32),
    "p50_ms": (3, 250),
    "p99_ms": (4, 1500),
}
# The shortest stretch in which memory is judged. Each quarter of it contains a compaction, which empties the write
# buffer once a minute. Caches are full after the first quarter.
MEMORY_STRETCH_S = 290.0
# Actions that must have succeeded. Otherwise the run proves nothing.
MUST_HAVE = {
    "answer", "candidate", "found at the end", "held beyond its lifetime", "listing", "looked", "met", "offer", "poll",
    "refresh", "taken over", "told by a stream", "told in a resumed stream", "told: gone", "told: session", "wait",
    "withdraw", "withdrawn after its connection",
}  # fmt: skip


def quarters(samples: list[dict], name: str) -> tuple[float, float]:
    values = [sample[name] for sample in samples]
    size = len(values) // 4
    return statistics.median(values[size : 2 * size]), statistics.median(values[-size:])


def judges_memory(stretch: list[dict]) -> bool:
    """Return whether the stretch is long enough to judge memory."""
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
    against = [f"{wrong.count(sentence)} times: {sentence}" for sentence in sorted(set(wrong))]
    if len(stretch) < 4:
        return [*against, "the run was too short to say anything"]
    for name, (factor, more) in BOUNDS.items():
        if name == "memory_mib" and not judges_memory(stretch):
            continue
        second, last = quarters(stretch, name)
        if last > factor * second + more:
            against.append(f"{name} grows: {second:.1f} in the second quarter, {last:.1f} in the last")
    must_have = MUST_HAVE if restarted else MUST_HAVE - {"taken over"}
    return against + [f"never: {name}" for name in sorted(must_have) if not done.get(name)]
