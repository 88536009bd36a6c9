"""The verdict about a server after an attack."""

from .trial import ALLOWED, RECOVERY_S, Outcome, attempt

# The most that each figure may be.
GOALS = {
    "memory_mib": 256,
    "poll_s": 0.05,
    "wake_s": 0.1,
    "gone_s": 3,  # for the next sweep and the notification of an expiry
    "stopped_s": 0.1,
    "failed": 0,
    "wrong": 0,
    "level_s": RECOVERY_S,
    **{f"kept_{name}": most for name, most in ALLOWED.items()},
    "log": 0,
    "end_s": 10,
}
# After a short attack on a busy machine, because the attacker uses the same processors.
BUSY = {"poll_s": 0.5, "wake_s": 1.0, "gone_s": 3, "stopped_s": 1.0, "end_s": 20}


def measured(outcome: Outcome, name: str) -> float:
    """Return a figure. Of errors and lines it is their number."""
    value = getattr(outcome, name)
    if isinstance(value, dict):
        return sum(value.values())
    return len(value) if isinstance(value, list) else value


def against(outcome: Outcome, *, busy: bool = False) -> dict[str, str]:
    """Return a sentence for each figure that is too large. Busy, a slow server has more time in proportion."""
    limits = GOALS | {"disk_mib": outcome.bound_mib}
    if busy:
        limits |= {name: most * max(1.0, outcome.slowness) for name, most in BUSY.items()}
    return {
        name: f"{name} {getattr(outcome, name)}, not at most {most:g}"
        for name, most in limits.items()
        if measured(outcome, name) > most
    }


def harm(name: str) -> list[str]:
    """Return what is against a server after an attack of a few seconds."""
    return [*against(attempt(name, 2.5, quiet_s=1, disk_recovery_s=0), busy=True).values()]
