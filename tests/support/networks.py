"""A network in which peers can meet, and its fixtures: `pytest_plugins = ["support.networks"]` brings them."""

import os
import re
import subprocess
import time

import pytest

from .command import COMMAND

BOUND_S = 60

# aiortc leaves out the loopback interface, so the peers get another one, an end of a cable to nowhere, in a network
# namespace that no packet leaves. The namespace lasts until standard input ends.
NETWORK = """
set -e
ip link set lo up
ip link add v0 type veth peer name v1
ip address add 192.0.2.1/24 dev v0
ip link set v0 up
ip link set v1 up
ip route add default dev v0
echo ready
exec cat
"""


@pytest.fixture
def spawn():
    """A function like Popen whose processes live in a network of their own, and not longer than the test."""
    root = os.geteuid() == 0
    unshare = ["unshare", "-n" if root else "-rn", "sh", "-c", NETWORK]
    started = []
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as network:
        assert network.stdout.readline() == "ready\n"
        enter = ["nsenter", f"--target={network.pid}", "--net"]
        enter += [] if root else ["--user", "--preserve-credentials"]

        def popen(*command, **options):
            started.append(subprocess.Popen([*enter, *map(str, command)], text=True, **options))
            return started[-1]

        yield popen
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture
def base(spawn, tmp_path):
    """The address of a fresh server, which has to stop cleanly in the end."""
    log = tmp_path / "log"
    with log.open("w") as output:
        options = ["--port", 0, "--data-dir", tmp_path / "data"]
        server = spawn(COMMAND, "serve", *options, stdout=output, stderr=output)
    deadline_s = time.monotonic() + BOUND_S
    while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline_s, log.read_text()
        time.sleep(0.05)
    yield found[0]
    server.terminate()
    assert server.wait(BOUND_S) == 0, log.read_text()
