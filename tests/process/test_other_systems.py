"""The server and the commands without what only Linux has, as on macOS."""

import re
import subprocess
import sys

import pytest
from support.command import BOUND_S, ORIGIN, environment

LINUX_ONLY = """
import os, pathlib, select, signal, socket, time
for module, names in {
    socket: "TCP_NOTSENT_LOWAT TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK TCP_DEFER_ACCEPT SOCK_NONBLOCK SOCK_CLOEXEC "
    "SO_INCOMING_CPU SO_PEERCRED",
    os: "fdatasync posix_fallocate posix_fadvise sched_getaffinity memfd_create pidfd_open eventfd accept4 pipe2",
    select: "epoll",
    signal: "SIGPOLL SIGPWR SIGRTMIN SIGRTMAX",
    time: "CLOCK_BOOTTIME",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
def without_proc(function):
    def checked(path=".", *rest, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *rest, **options)
    return checked
os.scandir, os.stat, os.open = without_proc(os.scandir), without_proc(os.stat), without_proc(os.open)
import io
io.open = without_proc(io.open)
"""


@pytest.fixture
def begin(tmp_path):
    """Return a function that starts the command without the names, with its output in a pipe."""
    (tmp_path / "sitecustomize.py").write_text(LINUX_ONLY)
    started = []

    def begin(*arguments, package="tornado_signal"):
        command = [sys.executable, "-m", package, *arguments]
        environ = environment(PYTHONPATH=str(tmp_path))
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=BOUND_S)


def test_server_and_commands_run_without_what_only_linux_has(begin, tmp_path):
    settings = ("--port", "0", "--admin-port", "0", "--data-dir", "data")
    assert begin("serve", "--check", *settings).wait(BOUND_S) == 0
    server = begin("serve", *settings)
    urls = {}
    while len(urls) < 2:
        line = server.stdout.readline()
        assert line, "the server has ended"
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            urls["admin" if "admin" in line else "public"] = found[0]
    places = ("--url", urls["public"], "--origin", ORIGIN)
    for package, *arguments in (
        ("tornado_signal_client", "ping", "--count", "1", *places),
        ("tornado_signal_client", "topics", *places),
        ("tornado_signal", "admin", "status", "--admin-url", urls["admin"]),
        ("tornado_signal", "admin", "log-level", "--level", "debug", "--admin-url", urls["admin"]),
    ):
        output, _ = (command := begin(*arguments, package=package)).communicate("", timeout=BOUND_S)
        assert (command.returncode, "Traceback" in output) == (0, False), (arguments, output)
    server.terminate()
    output, _ = server.communicate(timeout=BOUND_S)
    assert (server.returncode, "Traceback" in output) == (0, False), output
