"""The verdict about an outcome, and measurements of the right process."""

import dataclasses
import math
import os
import subprocess
import sys

import pytest

from . import watcher
from .__main__ import table
from .trial import GOALS, Outcome, against, p99

GOOD = Outcome("mixed", poll_s=0, wake_s=0, end_s=1, status=0)


def test_outcome_within_the_limits_is_no_harm():
    assert against(GOOD) == against(GOOD, busy=True) == {}
    assert "NO" not in table([GOOD])


HARMS = {"memory_mib": 300, "poll_s": 0.6, "wake_s": 1.1, "stopped_s": 1.1, "gone_s": 4, "failed": {"offer: 503": 1}}
HARMS |= {"kept_memory_mib": 100, "kept_descriptors": 6, "kept_threads": 3, "log": ["Traceback"]}
HARMS |= {"disk_mib": GOALS["disk_mib"] + 1, "kept_disk_mib": 33, "end_s": 21}
WRONG_ANSWERS = {"closed 1002": 9, "wrong: closed 1006": 1}


@pytest.mark.parametrize(
    ("name", "harm"), [*HARMS.items(), ("poll_s", math.inf), ("answers", WRONG_ANSWERS), ("answers", {"404": 5})]
)
def test_each_harm_is_one_sentence_and_one_no_in_the_table(name, harm):
    outcome = dataclasses.replace(GOOD, **{name: harm})
    assert len(against(outcome)) == len(against(outcome, busy=True)) == 1
    assert table([GOOD, outcome]).count(" NO") == 1
    assert table([GOOD, outcome]).count("\n") == 3


def test_percentile_of_few_and_of_many():
    assert p99([float(number) for number in range(101)]) == 99
    assert (p99([]), p99([3])) == (math.inf, 3)


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
