"""The form of a backup: what goes in comes out, and nothing that has been altered passes."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import DamagedBackup
from tornado_signal.maintenance.backup import MAGIC, Packer, unpack, verified

ENTRIES = st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=50), max_size=8)
GOLDEN = (
    b"tornado-signal backup 1\n\0\0\0\1\0\0\0\2a12\0\0\0\2\0\0\0\0bb\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2"
) + bytes.fromhex("76c6f95629992c571f3f48e94ce40869a672db6b11451e2acdf3019527b58b40")


def made(entries, step=3):
    packer, ordered = Packer(), sorted(entries.items())
    steps = [ordered[at : at + step] for at in range(0, len(ordered), step)]
    return b"".join([packer.begin(), *map(packer.pack, steps), packer.end()])


def read(data):
    return dict(unpack(io.BytesIO(data).read))


def flipped(data, at):
    altered = bytearray(data)
    altered[at // 8] ^= 1 << at % 8
    return bytes(altered)


@given(entries=ENTRIES, step=st.integers(1, 5))
def test_a_backup_holds_its_entries_in_order(entries, step):
    data = made(entries, step)
    assert list(unpack(io.BytesIO(data).read)) == sorted(entries.items())


def test_golden_bytes_do_not_change():
    assert made({b"a": b"12", b"bb": b""}) == GOLDEN
    assert read(GOLDEN) == {b"a": b"12", b"bb": b""}


@given(entries=ENTRIES, more=st.binary(min_size=1, max_size=40), data=st.data())
def test_a_truncated_extended_or_altered_backup_is_refused(entries, more, data):
    whole = made(entries)
    left = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedBackup, match=r"too soon|does not begin|altered"):
        read(whole[:left])
    with pytest.raises(DamagedBackup, match="altered"):
        read(whole + more)
    with pytest.raises(DamagedBackup):
        read(flipped(whole, data.draw(st.integers(0, 8 * len(whole) - 1))))


@pytest.mark.parametrize("data", [b"", b"tornado", b"SQLite format 3\0" + bytes(100), MAGIC.replace(b"1", b"2")])
def test_other_files_are_refused(data):
    with pytest.raises(DamagedBackup, match="does not begin as one of this version"):
        read(data)


def test_unordered_or_repeated_keys_are_refused():
    for keys in ((b"b", b"a"), (b"a", b"a")):
        packer = Packer()
        data = packer.begin() + packer.pack((key, b"") for key in keys) + packer.end()
        with pytest.raises(DamagedBackup, match="altered"):
            read(data)


def test_an_impossible_length_is_refused_before_it_is_read():
    asked = []
    stream = io.BytesIO(MAGIC + b"\xff" * 8 + bytes(100))

    def reading(size):
        asked.append(size)
        return stream.read(size)

    with pytest.raises(DamagedBackup, match="altered"):
        list(unpack(reading))
    assert max(asked) == len(MAGIC)


def test_an_altered_backup_yields_no_entry():
    assert dict(verified(io.BytesIO(GOLDEN))) == {b"a": b"12", b"bb": b""}
    for at in range(8 * len(GOLDEN)):
        with pytest.raises(DamagedBackup):
            next(verified(io.BytesIO(flipped(GOLDEN, at))))
