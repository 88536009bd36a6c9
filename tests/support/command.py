"""The installed command as a process."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from .needs import require
from .waiting import run_command

COMMAND = Path(sys.executable).with_name("tornado-signal")
ORIGIN = "https://app.example"
BOUND_S = 30


def environment(**variables):
    """Return the environment for a command. Variables without a value are omitted."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORNADO_SIGNAL_")}
    # No STUN server is reachable from the tests' machines.
    merged = inherited | {"TORNADO_SIGNAL_STUN_SERVERS": "none"} | variables
    return {name: value for name, value in merged.items() if value is not None}


def run(*arguments, cwd=None, **variables):
    return run_command(COMMAND, *arguments, cwd=cwd, env=environment(**variables), timeout=BOUND_S)


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


class Server:
    """A `tornado-signal serve` process, which listens when the constructor returns.

    Without a `port`, other settings decide. `passed` are listening sockets, as from systemd.
    """

    origin, tls = ORIGIN, None  # None selects the default SSLContext

    def __init__(self, *arguments, command=COMMAND, cwd=None, port=0, passed=(), prefix=(), **variables):
        flags = ["--port", port] if port is not None else []
        command = [*prefix, *with_sockets(passed), command, "serve", *map(str, [*flags, *arguments])]
        options = {"cwd": cwd, "env": environment(**variables), "pass_fds": [each.fileno() for each in passed]}
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, **options, **streams)
        self.log, self.admin_url = [], None
        admin = {"--admin-port", "TORNADO_SIGNAL_ADMIN_PORT", "LISTEN_FDNAMES"} & {*arguments, *variables}
        missing = max(len(passed), 2 if admin else 1)
        while missing and (line := self.process.stderr.readline()):
            self.log.append(line)
            if match := re.search(r"(listening|admin listener) on (https?://[^\s\"]+|unix:.+)", line):
                missing -= 1
                setattr(self, "url" if match[1] == "listening" else "admin_url", match[2])
        if missing:
            self.process.wait(BOUND_S)
            raise AssertionError(f"the server exited with {self.process.returncode}: {''.join(self.log)}")

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

    def exchange(self, path, body=None, *, origin=ORIGIN, base=None, method=None, token=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Origin": origin} if origin else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request((base or self.url) + path, data, headers, method=method)
        try:
            response = urllib.request.urlopen(request, timeout=BOUND_S, context=self.tls)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, response.headers, response.read()

    def call(self, path, body=None, *, origin=ORIGIN, base=None):
        status, _, content = self.exchange(path, body, origin=origin, base=base)
        return status, json.loads(content)

    def offer(self, topic="lobby", info="i", offer="o"):
        status, response = self.call(f"/{topic}/offer", {"info": info, "offer": offer})
        assert status == 200, response
        return response["code"]

    def codes(self, topic="lobby"):
        return [session["code"] for session in self.call(f"/{topic}/sessions")[1]["sessions"]]


def with_clock_offset(offset):
    """Return environment variables that shift a process's clock. The command `faketime` would not forward signals."""
    require("faketime")
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
