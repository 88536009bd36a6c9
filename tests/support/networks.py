"""Network namespaces for tests."""

import contextlib
import ctypes
import os
import subprocess

import pytest

from .needs import require
from .waiting import start_holder

BOUND_S = 60
CLONE_NEWNET = 0x40000000  # from sched.h


@contextlib.contextmanager
def own_network(of=None):
    """Move this thread and its children into the network of a process, or into a new one with loopback only."""
    require("root", "ip")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if of is None:
            assert libc.unshare(CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        else:
            with open(f"/proc/{of}/ns/net") as other:
                assert libc.setns(other.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        assert libc.setns(before, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(before)


@contextlib.contextmanager
def dropping(*rules):
    require("nft")
    _add_chain([], "cut", "input", *(f"{rule} drop" for rule in rules))
    try:
        yield
    finally:
        _do("nft", "delete table ip cut")


class Lan:
    """A local network of this machine and simulated machines at the ends of virtual cables."""

    address = "192.0.2.1"  # this machine's address

    def __init__(self):
        self._machines = []
        # Without a fixed MAC address the bridge would change its address with each machine.
        _do("ip", "link", "add", "lan", "address", "02:00:00:00:00:01", "type", "bridge")
        _do("ip", "address", "add", f"{self.address}/24", "dev", "lan")
        _do("ip", "link", "set", "lan", "up")
        # Packets to other networks get lost, as on the Internet. Without a route, coturn would end the session.
        gateway = "192.0.2.254"
        _do("ip", "neighbor", "add", gateway, "lladdr", "02:00:00:00:00:02", "dev", "lan", "nud", "permanent")
        _do("ip", "route", "add", "default", "via", gateway)

    def machine(self):
        self._machines.append(Machine(len(self._machines) + 2))
        return self._machines[-1]

    def close(self):
        for machine in self._machines:
            machine.close()

    def home(self, *, symmetric):
        """Connect a router, and return the prefix of commands on a machine behind its NAT."""
        router = self.machine()
        self._machines.append(Home(router, symmetric))
        return self._machines[-1].enter


class Home:
    """A machine behind a router with NAT. Behind a symmetric one, each destination sees another port.

    The router drops unsolicited packets, as those of homes do.
    """

    def __init__(self, router, symmetric):
        self._process, self.enter = _namespace()
        network = f"10.0.{router.number}"
        # The cable gets its name in the machine's namespace. Its other end is in the router's.
        _do(*router.enter, "ip", "link", "add", "inside", "type", "veth", "peer", "name", "wire")
        _do(*router.enter, "ip", "link", "set", "wire", "netns", str(self._process.pid))
        _do(*router.enter, "ip", "link", "set", "inside", "addrgenmode", "none")
        _do(*self.enter, "ip", "link", "set", "wire", "addrgenmode", "none")
        _do(*router.enter, "ip", "address", "add", f"{network}.1/24", "dev", "inside")
        _do(*router.enter, "ip", "link", "set", "inside", "up")
        _do(*self.enter, "ip", "address", "add", f"{network}.2/24", "dev", "wire")
        _do(*self.enter, "ip", "link", "set", "wire", "up")
        _do(*self.enter, "ip", "route", "add", "default", "via", f"{network}.1")
        _do(*router.enter, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for hook in ("forward", "input"):
            _add_chain(router.enter, "home", hook, "iif cable ct state new drop")
        mapping = f"oif cable masquerade {'fully-random' if symmetric else ''}"
        _add_chain(router.enter, "home", "postrouting", mapping, kind="nat", priority=100)

    def close(self):
        self._process.communicate()


class Machine:
    """A machine with a cable to a `Lan`. Its address ends with `number`. `enter` is the prefix of its commands."""

    def __init__(self, number):
        self.number = number
        self._port = f"port{number}"  # the bridge's end of the cable
        self._process, self.enter = _namespace()
        self.pid = self._process.pid
        peer = ("type", "veth", "peer", "name", "cable", "netns", str(self._process.pid))
        _do("ip", "link", "add", self._port, *peer)
        _do("ip", "link", "set", self._port, "master", "lan", "up")
        _do(*self.enter, "ip", "link", "set", "cable", "addrgenmode", "none")  # as in NETWORK
        self.plug()

    def plug(self, moved=0):
        """Connect the cable. `moved` is added to the machine's address."""
        _do(*self.enter, "ip", "address", "flush", "dev", "cable")
        _do(*self.enter, "ip", "address", "add", f"192.0.2.{self.number + moved}/24", "dev", "cable")
        _do(*self.enter, "ip", "link", "set", "cable", "up")
        _do(*self.enter, "ip", "route", "replace", "default", "via", Lan.address)

    def allow(self, *rules):
        """Drop all packets that this machine sends, except to the `Lan` by one of these rules of nftables."""
        accepted = [f"ip daddr {Lan.address} {rule} accept" for rule in rules]
        _add_chain(self.enter, "allowed", "output", "policy drop", "oif lo accept", *accepted)

    def unplug(self):
        _do(*self.enter, "ip", "link", "set", "cable", "down")

    @contextlib.contextmanager
    def cut(self):
        """Drop all packets on the cable, unnoticed by both ends."""
        ends = [([], self._port), (self.enter, "cable")]
        for enter, device in ends:
            chain = f"{{ type filter hook ingress device {device} priority 0; policy drop; }}"
            _do(*enter, "nft", f"add table netdev {device}; add chain netdev {device} in {chain}")
        try:
            yield
        finally:
            for enter, device in ends:
                _do(*enter, "nft", f"delete table netdev {device}")

    def close(self):
        self._process.communicate()


def _do(*command):
    subprocess.run(command, check=True)


def _add_chain(enter, table, hook, *rules, kind="filter", priority=0):
    """Add rules of nftables for a hook in a namespace."""
    lines = "\n".join([f"chain {hook} {{", f"type {kind} hook {hook} priority {priority}", *rules, "}"])
    _do(*enter, "nft", f"table ip {table} {{\n{lines}\n}}")


def _namespace(option="-n", script="ip link set lo up; echo ready; exec cat"):
    """Run a script in a network namespace. Return its process and the prefix of commands that run there."""
    process = start_holder("unshare", option, "sh", "-c", script)
    return process, ["nsenter", f"--target={process.pid}", "--net"]


# aiortc ignores the loopback interface. Therefore the peers get another interface in an isolated network namespace,
# which exists until standard input ends. The interface gets no IPv6 address: the kernel would check it for a second,
# and Chromium aborts its requests when a new address becomes usable.
NETWORK = """
set -e
ip link set lo up
ip link add v0 type veth peer name v1
ip link set v0 addrgenmode none
ip link set v1 addrgenmode none
ip address add 192.0.2.1/24 dev v0
ip link set v0 up
ip link set v1 up
ip route add default dev v0
echo ready
exec cat
"""


@pytest.fixture(scope="module")
def network():
    """A network namespace for the tests of a file, as the prefix of commands that run in it."""
    require("namespace", "ip")
    root = os.geteuid() == 0
    process, enter = _namespace("-n" if root else "-rn", NETWORK)
    yield enter + ([] if root else ["--user", "--preserve-credentials"])
    process.communicate()


@pytest.fixture
def base(network, start):
    server = start(prefix=network)
    yield server.url
    assert server.stop() == 0, server.log
