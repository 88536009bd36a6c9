"""The scripts that read and change sessions, each atomic for one partition, and their arguments by name.

Loading a script adds local variables at its start: the constants shared with Python, its keys and its arguments.
Servers identify a script by the hash of its text.
"""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ...session import LEASE_BYTES, MAX_LEASES, MIN_HELD_MS, Reason
from .partitions import KEY_NAMES
from .records import CHUNK, SPREAD_MS

FOLDER: Final = Path(__file__).parent / "scripts"
CONSTANTS: Final = {
    "CHUNK": CHUNK,
    "SPREAD_MS": SPREAD_MS,
    "LEASE_BYTES": LEASE_BYTES,
    "MAX_LEASES": MAX_LEASES,
    "MIN_HELD_MS": MIN_HELD_MS,
    **{reason.name: reason.value for reason in Reason},
}


Call = tuple[str, tuple[bytes | str | int, ...]]
"""The name of a script, and its arguments in order."""


def create(
    *,
    code: bytes,
    topic: bytes,
    head: bytes,
    offer: bytes,
    lifetime_ms: int,
    remember_ms: int,
    secret_hash: bytes,
    max_in_topic: int,
    max_sessions: int,
    max_topics: int,
    identity: str,
    by_content: int,
    lease: bytes,
) -> Call:
    """Publish an offer.

    Args:
        code: the code of the session.
        topic: its topic.
        head: its fixed data, without times and serial.
        offer: the offer.
        lifetime_ms: the lifetime of the session.
        remember_ms: the time for which removals are recorded.
        secret_hash: the hash of the offerer's secret.
        max_in_topic: the maximum number of sessions of the topic.
        max_sessions: the maximum number of sessions of this partition.
        max_topics: the maximum number of topics of this partition.
        identity: the identity of the partition, if it is new.
        by_content: 1 if the code is derived from the content, else 0.
        lease: the lease of the holder, or empty.
    """
    return "create", (
        code,
        topic,
        head,
        offer,
        lifetime_ms,
        remember_ms,
        secret_hash,
        max_in_topic,
        max_sessions,
        max_topics,
        identity,
        by_content,
        lease,
    )


def answer(*, code: bytes, answer: bytes, secret_hash: bytes, token: bytes, remember_ms: int) -> Call:
    """Answer a session. `token` identifies this call, in case it is repeated."""
    return "answer", (code, answer, secret_hash, token, remember_ms)


def add_candidates(*, side: bytes, secret_hash: bytes, token: bytes, max_candidates: int, max_bytes: int) -> Call:
    """Append candidates of one side, all or none. The candidates follow these arguments.

    Args:
        side: `o` or `a`.
        secret_hash: the hash of the side's secret.
        token: identifies this call, in case it is repeated.
        max_candidates: the maximum number of candidates of the side.
        max_bytes: the maximum size of all messages of the side.
    """
    return "add_candidates", (side, secret_hash, token, max_candidates, max_bytes)


def withdraw(*, code: bytes, side: bytes, secret_hash: bytes, token: bytes, remember_ms: int) -> Call:
    """Withdraw a session. `token` identifies this call, in case it is repeated."""
    return "withdraw", (code, side, secret_hash, token, remember_ms)


def refresh(*, code: bytes, side: bytes, secret_hash: bytes, remember_ms: int) -> Call:
    """Set a session's expiry to now plus its lifetime."""
    return "refresh", (code, side, secret_hash, remember_ms)


def hold(*, code: bytes, secret_hash: bytes, lease: bytes, remember_ms: int) -> Call:
    """Replace all leases of an offer by this one, and refresh it."""
    return "hold", (code, secret_hash, lease, remember_ms)


def renew(*, code: bytes, lease: bytes, remember_ms: int) -> Call:
    """Refresh an offer that has a lease."""
    return "renew", (code, lease, remember_ms)


def release(*, code: bytes, lease: bytes, token: bytes, remember_ms: int) -> Call:
    """Release leases of an offer. `lease` is a lease or a process id, `token` identifies this call."""
    return "release", (code, lease, token, remember_ms)


def topic_step(*, topic: bytes, departed_serial: int, listed_serial: int, max_items: int, remember_ms: int) -> Call:
    """Read the changes of a topic since a position.

    Args:
        topic: the topic.
        departed_serial: the serial of the last removal that the reader knows.
        listed_serial: the serial of the last session that it knows.
        max_items: the maximum number of removals, and of additions.
        remember_ms: the time for which removals are recorded.
    """
    return "topic_step", (topic, departed_serial, listed_serial, max_items, remember_ms)


def listing_state(*, topic: bytes, remember_ms: int) -> Call:
    """Read the state of a topic's listing."""
    return "listing_state", (topic, remember_ms)


def topics(*, first: int, many: int, remember_ms: int) -> Call:
    """Read the counts of a partition, and `many` of its topics in order from the rank `first`."""
    return "topics", (first, many, remember_ms)


def heal(*, code: bytes, topic: bytes, serial: int, remember_ms: int) -> Call:
    """Remove a session that no longer exists from its listing."""
    return "heal", (code, topic, serial, remember_ms)


class Script(NamedTuple):
    """One script.

    Attributes:
        text: the source text.
        sha: the hash that identifies it at the server, in hexadecimal digits.
    """

    text: bytes
    sha: bytes


def _load(call: Callable[..., Call]) -> Script:
    """Load the script of a function."""
    parameters = inspect.signature(call).parameters
    if call(**{name: name for name in parameters}) != (call.__name__, tuple(parameters)):
        raise TypeError(f"{call.__name__} changes the order of its arguments")
    common, body = (FOLDER / "common.lua").read_text(), (FOLDER / f"{call.__name__}.lua").read_text()
    constants = {**CONSTANTS, "ARGUMENTS": len(parameters)}
    used = {name: value for name, value in constants.items() if re.search(rf"\b{name}\b", common + body)}
    values = [
        f"tonumber(ARGV[{at}])" if parameter.annotation is int else f"ARGV[{at}]"
        for at, parameter in enumerate(parameters.values(), 1)
    ]
    lines = (
        _locals(used, map(str, used.values())),
        _locals(KEY_NAMES, ["unpack(KEYS)"]),
        common,
        _locals(parameters, values),
        body,
    )
    text = "".join(lines).encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _locals(names: Iterable[str], values: Iterable[str]) -> str:
    return f"local {', '.join(names)} = {', '.join(values)}\n"


SCRIPTS: Final = {
    call.__name__: _load(call)
    for call in (
        create,
        answer,
        add_candidates,
        withdraw,
        refresh,
        hold,
        renew,
        release,
        topic_step,
        listing_state,
        topics,
        heal,
    )
}
