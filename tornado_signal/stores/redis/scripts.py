"""The scripts that read and change sessions, each atomic for one partition, and their arguments by name.

Loading a script adds local variables at its start: the constants shared with Python, its keys and its arguments.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ...redis.scripts import Call, Script, make_script
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


# The arguments of each script in their order. `#` marks those that it reads as numbers.
#   code, topic, head, offer, answer: the session, its topic, its fixed data without times and serial, its messages
#   side, secret_hash: `o` or `a`, and the hash of its secret
#   token: identifies a call that may be repeated
#   lease: the lease of a holder, or empty; for `release` it can be a process id
#   lifetime_ms, removals_ms: the lifetime of a session, and the time for which its removal stays recorded
#   max_sessions: the quota of the partition
#   max_candidates, max_bytes: the maximum number of candidates, and the maximum size of all messages of a side
#   identity: the identity of the partition, if it is new
#   announce: 1 if a new expiry is an event of the listing, else 0
#   by_content: 1 if the code is derived from the content, else 0
#   departed_serial, listed_serial, max_items: the last removal and session that a reader knows, and how many to read
#   many: the number of topics to read
_ARGUMENTS: Final = {
    "create": "code topic head offer #lifetime_ms #removals_ms secret_hash #max_sessions identity #by_content lease",
    "answer": "code answer secret_hash token #removals_ms",
    # The candidates follow these arguments.
    "add_candidates": "side secret_hash token #max_candidates #max_bytes",
    "withdraw": "code side secret_hash token #removals_ms",
    "refresh": "code side secret_hash #announce #removals_ms",
    "hold": "code secret_hash lease #removals_ms",
    "renew": "code lease #removals_ms",
    "release": "code lease token #removals_ms",
    "topic_step": "topic #departed_serial #listed_serial #max_items #removals_ms",
    "listing_state": "topic #removals_ms",
    "topics": "#many #removals_ms",
}


def _load(name: str, declared: str) -> Script:
    arguments = tuple(declared.replace("#", "").split())
    common, body = (FOLDER / "common.lua").read_text(), (FOLDER / f"{name}.lua").read_text()
    constants = {**CONSTANTS, "ARGUMENTS": len(arguments)}  # further arguments follow the declared ones
    used = {each: number for each, number in constants.items() if re.search(rf"\b{each}\b", common + body)}
    values = [
        f"tonumber(ARGV[{at}])" if each.startswith("#") else f"ARGV[{at}]"
        for at, each in enumerate(declared.split(), 1)
    ]
    lines = (  # `common` sees only the constants and keys
        _locals(used, map(str, used.values())),
        _locals(KEY_NAMES, ["unpack(KEYS)"]),
        common,
        _locals(arguments, values),
        body,
    )
    return make_script("".join(lines), arguments)


def _locals(names: Iterable[str], values: Iterable[str]) -> str:
    return f"local {', '.join(names)} = {', '.join(values)}\n"


SCRIPTS: Final = {name: _load(name, declared) for name, declared in _ARGUMENTS.items()}


def call(script: str, **arguments: bytes | str | int) -> Call:
    """Return a call of a script. Raise TypeError if the names of the arguments are not those of the script."""
    names = SCRIPTS[script].arguments
    if arguments.keys() != {*names}:
        raise TypeError(f"the arguments of {script} are {', '.join(names)}")
    return SCRIPTS[script], tuple([arguments[name] for name in names])
