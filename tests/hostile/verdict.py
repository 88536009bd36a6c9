"""Verdict about a server after a short attack on a busy machine."""

from .trial import ALLOWED, GONE_S, KEPT_DESCRIPTORS, KEPT_MIB, KEPT_THREADS, MEMORY_MIB, Outcome, attempt

SECONDS = 2.5
QUIET_S = 1
AFTER_S = 30
# Ten times the goals, because the attacker uses the same processors.
POLL_S, WAKE_S, STOPPED_S, END_S = 0.5, 1.0, 1.0, 20.0


def against(outcome: Outcome) -> list[str]:
    """Return sentences about harm to the server. On a slow machine the limits are larger in proportion."""
    slow = max(1.0, outcome.slowness)
    failures = {
        f"{outcome.memory_mib:.0f} MiB more memory": outcome.memory_mib > MEMORY_MIB,
        f"p99 of {outcome.polls} polls {outcome.poll_s:.3f} s": not outcome.polls or outcome.poll_s > POLL_S * slow,
        f"p99 of {outcome.wakes} wake-ups {outcome.wake_s:.3f} s": not outcome.wakes or outcome.wake_s > WAKE_S * slow,
        f"told of an expiry {outcome.gone_s:.1f} s late": outcome.gone_s > GONE_S * slow,
        f"a tiny request took {outcome.stopped_s:.2f} s": outcome.stopped_s > STOPPED_S * slow,
        f"requests of others failed: {outcome.failed}": bool(outcome.failed),
        f"the attacker was answered {outcome.wrong}": bool(outcome.wrong),
        f"as before in {AFTER_S} s: not, {ALLOWED}": outcome.level_s is None,
        f"{outcome.kept_mib:.0f} MiB of memory kept": outcome.kept_mib > KEPT_MIB,
        f"{outcome.kept_descriptors} descriptors kept": outcome.kept_descriptors > KEPT_DESCRIPTORS,
        f"{outcome.kept_threads} threads kept": outcome.kept_threads > KEPT_THREADS,
        f"{len(outcome.log)} lines in the log: {outcome.log[:3]}": bool(outcome.log),
        f"exit status {outcome.status} after {outcome.end_s} s": outcome.status != 0
        or (outcome.end_s or 0) > END_S * slow,
    }
    return [sentence for sentence, true in failures.items() if true]


def harm(name: str, tmp_path) -> list[str]:
    outcome = attempt(name, SECONDS, quiet_s=QUIET_S, directory=tmp_path, after_s=AFTER_S, disk_after_s=0)
    return against(outcome)
