"""What every request for a session needs of it, kept in memory for those that had some lately. No I/O."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from ...session import Side

KEPT = 10_000


@dataclass(slots=True)
class SessionAccess:
    """What access to a session depends on, as it is committed.

    Attributes:
        expires_ms: when the session ends.
        serial: the session's own.
        offer_hash: of the secret that the offerer must show; empty if it need not.
        answer_hash: the same of the answerer.
        answer_number: that of the answer among what its side has sent; 0 while there is none.
        numbers: the last number that each side has got, also for what is on its way to the disk; of a side that
            was not asked about there may be none.
        sizes: the bytes of what each side has sent; as `numbers`.
    """

    expires_ms: int
    serial: int
    offer_hash: bytes
    answer_hash: bytes = b""
    answer_number: int = 0
    numbers: dict[Side, int] = field(default_factory=dict, compare=False)
    sizes: dict[Side, int] = field(default_factory=dict, compare=False)

    def secret_hash(self, side: Side) -> bytes:
        """Of the secret that a side must show; empty if it need not."""
        return self.answer_hash if side is Side.ANSWERER else self.offer_hash


class AccessCache(dict[bytes, SessionAccess]):
    """That of some sessions, by their keys.

    Args:
        busy: says of a key whether its session has changes on their way to the disk; it is not forgotten then.
    """

    def __init__(self, busy: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._busy = busy

    def keep(self, key: bytes, access: SessionAccess) -> None:
        """Keep one more; when they are too many, forget the older half."""
        self[key] = access
        if len(self) > KEPT:
            for old in list(itertools.islice(self, KEPT // 2)):
                if old != key and not self._busy(old):
                    del self[old]
