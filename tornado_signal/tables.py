"""What LevelDB does not look at before it opens a directory, and what would cost the data or abort the whole process.

A footer is the last 48 bytes of a table: where two blocks are (offset and length each, as variable-length numbers),
padding, and a fixed end that LevelDB does look at.
"""

from pathlib import Path

FOOTER_BYTES = 48


def find_damage(path: Path) -> str | None:
    """What is wrong with a directory; None if LevelDB may open it."""
    if not (path / "CURRENT").exists() and [*path.glob("[0-9]*.ldb"), *path.glob("[0-9]*.log")]:
        return "there are tables or logs, but no CURRENT"  # LevelDB would delete them
    for table in path.glob("*.ldb"):
        with table.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - FOOTER_BYTES))
            numbers = _read_numbers(file.read())
        if size < FOOTER_BYTES or len(numbers) < 4 or numbers[0] + numbers[1] > size or numbers[2] + numbers[3] > size:
            return f"the footer of {table.name}"  # LevelDB would ask for as much memory as it says
    return None


def _read_numbers(data: bytes) -> list[int]:
    """Four variable-length numbers: seven bits a byte, the lowest first, the highest bit says that more follow."""
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers[:4]
