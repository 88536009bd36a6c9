"""The directory of a database: in use or not, damaged or not, moved aside, begun anew."""

import subprocess
import sys
import time

import pytest

from tornado_signal.errors import DamagedDatabase, DamagedListing, DatabaseError
from tornado_signal.stores.leveldb import directory, files, layout
from tornado_signal.stores.leveldb.binding import plyvel

HOLDER = """
import sys
from tornado_signal.stores.leveldb.binding import plyvel
db = plyvel.DB(sys.argv[1], create_if_missing=True)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    """A directory with a database of ours."""
    directory.open_leveldb(tmp_path / "data").close()
    return tmp_path / "data"


@pytest.fixture
def holder(path):
    """Another process that has it open until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        yield process


def load(db):
    """What a sound database holds besides its format."""
    return [key for key in db.iterator(include_value=False) if key not in (layout.FORMAT_KEY, layout.IDENTITY_KEY)]


def damage(path):
    """Make LevelDB find it damaged."""
    (path / "CURRENT").write_bytes(b"nonsense")


def test_in_use(path, holder):
    """It is in use as long as another process has it open, and that one is not disturbed by the question."""
    before = sorted((file.name, file.stat().st_ino) for file in path.iterdir())
    assert directory.in_use(path)
    assert sorted((file.name, file.stat().st_ino) for file in path.iterdir()) == before
    for opening in (lambda: directory.set_aside(path), lambda: directory.opened(path).__enter__()):
        with pytest.raises(DatabaseError, match="in use by another process; stop it, or choose another --data-dir"):
            opening()
    holder.communicate()
    assert not directory.in_use(path)


def test_not_in_use(path, tmp_path):
    """A stopped one, one that is missing and one that is empty are in nobody's use."""
    (tmp_path / "empty").mkdir()
    assert [directory.in_use(each) for each in (path, tmp_path / "missing", tmp_path / "empty")] == [False] * 3
    with pytest.raises(DatabaseError, match="Not a directory"):
        directory.in_use(path / "CURRENT")


def test_opened(path):
    """One that is there is opened and closed again."""
    with directory.opened(path) as db:
        assert not db.closed
    assert db.closed


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_nothing_is_made_to_be_opened(name, tmp_path):
    """Where there is no database, none is made."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatabaseError, match=r"there is no database in .*; name its directory with --data-dir"):
        directory.opened(tmp_path / name).__enter__()
    assert [each.name for each in tmp_path.rglob("*")] == ["empty"]


def test_set_aside(path):
    """It is moved, whole, to a name with the time in it; a second one in the same second gets a name of its own."""
    held = sorted(file.name for file in path.iterdir())
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
def test_set_aside_in_vain(path, monkeypatch):
    """What cannot be moved, such as a mount point, is said."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=True)
    try:
        with pytest.raises(DatabaseError, match=r"cannot move .*data to .*busy; move it or its files away"):
            directory.set_aside(path)
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_sound_one_is_not_begun_anew(path):
    """Only damage lets the service start empty: what is sound, in use or not ours never goes."""
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


def test_one_in_use_is_not_begun_anew(path, holder):
    """Nobody's database is moved from under them, however damaged it looks."""
    (path / "000099.ldb").write_bytes(b"\xff" * 40 + bytes.fromhex("57fb808b247547db"))
    with pytest.raises(DatabaseError, match="in use"):
        directory.open_sound(path, load, start_empty=True)
    assert path.exists()


@pytest.mark.parametrize("by", ["leveldb", "load"])
def test_damage_refuses_or_begins_anew(by, path, caplog):
    """Damage is refused with the command that repairs it; or it is kept aside, in the log, and the rest goes on."""

    def loading(db):
        if by == "load" and db.get(b"old") is not None:
            raise DamagedListing(3, 5)
        return load(db)

    with plyvel.DB(str(path)) as db:
        db.put(b"old", b"")
    if by == "leveldb":
        damage(path)
    with pytest.raises(DamagedDatabase) as refused:
        directory.open_sound(path, loading)
    assert f"`tornado-signal repair --data-dir {path}`" in str(refused.value)
    assert "--start-empty-if-damaged" in str(refused.value)
    assert caplog.records == []
    db, loaded = directory.open_sound(path, loading, start_empty=True)
    db.close()
    assert loaded == []
    (record,) = caplog.records
    (kept,) = [each for each in path.parent.iterdir() if each != path]
    assert record.levelname == "ERROR"
    assert f"it is kept in {kept}" in record.getMessage()
    assert (kept / "LOCK").exists()


def test_another_identity(path):
    """Each database has an identity, which stays when it is opened again, until its state is another one's."""
    identities = []
    for change in (False, False, True, False):
        with directory.opened(path) as db:
            if change:
                directory.become_another(db)
            identities.append(db.get(layout.IDENTITY_KEY))
    first, again, other, last = identities
    assert first == again != other == last
    assert len(first) == len(other) == layout.IDENTITY_BYTES


def test_what_is_kept_aside_has_no_ballast(path):
    """A damaged directory is kept for its data, not for the room that its ballast takes."""
    with directory.opened(path):
        (path / files.BALLAST).write_bytes(b"\0" * 1000)
    kept = directory.set_aside(path)
    assert (kept / "CURRENT").exists()
    assert not (kept / files.BALLAST).exists()


def test_compact(path):
    """What was written and deleted takes no space after a compaction."""
    with plyvel.DB(str(path), write_buffer_size=1 << 16, compression=None) as db:
        for number in range(2000):
            db.put(b"%d" % number, bytes(500))
        for number in range(1, 2000):
            db.delete(b"%d" % number)
    full = sum(file.stat().st_size for file in path.glob("*.l*"))
    with directory.opened(path) as db:
        directory.compact(db)
    assert sum(file.stat().st_size for file in path.glob("*.l*")) < 10_000 < full
    with directory.opened(path) as db:
        assert load(db) == [b"0"]
