"""The scripts that change sessions, each atomic for one partition. They are known by their content (contract E7)."""

import hashlib
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "scripts"


class Script(NamedTuple):
    """One script.

    Attributes:
        text: what the server runs.
        sha: how it knows that, in hexadecimal digits.
    """

    text: bytes
    sha: bytes


def _read(name: str) -> Script:
    text = (FOLDER / "common.lua").read_bytes() + (FOLDER / f"{name}.lua").read_bytes()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


CREATE: Final = _read("create")
ANSWER: Final = _read("answer")
CANDIDATES: Final = _read("candidates")
WITHDRAW: Final = _read("withdraw")
REFRESH: Final = _read("refresh")
HOLD: Final = _read("hold")
RENEW: Final = _read("renew")
RELEASE: Final = _read("release")
TOPIC_STEP: Final = _read("topic_step")
LISTING_STATE: Final = _read("listing_state")
TOPICS: Final = _read("topics")
HEAL: Final = _read("heal")
ALL: Final = (
    *(CREATE, ANSWER, CANDIDATES, WITHDRAW, REFRESH, HOLD, RENEW, RELEASE),
    *(TOPIC_STEP, LISTING_STATE, TOPICS, HEAL),
)
