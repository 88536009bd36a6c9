"""All parts of the benchmarks run, with tiny numbers, and report correct figures."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest
from bench import client, messages, processes, wrk
from bench.counter import Counter
from support.needs import require
from support.paths import TESTS

from tests.bench.__main__ import PARTS

RUN = TESTS / "bench" / "run"
STALL_S = 0.3
pytestmark = pytest.mark.slow


def bench(*options):
    require("wrk", "playwright")
    command = [RUN, "--smoke", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def live(tmp_path):
    with processes.tornado_signal(tmp_path / "live") as server:
        yield server


@pytest.mark.weekly
@pytest.mark.timeout(300)
def test_each_benchmark_measures_all_its_targets(tmp_path):
    parts = [option for part in PARTS if part != "life" for option in ("--only", part)]
    done = bench(*parts, "--dir", tmp_path, "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "figures.json").read_text())
    assert {"Commit", "CPU", "Kernel", "Python", "Packages", "Options"} <= document["setup"].keys()
    measured = {figure["name"]: figure for figure in document["figures"]}
    assert len([name for name, figure in measured.items() if figure["target"]]) == 65
    assert 0.01 < measured["POST /poll"]["ratio"] < 10  # measured for a tenth of a second, in parallel with other tests
    assert measured["memory of a session"]["reached"] is None  # of so few sessions that it says nothing
    for name in measured:
        assert name in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


@pytest.mark.parametrize("known", [True, False])
def test_given_server_is_measured_with_its_cpu_if_local(known, live):
    done = bench("--only", "broker", "--url", live.base, *(["--pid", live.pid] if known else []))
    assert done.returncode == 0, done.stderr
    assert bool(re.search(r"\nCPU, as given +\d", done.stdout)) == known
    assert re.search(r"\nbrokered, as given .* +\d", done.stdout)


@pytest.mark.weekly
@pytest.mark.timeout(300)
def test_life_measures_each_server_by_fifths_and_threads(tmp_path):
    other = TESTS.parent
    done = bench("--only", "life", "--seconds", 4, "--rate", 100, "--server", other, "--json", tmp_path / "life.json")
    assert done.returncode == 0, done.stderr
    measured = {figure["name"]: figure for figure in json.loads((tmp_path / "life.json").read_text())["figures"]}
    peerjs = next(name for name in measured if re.fullmatch(r"PeerJS [\d.]+", name))
    for name in ("13 requests", "waits and batches", "13 requests, server 2", "waits and batches, server 2", peerjs):
        figure = measured[name]
        assert len(figure["fifths"]) == 5
        assert sum(figure["fifths"]) / 5 == pytest.approx(figure["value"])
        assert 0.3 < measured[f"{name}, main thread"]["value"] / figure["value"] < 1.2  # CPU comes in steps
    judged = ["13 requests", "waits and batches", "WebSocket", "WebSocket, kept"]
    to_reach = {name + growth for name in judged for growth in ("", ", last fifth to first")}
    to_reach |= {f"{name}, tokens, to that without" for name in ("13 requests", "WebSocket, kept")}
    assert {name for name, figure in measured.items() if figure["target"]} == to_reach
    ours = measured["13 requests"]
    assert ours["ratio"] == pytest.approx(ours["value"] / measured[peerjs]["value"])
    assert ours["reached"] is None  # in so short a run nothing has been swept or compacted
    assert "35 pairs each, 100 a second" in ours["note"]
    assert f"server 2 is that of {other}" in ours["note"]
    assert measured["the load, of its own processor"]["value"] < 100


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


@pytest.mark.needs("perf")
def test_events_of_a_server_are_counted_while_it_works(live):
    with Counter(live, "task-clock") as working:
        for _ in range(200):
            asyncio.run(client.create(live.base, ["counted"]))
    with Counter(live, "task-clock") as resting:
        pass
    assert working.count > 10 * (resting.count or 0)


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


def test_server_that_is_not_there_is_an_error():
    done = bench("--only", "broker", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "broker: cannot connect to http://127.0.0.1:9" in done.stderr


@pytest.mark.needs("wrk")
def test_errors_do_not_count_as_throughput(live):
    with pytest.raises(processes.BenchError, match="error responses"):
        wrk.run(live, messages.poll(live.base, "no-such-session", "offerer"), seconds=0.1)


def test_server_pause_delays_all_requests_due_during_it():
    class Stalling(asyncio.Protocol):
        answered = 0

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            Stalling.answered += 1
            if Stalling.answered == 20:
                time.sleep(STALL_S)
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        def connection_lost(self, error):
            gone.set()

    async def measure():
        server = await asyncio.get_running_loop().create_server(Stalling, "127.0.0.1", 0)
        async with server:
            base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            request = messages.request(base, "GET", "/")
            end_s = time.perf_counter() + 1
            seen = await client.steady(base, lambda _: request, 200, lambda: time.perf_counter() > end_s, 1)
            await gone.wait()
            return seen

    gone = asyncio.Event()
    latencies_s = [latency_s for _, latency_s in asyncio.run(measure())]
    assert sum(latency_s > STALL_S / 2 for latency_s in latencies_s) > 0.8 * 200 * STALL_S / 2
    assert client.percentile(latencies_s, 1.0) > STALL_S * 1e3 > client.percentile(latencies_s, 0.5)
