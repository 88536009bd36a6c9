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
    """A backup of these entries, made in steps."""
    packer, ordered = Packer(), sorted(entries.items())
    steps = [ordered[at : at + step] for at in range(0, len(ordered), step)]
    return b"".join([packer.begin(), *map(packer.pack, steps), packer.end()])


def read(data):
    """The entries of a backup, as `unpack` finds them."""
    return dict(unpack(io.BytesIO(data).read))


@given(entries=ENTRIES, step=st.integers(1, 5))
def test_what_goes_in_comes_out(entries, step):
    """A backup holds exactly what it was made of, in the order of the keys, however it was made."""
    data = made(entries, step)
    assert list(unpack(io.BytesIO(data).read)) == sorted(entries.items())


def test_golden():
    """The bytes are those that the module describes: a backup is read by other versions too."""
    assert made({b"a": b"12", b"bb": b""}) == GOLDEN
    assert read(GOLDEN) == {b"a": b"12", b"bb": b""}


@given(entries=ENTRIES, data=st.data())
def test_one_that_was_cut_short(entries, data):
    """However much is missing at its end, it is refused."""
    whole = made(entries)
    left = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedBackup, match=r"too soon|does not begin|altered"):
        read(whole[:left])


@given(entries=ENTRIES, data=st.data())
def test_one_that_was_altered(entries, data):
    """Whichever bit is turned, it is refused."""
    altered = bytearray(made(entries))
    at = data.draw(st.integers(0, 8 * len(altered) - 1))
    altered[at // 8] ^= 1 << at % 8
    with pytest.raises(DamagedBackup):
        read(bytes(altered))


@given(entries=ENTRIES, more=st.binary(min_size=1, max_size=40))
def test_one_with_something_behind_it(entries, more):
    """Nothing may follow."""
    with pytest.raises(DamagedBackup, match="altered"):
        read(made(entries) + more)


@pytest.mark.parametrize("data", [b"", b"tornado", b"SQLite format 3\0" + bytes(100), MAGIC.replace(b"1", b"2")])
def test_something_else(data):
    """What does not begin as a backup of this version is told so."""
    with pytest.raises(DamagedBackup, match="does not begin as one of this version"):
        read(data)


def test_keys_out_of_order():
    """Keys come once and in their order, also where the sum is right."""
    for keys in ((b"b", b"a"), (b"a", b"a")):
        packer = Packer()
        data = packer.begin() + packer.pack((key, b"") for key in keys) + packer.end()
        with pytest.raises(DamagedBackup, match="altered"):
            read(data)


def test_a_length_without_end():
    """A length that nothing can have is refused before anything of that size is read."""
    asked = []
    stream = io.BytesIO(MAGIC + b"\xff" * 8 + bytes(100))

    def reading(size):
        asked.append(size)
        return stream.read(size)

    with pytest.raises(DamagedBackup, match="altered"):
        list(unpack(reading))
    assert max(asked) == len(MAGIC)


def test_nothing_comes_of_one_that_was_altered():
    """Whichever bit is another one, no entry is told before that is known."""
    assert dict(verified(io.BytesIO(GOLDEN))) == {b"a": b"12", b"bb": b""}
    for at in range(8 * len(GOLDEN)):
        altered = bytearray(GOLDEN)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(DamagedBackup):
            next(verified(io.BytesIO(altered)))
