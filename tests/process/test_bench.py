"""All parts of the benchmarks run, with tiny numbers, and report correct figures."""

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request

import pytest
from bench import client, processes
from bench.counter import Counter
from bench.opcodes import PYTHON, TABLE
from support.paths import TESTS

pytestmark = pytest.mark.slow

MOST_MORE = 1.03  # opcodes, compared with the table
CI_PYTHON = "3.11"  # which `.ci/run` uses; the tests also run on others


def test_operations_execute_no_more_opcodes_than_the_table_says():
    command = [sys.executable, "-m", "bench.opcodes"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    recorded, counted = json.loads(TABLE.read_text()), json.loads(done.stdout)[PYTHON]
    assert CI_PYTHON in recorded
    assert all(counted.keys() == row.keys() for row in recorded.values())
    expected = recorded.get(PYTHON, {})  # another Python executes other opcodes
    more = {name: f"{counted[name]}, not {most}" for name, most in expected.items() if counted[name] > most * MOST_MORE}
    assert not more, "a commit that raises the table says why"


def test_server_of_another_checkout_runs_the_code_of_that_checkout(tmp_path):
    other = tmp_path / "other"
    shutil.copytree(TESTS.parent / "tornado_signal", other / "tornado_signal")
    (other / "tornado_signal/_version.py").write_text("VERSION, COMMIT = '0.1', 'of-the-other'\n")
    (other / ".venv").symlink_to(TESTS.parent / ".venv")
    with processes.tornado_signal(tmp_path / "db", checkout=other) as server:
        asked = urllib.request.Request(server.base, headers={"Origin": server.base})
        with urllib.request.urlopen(asked) as response:
            assert json.load(response) == {"version": "of-the-other"}


@pytest.mark.needs("valgrind")
@pytest.mark.timeout(300)
def test_callgrind_counts_the_instructions_of_a_server_while_it_works(tmp_path):
    with processes.tornado_signal(tmp_path / "live", callgrind=True) as server:
        counts = []
        for requests in (10, 40):
            with Counter(server) as counter:
                asyncio.run(client.create(server.base, ["counted"] * requests))
            counts.append(counter.count)
    assert counts[0] > 10 * 100_000
    assert 2 < counts[1] / counts[0] < 8  # of the second block alone
    assert not list(tmp_path.glob("*.callgrind.*"))
