"""All parts of the benchmarks run, with tiny numbers, and report correct figures."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
from bench import client, processes
from bench.__main__ import PARTS
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


@pytest.mark.weekly
@pytest.mark.needs("valgrind", "node", "playwright")
@pytest.mark.timeout(1800)  # it runs under valgrind
def test_each_benchmark_measures_all_its_targets(tmp_path):
    command = [TESTS / "bench" / "run", "--smoke", "--dir", tmp_path]
    parts = [option for part in PARTS if part != "life" for option in ("--only", part)]
    measured = {}
    for options in (["--only", "life", "--seconds", "4", "--rate", "100", "--server", TESTS.parent], parts):
        written = tmp_path / "figures.json"
        done = subprocess.run([*command, *options, "--json", written], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        document = json.loads(written.read_text())
        written.unlink()
        assert {"Commit", "CPU", "Kernel", "Python", "Packages", "Options"} <= document["setup"].keys()
        figures = {figure["name"]: figure for figure in document["figures"]}
        assert [name for name in figures if name not in done.stdout] == []
        measured |= figures
    assert len([name for name, figure in measured.items() if figure["target"]]) == 45
    assert not [*tmp_path.iterdir()]
    peerjs = next(name for name in measured if re.fullmatch(r"PeerJS [\d.]+", name))
    for name in ("13 requests", "waits and batches", "13 requests, server 2", "waits and batches, server 2", peerjs):
        figure = measured[name]
        assert len(figure["fifths"]) == 5
        assert sum(figure["fifths"]) / 5 == pytest.approx(figure["value"])
    ours = measured["13 requests"]
    assert ours["ratio"] == pytest.approx(ours["value"] / measured[peerjs]["value"])
    assert (
        measured["13 requests, to PeerJS"]["reached"] is None
    )  # in so short a run nothing has been swept or compacted
    assert f"server 2 is that of {TESTS.parent}" in ours["note"]
    assert measured["the load, of its own processor"]["value"] < 100
    assert 50 < measured["poll"]["value"] < 1000
    assert measured["poll"]["target"] == "<= 320 k"
    tokens = [figure["value"] for name, figure in measured.items() if name.endswith("to that without")]
    assert [0.5 < value < 2 for value in tokens] == [True, True]  # of few repetitions


def test_server_of_another_checkout_runs_the_code_of_that_checkout(tmp_path):
    checkout = tmp_path / "other"
    shutil.copytree(TESTS.parent / "tornado_signal", checkout / "tornado_signal")
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (checkout / ".venv/bin/python").chmod(0o755)
    (checkout / "tornado_signal/_version.py").write_text("VERSION, COMMIT = '0.1', 'of-the-other'\n")
    with (
        processes.tornado_signal(tmp_path / "db", checkout=checkout) as server,
        urllib.request.urlopen(urllib.request.Request(server.base, headers={"Origin": server.base})) as response,
    ):
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
