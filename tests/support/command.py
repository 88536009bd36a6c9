"""The installed command as a process."""

import contextlib
import faulthandler
import gc
import importlib
import json
import logging
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from subprocess import DEVNULL, PIPE
from unittest import mock

from tornado_signal.__main__ import make_parser
from tornado_signal.settings.settings import Settings
from tornado_signal.settings.sources import load

from .forked import PROGRAMS, Process
from .needs import require

COMMAND = Path(sys.executable).with_name("tornado-signal")
CLIENT = COMMAND.with_name("tornado-signal-client")
ORIGIN = "https://app.example"
BOUND_S = 30
PARSER = make_parser()


def environment(**variables):
    """Return the environment for a command. Variables without a value are omitted."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORNADO_SIGNAL_")}
    # No STUN server is reachable from the tests' machines.
    merged = inherited | {"TORNADO_SIGNAL_STUN_SERVERS": "none"} | variables
    return {name: value for name, value in merged.items() if value is not None}


def load_settings(*flags: str, env: dict[str, str] | None = None) -> Settings:
    return load(PARSER.parse_args(["serve", *flags]), env or {})


@contextlib.contextmanager
def restored():
    root, numbers = logging.getLogger(), (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    handlers, level, umask = root.handlers[:], root.level, os.umask(0o022)
    os.umask(umask)
    signals = [signal.getsignal(number) for number in numbers]
    limit, thresholds = resource.getrlimit(resource.RLIMIT_NOFILE), gc.get_threshold()
    root.handlers[:] = []  # so that the command sets up its own
    try:
        yield
    finally:
        for handler in root.handlers:
            if isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.__stderr__)
        root.handlers[:] = handlers
        root.setLevel(level)
        os.umask(umask)
        for number, handler in zip(numbers, signals, strict=True):
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        gc.set_threshold(*thresholds)
        faulthandler.enable(sys.__stderr__)


def call(*arguments, command=COMMAND, cwd=None, input=b"", **variables):
    """Run a command in this process until it ends. Return the same as `run`."""
    program = importlib.import_module(PROGRAMS[command.name])  # here, because most tests start only processes
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        path = Path(name)
        (path / "stdin").write_bytes(input)
        for stream in ("stdin", "stdout", "stderr"):  # files, because commands use the descriptors
            file = stack.enter_context(open(path / stream, "r" if stream == "stdin" else "w", buffering=1))
            stack.enter_context(mock.patch.object(sys, stream, file))
        stack.enter_context(restored())
        stack.enter_context(mock.patch.dict(os.environ, environment(**variables), clear=True))
        stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
        try:
            status = program.main([*map(str, arguments)])
        except SystemExit as exit:
            status = exit.code
        sys.stdout.flush()
        output, errors = ((path / stream).read_text() for stream in ("stdout", "stderr"))
    return subprocess.CompletedProcess([*arguments], status, output, errors)


def begin(*arguments, command=COMMAND, cwd=None, prefix=(), pass_fds=(), stdin=DEVNULL, stdout=PIPE, **variables):
    """Start a process of the command: forked where possible, and with a new interpreter where that matters."""
    options = {"cwd": cwd, "env": environment(**variables), "stdin": stdin, "stdout": stdout, "stderr": PIPE}
    arguments = [*map(str, arguments)]
    fresh = any(name.startswith(("LD_", "PYTHON")) for name in variables)
    if command in (COMMAND, CLIENT) and not prefix and not fresh:
        return Process(command.name, *arguments, **options)
    return subprocess.Popen([*prefix, command, *arguments], pass_fds=pass_fds, text=True, **options)


def run(*arguments, **options):
    process = begin(*arguments, **options)
    try:
        output, errors = process.communicate(timeout=BOUND_S)
    finally:
        process.kill()
        process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def commit():
    """Return the commit that processes of the command state. During a run, a later one can be installed."""
    return re.search(r"\((.*)\)", run("--version").stdout)[1]


def with_sockets(sockets):
    """Return the command prefix that passes sockets as file descriptors from 3 on, as systemd does."""
    if not sockets:
        return []
    # Move the descriptors through higher numbers, so that they do not overwrite each other.
    above = max(64, *(each.fileno() + 1 for each in sockets))
    moves = [f"{aside}<&{each.fileno()} {each.fileno()}<&-" for aside, each in enumerate(sockets, above)]
    moves += [f"{3 + at}<&{above + at} {above + at}<&-" for at in range(len(sockets))]
    script = f'exec {" ".join(moves)}; LISTEN_PID=$$ LISTEN_FDS={len(sockets)} exec "$@"'
    return ["bash", "-c", script, "bash"]


class Server(contextlib.AbstractContextManager):
    """A `tornado-signal serve` process, which listens when the constructor returns. It is a context manager.

    Without a `port`, other settings decide. `passed` are listening sockets, as from systemd.
    """

    origin, tls = ORIGIN, None  # None selects the default SSLContext

    def __init__(self, *arguments, command=COMMAND, cwd=None, port=0, passed=(), prefix=(), **variables):
        flags = ["--port", port] if port is not None else []
        arguments = ["serve", *map(str, [*flags, *arguments])]
        options = {"command": command, "cwd": cwd, "prefix": [*prefix, *with_sockets(passed)], "stdout": DEVNULL}
        self.process = begin(*arguments, pass_fds=[each.fileno() for each in passed], **options, **variables)
        self.log, self.admin_url = [], None
        try:
            self._wait_until_it_listens(passed, {*arguments, *variables})
        except BaseException:
            self.end()
            raise

    def _wait_until_it_listens(self, passed, settings):
        admin = {"--admin-port", "TORNADO_SIGNAL_ADMIN_PORT", "LISTEN_FDNAMES"} & settings
        missing = max(len(passed), 2 if admin else 1)
        while missing and (line := self.process.stderr.readline()):
            self.log.append(line)
            if match := re.search(r"(listening|admin listener) on (https?://[^\s\"]+|unix:.+)", line):
                missing -= 1
                setattr(self, "url" if match[1] == "listening" else "admin_url", match[2])
        if missing:
            self.process.wait(BOUND_S)
            raise AssertionError(f"the server exited with {self.process.returncode}: {''.join(self.log)}")

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def __exit__(self, *exc):
        self.end()

    def wait(self):
        _, rest = self.process.communicate(timeout=BOUND_S)
        self.log += rest.splitlines(keepends=True)
        return self.process.returncode

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.wait()

    def end(self):
        """Kill the process if it is still running, and close its streams."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        self.process.stderr.close()

    def exchange(self, path, body=None, *, origin=ORIGIN, base=None, method=None, token=None, **headers):
        """Return status, headers and content of a response. Names of `headers` have underscores for hyphens."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Origin": origin, "Authorization": token and f"Bearer {token}", **headers}
        headers = {name.replace("_", "-"): value for name, value in headers.items() if value}
        request = urllib.request.Request((base or self.url) + path, data, headers, method=method)
        try:
            # Longer than the longest wait that a request can ask for.
            response = urllib.request.urlopen(request, timeout=3 * BOUND_S, context=self.tls)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, response.headers, response.read()

    def call(self, path, body=None, **options):
        status, _, content = self.exchange(path, body, **options)
        return status, json.loads(content)

    def ask_admin(self, path):
        """Send a request of a program on this machine to the admin listener."""
        return self.call(path, base=self.admin_url, origin=None)

    def offer(self, topic="lobby", info="i", offer="o", **options):
        status, response = self.call(f"/{topic}/offer", {"info": info, "offer": offer}, **options)
        assert status == 200, response
        return response["code"]

    def codes(self, topic="lobby"):
        return [session["code"] for session in self.call(f"/{topic}/sessions")[1]["sessions"]]


def with_clock_offset(offset):
    """Return environment variables that shift a process's clock. The command `faketime` would not forward signals."""
    require("faketime")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
