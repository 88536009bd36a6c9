"""What every request for a session needs of it. No I/O."""

from dataclasses import dataclass, field

from ...session import Side


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
