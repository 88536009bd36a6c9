"""Made-up bytes and operations: what must never come of them does not, in thirty thousand of them."""

import re
import subprocess
from pathlib import Path

import pytest

INPUTS = 30_000


@pytest.mark.slow
def test_fuzz():
    """No 500, no HTML, no answer that is missing, no connection without an end, and no error in the log."""
    command = [Path(__file__).with_name("fuzz"), "--inputs", str(INPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) inputs", done.stdout)[1]) >= INPUTS
    statuses = dict(re.findall(r"(\d{3}): (\d+)", done.stdout))
    assert sum(map(int, statuses.values())) > INPUTS / 2
    assert int(statuses["200"]) > INPUTS / 10
