"""Networks of the tests' own; `pytest_plugins = ["support.networks"]` brings the fixtures of one for peers."""

import contextlib
import ctypes
import os
import re
import subprocess
import time

import pytest

from .command import COMMAND

BOUND_S = 60
CLONE_NEWNET = 0x40000000  # of sched.h


@contextlib.contextmanager
def own_network():
    """Have this thread, and all that it starts, in a network of its own, where there is nothing but loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(before)


@contextlib.contextmanager
def dropping(*rules):
    """Drop packets in such a network, as nftables describes them."""
    chain = "\n".join(f"{rule} drop" for rule in rules)
    table = f"table ip cut {{\nchain input {{\ntype filter hook input priority 0\n{chain}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete table ip cut"], check=True)


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
