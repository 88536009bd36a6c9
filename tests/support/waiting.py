"""Helpers that wait for conditions and processes, and clean up after a test."""

import contextlib
import socket
import subprocess
import time


def until(reached, bound_s=60, complaint=lambda: "the condition was not reached in time", pause_s=0.02):
    """Wait until a condition holds, and return its value. A look that begins after `bound_s` must succeed.

    The pauses grow to a tenth of a second, since each look takes processor time.
    """
    end_s = time.monotonic() + bound_s
    while True:
        looked_s = time.monotonic()
        if value := reached():
            return value
        assert looked_s < end_s, complaint()
        time.sleep(pause_s)
        pause_s = max(pause_s, min(1.2 * pause_s, 0.1))


def accepts(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def end_all(make, end):
    """Yield a function that calls `make`. At its end the block calls `end` for each result, the last one first."""
    with contextlib.ExitStack() as ends:

        def making(*arguments, **options):
            result = make(*arguments, **options)
            ends.callback(end, result)
            return result

        yield making


def kill(process):
    process.kill()
    process.communicate()


def run_command(*command, **options):
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([*map(str, command)], text=True, check=False, **options)


def output(done):
    """Return the output of a process that must have succeeded."""
    assert done.returncode == 0, f"{done.args}:\n{done.stdout}{done.stderr or ''}"
    return done.stdout


def start_holder(*command, **options):
    """Start a process that prints "ready" and then waits until its input is closed."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout.readline() == "ready\n"
    except BaseException:
        process.communicate()
        raise
    return process
