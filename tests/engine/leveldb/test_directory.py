"""The directory of a database: in use, damaged, moved aside and replaced."""

import subprocess
import sys
import time

import pytest
from support.waiting import start_holder

from tornado_signal.errors import DamagedDatabase, DamagedListing, DatabaseError
from tornado_signal.stores.leveldb import directory, files, layout
from tornado_signal.stores.leveldb.binding import plyvel

OWN = (layout.FORMAT_KEY, layout.IDENTITY_KEY)
HOLDER = """
import sys
from tornado_signal.stores.leveldb.binding import plyvel
db = plyvel.DB(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    directory.open_leveldb(tmp_path / "data").close()
    return tmp_path / "data"


def load(db):
    """The entries of a sound database besides its own."""
    return [key for key in db.iterator(include_value=False) if key not in OWN]


def test_damaged_database_in_use_by_another_process_is_not_touched(path):
    with start_holder(sys.executable, "-c", HOLDER, str(path)):
        (path / "000099.ldb").write_bytes(b"\xff" * 40 + bytes.fromhex("57fb808b247547db"))
        before = sorted((file.name, file.stat().st_ino) for file in path.iterdir())
        assert directory.in_use(path)
        assert sorted((file.name, file.stat().st_ino) for file in path.iterdir()) == before
        for opening in (
            lambda: directory.set_aside(path),
            lambda: directory.opened(path).__enter__(),
            lambda: directory.open_sound(path, load, start_empty=True),
        ):
            with pytest.raises(DatabaseError, match="in use by another process; stop it, or choose another --data-dir"):
                opening()
    assert not directory.in_use(path)


def test_unused_missing_and_empty_directories_are_not_in_use(path, tmp_path):
    (tmp_path / "empty").mkdir()
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    assert [directory.in_use(each) for each in (path, missing, empty)] == [False] * 3
    with pytest.raises(DatabaseError, match="a file is in the way"):
        directory.in_use(path / "CURRENT")
    for each in (missing, empty):
        with pytest.raises(DatabaseError, match=r"there is no database in .*; name its directory with --data-dir"):
            directory.opened(each).__enter__()
    assert (missing.exists(), list(empty.iterdir())) == (False, [])


def test_set_aside_moves_all_but_the_ballast_to_a_unique_name_with_the_time(path):
    held = sorted(file.name for file in path.iterdir())
    (path / files.BALLAST).write_bytes(b"\0" * 1000)
    kept = directory.set_aside(path)
    assert sorted(file.name for file in kept.iterdir()) == held
    assert not path.exists()
    assert kept.parent == path.parent
    stamp = time.strptime(kept.name, "data.damaged-%Y%m%dT%H%M%SZ")
    assert abs(time.mktime(time.gmtime()) - time.mktime(stamp)) < 60
    names = set()
    for _ in range(5):
        path.mkdir()
        names.add(directory.set_aside(path))
    assert len(names) == 5


@pytest.mark.needs("root")
def test_set_aside_of_a_mount_point_is_refused(path):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=True)
    try:
        with pytest.raises(DatabaseError, match=r"cannot move .*data to .*busy; move it or its files away"):
            directory.set_aside(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_sound_or_foreign_database_is_never_started_empty(path):
    db, loaded = directory.open_sound(path, load, start_empty=True)
    assert loaded == []
    db.put(b"kept", b"")
    db.close()
    db, loaded = directory.open_sound(path, load, start_empty=True)
    assert loaded == [b"kept"]
    db.delete(layout.FORMAT_KEY)
    db.close()
    with pytest.raises(DatabaseError, match="not tornado-signal's"):
        directory.open_sound(path, load, start_empty=True)
    assert [each.name for each in path.parent.iterdir()] == ["data"]


@pytest.mark.parametrize("by", ["leveldb", "load", "reading"])
def test_damage_is_refused_or_replaced_by_an_empty_database(by, path, caplog):
    def loading(db):
        if by != "leveldb" and db.get(b"old") is not None:
            raise (DamagedListing(3, 5) if by == "load" else plyvel.CorruptionError(b"bad block"))
        return load(db)

    with plyvel.DB(str(path)) as db:
        db.put(b"old", b"")
    if by == "leveldb":
        (path / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(DamagedDatabase) as refused:
        directory.open_sound(path, loading)
    assert {"load": "5", "reading": "bad block", "leveldb": "CURRENT"}[by] in str(refused.value)
    assert "move the directory away" in str(refused.value)
    assert "--start-empty-if-damaged" in str(refused.value)
    assert caplog.records == []
    db, loaded = directory.open_sound(path, loading, start_empty=True)
    db.close()
    assert loaded == []
    (record,) = caplog.records
    (kept,) = [each for each in path.parent.iterdir() if each != path]
    assert record.levelname == "ERROR"
    assert f"it is kept in {kept}" in record.getMessage()
    assert "--start-empty-if-damaged" not in record.getMessage()  # an advice that is not needed
    assert (kept / "LOCK").exists()


def test_store_of_an_early_version_gets_a_secret(path):
    with directory.opened(path) as db:
        db.put(layout.IDENTITY_KEY, b"before")
    with directory.opened(path) as db:
        assert db.get(layout.IDENTITY_KEY).startswith(b"before")
        assert len(db.get(layout.IDENTITY_KEY)) == layout.IDENTITY_BYTES + layout.SECRET_BYTES
