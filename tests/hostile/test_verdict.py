"""The verdict about an outcome, and measurements of the right process."""

import dataclasses
import os
import subprocess
import sys

import pytest

from . import watcher
from .__main__ import cells, table
from .trial import Outcome, longest_lag, p99
from .verdict import against

GOOD = Outcome("mixed", 6, bound_mib=100, polls=9, wakes=9, level_s=1, end_s=1, status=0)


def test_outcome_within_the_limits_is_no_harm():
    assert against(GOOD) == []
    assert "NO" not in " ".join(cells(GOOD))


WRONG_ANSWERS = {"closed 1002": 9, "wrong: closed 1006": 1}
HARMS = {"memory_mib": 300, "poll_s": 0.6, "polls": 0, "wake_s": 1.1, "stopped_s": 1.1, "failed": {"offer: 503": 1}}
HARMS |= {"kept_mib": 100, "kept_descriptors": 6, "kept_threads": 3, "log": ["Traceback"], "status": -9}


@pytest.mark.parametrize(("name", "harm"), [*HARMS.items(), ("answers", WRONG_ANSWERS), ("answers", {"404": 5})])
def test_each_harm_is_one_sentence_and_one_no_in_the_table(name, harm):
    outcome = dataclasses.replace(GOOD, **{name: harm})
    assert len(against(outcome)) == 1
    assert " ".join(cells(outcome)).count(" NO") == 1
    assert table([GOOD, outcome]).count("\n") == 3


def test_percentile_and_longest_lag_of_counted_buckets():
    assert p99([float(number) for number in range(101)]) == 99
    assert (p99([]), p99([3])) == (0, 3)
    assert longest_lag({0.1: 5, 1.0: 5, 2.0: 5}, {0.1: 8, 1.0: 9, 2.0: 9}) == 1.0


def test_memory_descriptors_and_disk_of_another_process(tmp_path):
    script = "import sys; held = b'x' * (50 << 20); files = [open('/dev/null') for _ in range(20)]; print(); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        (tmp_path / "file").write_bytes(os.urandom(3 << 20))
        sample = watcher.look(process.pid, tmp_path)
        process.communicate(b"\n")
    assert 50 < sample.memory_mib < 100
    assert 23 <= sample.descriptors < 30
    assert 3 <= sample.disk_mib < 4
    with pytest.raises(OSError, match=r"."):
        watcher.look(process.pid, tmp_path)
