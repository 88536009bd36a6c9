"""The form of a backup: every key and value of a database in the order of the keys, and a sum over all of it.

    tornado-signal backup 1            and a line feed: what it is, and the version of this form
    length length key value            for each entry: two numbers of 4 bytes, and the bytes that they count
    0 0                                8 bytes: there are no more
    count                              8 bytes: how many entries there are
    sum                                32 bytes: the SHA-256 of everything before it; nothing follows

Numbers are big-endian. Nothing here reads or writes a file.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final

from ..errors import DamagedBackup

MAGIC: Final = b"tornado-signal backup 1\n"
_LENGTHS: Final = struct.Struct(">II")
_COUNT: Final = struct.Struct(">Q")
_END: Final = bytes(_LENGTHS.size)
# No entry is as long, whatever the limits: a length that is says that the file is damaged.
_LONGEST: Final = 1 << 30

Entry = tuple[bytes, bytes]


class Packer:
    """Makes a backup, piece by piece: `begin`, any number of times `pack`, `end`."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()
        self._count = 0

    def begin(self) -> bytes:
        return self._summed(MAGIC)

    def pack(self, entries: Iterable[Entry]) -> bytes:
        """The next entries, in the order of their keys."""
        pieces: list[bytes] = []
        for key, value in entries:
            pieces += (_LENGTHS.pack(len(key), len(value)), key, value)
            self._count += 1
        return self._summed(b"".join(pieces))

    def end(self) -> bytes:
        return self._summed(_END + _COUNT.pack(self._count)) + self._sum.digest()

    def _summed(self, data: bytes) -> bytes:
        self._sum.update(data)
        return data


def unpack(read: Callable[[int], bytes]) -> Iterator[Entry]:
    """The entries of a backup. None of them is to be believed before the last one has come without an error.

    Args:
        read: returns so many of the next bytes, or fewer at the end.

    Raises:
        DamagedBackup: it is none, or not whole, or not as it was made.
    """
    digest = hashlib.sha256()
    count, before = 0, b""

    def take(size: int) -> bytes:
        data = read(size)
        if len(data) != size:
            raise DamagedBackup("it ends too soon")
        digest.update(data)
        return data

    if read(len(MAGIC)) != MAGIC:
        raise DamagedBackup("it does not begin as one of this version")
    digest.update(MAGIC)
    while (lengths := take(_LENGTHS.size)) != _END:
        key_length, value_length = _LENGTHS.unpack(lengths)
        if max(key_length, value_length) > _LONGEST:
            raise DamagedBackup("it has been altered")
        key = take(key_length)
        if key <= before:
            raise DamagedBackup("it has been altered")
        yield key, take(value_length)
        count, before = count + 1, key
    (counted,) = _COUNT.unpack(take(_COUNT.size))
    expected = digest.digest()
    if counted != count or read(len(expected) + 1) != expected:
        raise DamagedBackup("it has been altered")


def verified(file: BinaryIO) -> Iterator[Entry]:
    """The entries of a backup in a file, the first of them after a look at whether all are as they were made.

    Raises:
        DamagedBackup: as `unpack`.
    """
    for _ in unpack(file.read):
        pass
    file.seek(0)
    yield from unpack(file.read)
