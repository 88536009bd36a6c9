"""Tests of what is LevelDB's own: its steps, its keys, its directory."""

import pytest
from support.stores import LevelDB


@pytest.fixture
def engine(tmp_path, clock):
    """This engine and no other."""
    return LevelDB(tmp_path, clock)
