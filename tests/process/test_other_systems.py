"""The server and the commands without what only Linux has, as on macOS."""

from support.command import CLIENT, COMMAND, ORIGIN, run

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


def test_server_and_commands_run_without_what_only_linux_has(start, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LINUX_ONLY)
    options = {"cwd": tmp_path, "PYTHONPATH": str(tmp_path)}
    assert run("serve", "--check", "--port", 0, "--admin-port", 0, **options).returncode == 0
    server = start("--admin-port", 0, **options)
    places = ("--url", server.url, "--origin", ORIGIN)
    for command, *arguments in (
        (CLIENT, "ping", "--count", "1", *places),
        (CLIENT, "topics", *places),
        (COMMAND, "admin", "status", "--admin-url", server.admin_url),
        (COMMAND, "admin", "log-level", "--level", "debug", "--admin-url", server.admin_url),
    ):
        done = run(*arguments, command=command, **options)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (arguments, done.stderr)
    assert server.stop() == 0
    assert "Traceback" not in "".join(server.log)
