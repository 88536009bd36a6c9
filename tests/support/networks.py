"""Networks of the tests' own; `pytest_plugins = ["support.networks"]` brings the fixtures of one for peers."""

import contextlib
import ctypes
import os
import re
import subprocess
import time

import pytest

from .command import COMMAND
from .needs import require

BOUND_S = 60
CLONE_NEWNET = 0x40000000  # of sched.h


@contextlib.contextmanager
def own_network():
    """Have this thread, and all that it starts, in a network of its own, where there is nothing but loopback."""
    require("root", "ip")
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
    require("nft")
    chain = "\n".join(f"{rule} drop" for rule in rules)
    table = f"table ip cut {{\nchain input {{\ntype filter hook input priority 0\n{chain}\n}}\n}}\n"
    subprocess.run(["nft", "-f", "-"], input=table, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete table ip cut"], check=True)


class Lan:
    """A local network in such a network: an address of this machine, and other machines that a cable goes to.

    Attributes:
        address: of this machine.
    """

    address = "192.0.2.1"

    def __init__(self):
        self._machines = []
        # Of its own accord it would change with each machine, which others have to learn.
        _do("ip", "link", "add", "lan", "address", "02:00:00:00:00:01", "type", "bridge")
        _do("ip", "address", "add", f"{self.address}/24", "dev", "lan")
        _do("ip", "link", "set", "lan", "up")

    def machine(self):
        """Another one, the second after this one, and so on."""
        self._machines.append(Machine(len(self._machines) + 2))
        return self._machines[-1]

    def close(self):
        """End the other machines; the cables go with them."""
        for each in self._machines:
            each.close()


class Machine:
    """A machine with a cable to a `Lan`.

    Args:
        number: its place in the local network.

    Attributes:
        enter: what a command begins with that is to run there.
    """

    def __init__(self, number):
        self._number = number
        self._port = f"port{number}"  # of the lan, where the cable ends
        command = ["unshare", "-n", "sh", "-c", "ip link set lo up; echo ready; exec cat"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout.readline() == "ready\n"
        self.enter = ["nsenter", f"--target={self._process.pid}", "--net"]
        peer = ("type", "veth", "peer", "name", "cable", "netns", str(self._process.pid))
        _do("ip", "link", "add", self._port, *peer)
        _do("ip", "link", "set", self._port, "master", "lan", "up")
        self.plug()

    def plug(self, moved=0):
        """Connect it; with another address if it has moved."""
        _do(*self.enter, "ip", "address", "flush", "dev", "cable")
        _do(*self.enter, "ip", "address", "add", f"192.0.2.{self._number + moved}/24", "dev", "cable")
        _do(*self.enter, "ip", "link", "set", "cable", "up")
        _do(*self.enter, "ip", "route", "replace", "default", "via", Lan.address)

    def unplug(self):
        """Disconnect it, which it notices."""
        _do(*self.enter, "ip", "link", "set", "cable", "down")

    @contextlib.contextmanager
    def cut(self):
        """Have all that goes through the cable get lost, which neither end notices."""
        ends = [([], self._port), (self.enter, "cable")]
        for enter, device in ends:
            chain = f"{{ type filter hook ingress device {device} priority 0; policy drop; }}"
            _do(*enter, "nft", f"add table netdev {device}; add chain netdev {device} in {chain}")
        yield
        for enter, device in ends:
            _do(*enter, "nft", f"delete table netdev {device}")

    def close(self):
        """End it, and its cable."""
        self._process.communicate()


def _do(*command):
    subprocess.run(command, check=True)


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
def network():
    """A network of its own for processes: the words to put before their commands."""
    require("namespace", "ip")
    root = os.geteuid() == 0
    unshare = ["unshare", "-n" if root else "-rn", "sh", "-c", NETWORK]
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as namespace:
        assert namespace.stdout.readline() == "ready\n"
        enter = ["nsenter", f"--target={namespace.pid}", "--net"]
        yield enter + ([] if root else ["--user", "--preserve-credentials"])


@pytest.fixture
def spawn(network):
    """A function like Popen whose processes live in such a network, and not longer than the test."""
    started = []

    def popen(*command, **options):
        started.append(subprocess.Popen([*network, *map(str, command)], text=True, **options))
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
