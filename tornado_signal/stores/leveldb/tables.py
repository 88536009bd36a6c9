"""What of LevelDB's files is looked at before LevelDB gets them, because it would not survive it or delete them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The end of a table: two places (offset and length, as varints) of blocks, padded, and a magic number. It is the
# only part without a checksum: LevelDB takes a length from there for the size of a buffer, and aborts if it is huge.
_FOOTER_BYTES: Final = 48
_MAGIC: Final = bytes.fromhex("57fb808b247547db")
_TRAILER_BYTES: Final = 5  # behind each block


def damage(path: Path) -> str | None:
    """What is wrong with a directory that LevelDB must not open; None for nothing, and for one without a database."""
    if not (path / "CURRENT").exists() and [*path.glob("[0-9]*.ldb"), *path.glob("[0-9]*.log")]:
        return "there are tables or logs, but no CURRENT"  # LevelDB would begin anew and delete them
    for table in wrong(path):
        return f"{table.name} does not end as a table does"
    return None


def wrong(path: Path) -> Iterator[Path]:
    """The tables of a directory that LevelDB must not see."""
    return (table for table in path.glob("[0-9]*.ldb") if _footer_is_wrong(table))


def _footer_is_wrong(table: Path) -> bool:
    with table.open("rb") as file:
        blocks_bytes = file.seek(0, 2) - _FOOTER_BYTES
        file.seek(max(0, blocks_bytes))
        footer = file.read()
    if not footer.endswith(_MAGIC):
        # It was not finished and is not in use, or LevelDB says what is wrong.
        return False
    numbers = _varints(footer[: -len(_MAGIC)])
    places = zip(numbers[0:4:2], numbers[1:4:2], strict=False)
    return any(offset + length + _TRAILER_BYTES > blocks_bytes for offset, length in places)


def _varints(data: bytes) -> list[int]:
    """Whole numbers of 7 bits a byte, the lowest first; the top bit says that there are more."""
    numbers, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number, shift = 0, 0
    return numbers
