"""Whether what was recorded is level, and all went as it must."""

import statistics

# What may be more in the last quarter of the long stretch than in the second: a factor, and so much besides. Memory
# grows until LevelDB's cache is full (32 MiB); the disk goes up and down with compactions, one a minute; latency is as
# much the machine's as the server's.
BOUNDS = {
    "memory_mib": (1.15, 16),
    "descriptors": (1.25, 50),
    "disk_mib": (1.5, 32),
    "p50_ms": (3, 250),
    "p99_ms": (4, 1500),
}
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


def judge(stretch: list[dict], done: dict[str, int], wrong: list[str]) -> list[str]:
    """What speaks against a run: samples of one warm process, how often all was done, and what went wrong."""
    against = [f"{wrong.count(each)} times: {each}" for each in sorted(set(wrong))]
    if len(stretch) < 4:
        return [*against, "the run was too short to say anything"]
    for name, (factor, more) in BOUNDS.items():
        second, last = quarters(stretch, name)
        if last > factor * second + more:
            against.append(f"{name} grows: {second:.1f} in the second quarter, {last:.1f} in the last")
    return against + [f"never: {name}" for name in sorted(MUST_HAVE) if not done.get(name)]
