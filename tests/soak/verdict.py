"""Whether what was recorded is level, and all went as it must."""

import statistics

# The most that the last quarter of the long stretch may have: a factor of the second quarter, plus a constant. Memory
# rises and falls with LevelDB's write buffer, the disk with compactions. Latency depends on the machine, too.
BOUNDS = {
    "memory_mib": (1.05, 0),
    "descriptors": (1.25, 50),
    "disk_mib": (1.5, 32),
    "p50_ms": (3, 250),
    "p99_ms": (4, 1500),
}
# The shortest stretch in which memory is judged. Each quarter of it contains a compaction, which empties the write
# buffer once a minute, and caches are full after the first quarter.
MEMORY_STRETCH_S = 290.0
# What the peers must have done with success, else the run says nothing.
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
    """What speaks against a run: samples of one warm process, how often all was done, and what went wrong.

    Without restarts, no connection takes over what another one held.
    """
    against = [f"{wrong.count(each)} times: {each}" for each in sorted(set(wrong))]
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
