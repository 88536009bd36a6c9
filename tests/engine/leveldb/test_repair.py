"""Repair of damaged directories: whole sessions are kept, and the damaged directory is moved aside."""

import random
import re
import shutil

import pytest
from support.command import call
from support.maintenance import fill, names, noise

from tornado_signal.errors import DatabaseError
from tornado_signal.stores.leveldb import directory, layout, repair
from tornado_signal.stores.leveldb.binding import plyvel
from tornado_signal.stores.leveldb.check import flaws

SESSIONS = 300


def flip(path, pattern, seed):
    """Flip one bit of the largest matching file."""
    file = max(path.glob(pattern), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    rng = random.Random(seed)
    data[rng.randrange(len(data) - 48)] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncate_log(path):
    log = max(path.glob("*.log"), key=lambda file: file.stat().st_size)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size * 2 // 3)


def spoil_footer(path):
    with min(path.glob("*.ldb")).open("r+b") as file:
        file.seek(-48, 2)
        file.write(b"\xff" * 8 + b"\x7f")


def delete(path, prefix, part=None):
    with plyvel.DB(str(path)) as db:
        keys = db.iterator(prefix=prefix, include_value=False)
        some = [key for key in keys if part is None or layout.unpack_session_key(key)[2] == part]
        for key in some[::9]:
            db.delete(key)


def lose_second_messages(path):
    """Delete the second message of some sessions, so that the first and the third remain."""
    delete(path, layout.SESSIONS, layout.OFFER_CANDIDATE + layout.pack_number(2))
    (path / "CURRENT").unlink()


def use_a_serial_twice(path):
    with plyvel.DB(str(path)) as db:
        heads = [item for item in db.iterator(prefix=layout.SESSIONS) if item[0].endswith(layout.HEAD)]
        db.put(heads[0][0], heads[1][1])


def write_garbage(path):
    with plyvel.DB(str(path)) as db:
        key = next(key for key in db.iterator(prefix=layout.SESSIONS, include_value=False) if key.endswith(b"\0"))
        db.put(key, b"garbage")
        db.delete(layout.COUNTERS_KEY)


# The damage, and the least and the greatest number of sessions that are kept.
DAMAGE = {
    **{f"bit of a log {seed}": (lambda path, seed=seed: flip(path, "*.log", seed), 200, SESSIONS) for seed in range(4)},
    **{
        f"bit of a table {seed}": (lambda path, seed=seed: flip(path, "*.ldb", seed), 80, SESSIONS) for seed in range(4)
    },
    "no CURRENT": (lambda path: (path / "CURRENT").unlink(), SESSIONS, SESSIONS),
    "no MANIFEST": (lambda path: next(path.glob("MANIFEST-*")).unlink(), SESSIONS, SESSIONS),
    "no table": (lambda path: min(path.glob("*.ldb")).unlink(), 0, SESSIONS - 1),
    "wrong footer": (spoil_footer, 0, SESSIONS - 1),
    "no heads": (lambda path: delete(path, layout.SESSIONS, layout.HEAD), 200, SESSIONS - 1),
    "no listing entries": (lambda path: delete(path, layout.LISTING), SESSIONS, SESSIONS),
    "no expiry entries": (lambda path: delete(path, layout.EXPIRY), SESSIONS, SESSIONS),
    "no answers": (lambda path: delete(path, layout.SESSIONS, layout.ANSWER), 200, SESSIONS - 1),
    "no second messages": (lose_second_messages, 200, SESSIONS - 1),
    "a serial twice": (use_a_serial_twice, SESSIONS - 1, SESSIONS - 1),
    "garbage": (write_garbage, SESSIONS - 1, SESSIONS - 1),
}

LEVELDB_OPENS = re.compile("bit of a table|no [a-z]|a serial|garbage")  # which replaces the log by a table


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A directory with sessions in a table and in a log."""
    path = tmp_path_factory.mktemp("sound") / "data"
    fill(path, SESSIONS // 2, offer=noise(3000))
    with directory.opened(path) as db:
        directory.compact(db)
    fill(path, SESSIONS // 2, offer=noise(3000), seed=2)
    assert list(path.glob("*.ldb"))
    assert max(log.stat().st_size for log in path.glob("*.log")) > 100_000
    return path


@pytest.fixture
def path(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "data")


def stored(path):
    """Return the parts of each session of a directory."""
    sessions = {}
    with directory.opened(path) as db:
        assert flaws(db) == []
        for key, value in db.iterator(prefix=layout.SESSIONS):
            origin, code, part = layout.unpack_session_key(key)
            sessions.setdefault((origin, code), {})[part] = value
    return sessions


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".ldb", ".log")}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whole_sessions_are_kept(damage, path, sound, tmp_path):
    before = stored(shutil.copytree(sound, tmp_path / "before"))
    harm, least, most = DAMAGE[damage]
    harm(path)
    damaged = contents(path)
    repaired = repair.repair(path)
    after = stored(path)
    assert least <= len(after) == repaired.kept <= most
    if damage != "a serial twice":
        # The newest candidates of a session can be lost without a trace.
        assert all(parts.items() <= before[name].items() for name, parts in after.items())
        assert sum(parts != before[name] for name, parts in after.items()) <= 1
    assert repaired.lost <= SESSIONS - repaired.kept
    assert repaired.reports or repaired.lost or repaired.kept == SESSIONS
    assert names(tmp_path) == ["before", "data", repaired.aside.name]
    if not LEVELDB_OPENS.match(damage):
        assert contents(repaired.aside) == damaged
    assert repair.repair(path) is None
    with directory.opened(path) as db, directory.opened(tmp_path / "before") as old:
        one, other = (each.get(layout.IDENTITY_KEY) for each in (db, old))
        assert one[: layout.IDENTITY_BYTES] != other[: layout.IDENTITY_BYTES]


def test_end_of_a_truncated_log_is_no_damage(path):
    truncate_log(path)
    assert repair.repair(path) is None
    assert SESSIONS // 2 < len(stored(path)) < SESSIONS


def test_sound_directory_stays(path, tmp_path):
    before = contents(path).keys()
    assert repair.repair(path) is None
    assert names(tmp_path) == ["data"]
    assert len(stored(path)) == SESSIONS
    assert before


def test_directory_in_use_or_without_a_database_is_refused(path, tmp_path, request):
    (path / "CURRENT").unlink()
    request.getfixturevalue("holder")
    with pytest.raises(DatabaseError, match="in use"):
        repair.repair(path)
    with pytest.raises(DatabaseError, match="there is no database"):
        repair.repair(tmp_path / "missing")
    assert names(tmp_path) == ["data"]


@pytest.mark.parametrize("reason", ["abort", "error", "foreign", "nothing readable", "no space"])
def test_what_cannot_be_repaired_stays(reason, path, tmp_path, monkeypatch):
    (path / "CURRENT").unlink()
    if reason == "abort":
        monkeypatch.setattr(repair, "_LEVELDB_REPAIR", "import os; os.abort()")
    elif reason == "error":
        monkeypatch.setattr(repair, "_LEVELDB_REPAIR", "raise OSError('broken')")
    elif reason == "no space":
        monkeypatch.setattr(repair.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
    else:
        for file in path.iterdir():
            file.unlink()
        if reason == "foreign":
            with plyvel.DB(str(path), create_if_missing=True) as db:
                db.put(b"someone", b"else's")
            (path / "CURRENT").unlink()
        else:
            (path / "000005.ldb").write_bytes(b"nothing")
    before = contents(path)
    with pytest.raises(DatabaseError) as refused:
        repair.repair(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contents(path) == before
    assert names(tmp_path) == ["data"]


def test_command_says_what_was_lost(path):
    flip(path, "*.log", 1)
    for command in ("check", "repair", "check"):
        ended = call(command, "--data-dir", str(path))
        if command == "check" and ended.returncode:
            assert f"`tornado-signal repair --data-dir {path}`" in ended.stderr
        elif command == "repair":
            *reports, said = ended.stdout.splitlines()
            assert any("dropping" in report for report in reports)
            assert str(path.parent / "data.damaged-") in said
            assert " sessions kept, at least " in said
    assert (ended.returncode, ended.stdout) == (0, f"{path} is sound\n")
    assert call("repair", "--data-dir", str(path)).stdout == f"{path} is sound\n"
