"""Checks of LevelDB's files before LevelDB opens them."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.stores.leveldb import directory
from tornado_signal.stores.leveldb.binding import plyvel


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "data"
    with plyvel.DB(str(path), create_if_missing=True) as db:
        for number in range(3000):
            db.put(b"%d" % number, bytes(100))
        db.compact_range(start=b"\x00", stop=b"\xff")
    return path


def test_sound_empty_missing_and_foreign_directories_are_not_damaged(sound, tmp_path):
    (tmp_path / "server.log").write_text("of somebody else")
    assert [directory.damage(path) for path in (sound, tmp_path, tmp_path / "missing")] == [None, None, None]


@pytest.mark.parametrize("name", ["000005.ldb", "000003.log"])
def test_tables_or_logs_without_current_are_damage(tmp_path, name):
    (tmp_path / name).touch()
    assert directory.damage(tmp_path) == "there are tables or logs, but no CURRENT"
    (tmp_path / "CURRENT").touch()
    assert directory.damage(tmp_path) is None


@pytest.mark.parametrize("left", [0, 1, 47, 48, 100, 1000])
def test_database_opens_with_an_unfinished_table(sound, tmp_path, left):
    path = tmp_path / "data"
    shutil.copytree(sound, path)
    (table,) = path.glob("*.ldb")
    (path / "000999.ldb").write_bytes(table.read_bytes()[:left])
    assert directory.damage(path) is None
    with plyvel.DB(str(path)) as db:
        assert len(list(db.iterator())) == 3000


@given(at=st.integers(0, 39), data=st.binary(min_size=1, max_size=8))
def test_footer_that_points_outside_the_table_is_damage(sound, tmp_path_factory, at, data):
    (table,) = sound.glob("*.ldb")
    body = bytearray(table.read_bytes())
    size = len(body)
    start = size - 48 + at
    body[start : min(start + len(data), size - 8)] = data[: size - 8 - start]
    path = tmp_path_factory.mktemp("damaged")
    (path / "CURRENT").touch()
    (path / "000007.ldb").write_bytes(body)
    numbers, number, shift = [], 0, 0
    for byte in body[size - 48 : size - 8]:
        number, shift = number + byte % 128 * 2**shift, shift + 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    fits = all(numbers[n] + numbers[n + 1] + 5 <= size - 48 for n in (0, 2) if n + 1 < len(numbers))
    assert directory.damage(path) == (None if fits else "000007.ldb does not end as a table does")
