"""Tests of what is LevelDB's own: its steps, its keys, its directory."""

import subprocess
import sys

import pytest
from support.stores import LevelDB

HOLDER = """
import sys
from tornado_signal.stores.leveldb.binding import plyvel
db = plyvel.DB(sys.argv[1], create_if_missing=True)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def engine(tmp_path, clock):
    """This engine and no other."""
    return LevelDB(tmp_path, clock)


@pytest.fixture
def holder(tmp_path):
    """Another process that has the directory `data` open until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"open\n"
        yield process
