"""Processes of the command that are forked from a process that has imported it.

An interpreter that starts and imports the package takes ten times as long as a server that starts and stops.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

# The modules of the commands, by their names.
PROGRAMS = {"tornado-signal": "tornado_signal.__main__", "tornado-signal-client": "tornado_signal_client.__main__"}
# Modules that `serve` and the commands of a client import.
MODULES = (
    "uvloop",
    *PROGRAMS.values(),
    "tornado_signal.process.check",
    "tornado_signal.process.supervisor",
    "tornado_signal_client.cli.discovery",
    "tornado_signal_client.cli.signaling",
    "tornado_signal.stores.leveldb.store",
    "tornado_signal.stores.redis.store",
)
NUMBER = struct.Struct("i")
PR_SET_PDEATHSIG = 1


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main():
    """Fork a process for each request until the other end is closed. Run the command in it."""
    requests = socket.socket(fileno=os.dup(0))
    for name in sys.argv[1:]:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not request:
            os._exit(0)
        if not os.fork():
            break
        for each in descriptors:
            os.close(each)
    requests.close()
    # The process between them waits for the command, and both end if the tests are killed.
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    if pid := os.fork():
        for each in (0, 1, 2, *streams):
            os.close(each)
        os.write(status, NUMBER.pack(pid))
        os.write(status, NUMBER.pack(os.waitpid(pid, 0)[1]))
        os._exit(0)
    end_with_parent()
    os.close(status)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    arguments, directory, variables, code = json.loads(request)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments if code is None else ["", *arguments]
    if code is None:
        sys.exit(sys.modules[PROGRAMS[arguments[0]]].main())
    exec(code, {"__name__": "__main__"})


class Template:
    """A process that has imported modules, and forks. `enter` is the prefix of commands in its network."""

    def __init__(self, *modules, enter=(), flags=()):
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen([*enter, sys.executable, "-P", *flags, __file__, *modules], stdin=theirs)

    def end(self):
        self.requests.close()
        self._process.wait()


TEMPLATES = {}  # those for the command, by network namespace


def template():
    """Return the template for the command in the network namespace of this thread."""
    network = os.readlink("/proc/thread-self/ns/net")
    if network not in TEMPLATES:
        TEMPLATES[network] = Template(*MODULES)
    return TEMPLATES[network]


@atexit.register
def end():
    while TEMPLATES:
        TEMPLATES.popitem()[1].end()


class Process:
    """A process of the command, with what tests need of the interface of `subprocess.Popen` in text mode.

    The streams are PIPE, DEVNULL or a descriptor. With `code`, it is a process of a template that executes that.
    """

    def __init__(self, *arguments, env, cwd=None, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, code=None, forked_from=None):
        self.args, self.returncode, self._readers, self._rest = [*map(str, arguments)], None, {}, {}
        request = json.dumps([self.args, str(cwd or Path.cwd()), env, code]).encode()
        streams, passed = [], []
        with contextlib.ExitStack() as stack:
            for number, kind in enumerate((stdin, stdout, stderr)):
                stream = None
                if kind == PIPE:
                    reading, writing = os.pipe()
                    stream = os.fdopen(reading) if number else os.fdopen(writing, "w")
                    kind = writing if number else reading
                    stack.callback(os.close, kind)
                elif kind == DEVNULL:
                    kind = stack.enter_context(open(os.devnull, "r+b", buffering=0)).fileno()
                streams.append(stream)
                passed.append(kind)
            self.stdin, self.stdout, self.stderr = streams
            self._status, status = os.pipe()
            stack.callback(os.close, status)
            socket.send_fds((forked_from or template()).requests, [request], [*passed, status])
        (self.pid,) = NUMBER.unpack(os.read(self._status, NUMBER.size))

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = os.waitstatus_to_exitcode(*NUMBER.unpack(os.read(self._status, NUMBER.size)))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, input="", timeout=None):
        """Send an input, and return the rest of the output and of the errors when the process has ended."""

        def read(stream):
            self._rest[stream] = stream.read()

        until_s = time.monotonic() + (timeout or threading.TIMEOUT_MAX)
        streams = [stream for stream in (self.stdout, self.stderr) if stream]
        for stream in streams:
            if stream not in self._readers:
                self._readers[stream] = threading.Thread(target=read, args=(stream,), daemon=True)
                self._readers[stream].start()
        if self.stdin and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input)
        for stream in streams:
            self._readers[stream].join(until_s - time.monotonic())
            if self._readers[stream].is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
            stream.close()
        self.wait(until_s - time.monotonic())
        return tuple(stream and self._rest[stream] for stream in (self.stdout, self.stderr))


if __name__ == "__main__":
    main()
