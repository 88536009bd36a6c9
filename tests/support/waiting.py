"""Wait for conditions and processes, end what a test has started, and serve HTTP beside it."""

import contextlib
import http.server
import subprocess
import threading
import time


def until(reached, bound_s=60, complaint=lambda: "it did not come true", pause_s=0.02):
    """Wait until a condition holds, and return its value; fail with a complaint after a time."""
    end_s = time.monotonic() + bound_s
    while not (found := reached()):
        assert time.monotonic() < end_s, complaint()
        time.sleep(pause_s)
    return found


@contextlib.contextmanager
def end_all(make, end):
    """Give a function that calls `make`; all that it has made is ended when the block is left."""
    made = []

    def making(*arguments, **options):
        made.append(make(*arguments, **options))
        return made[-1]

    try:
        yield making
    finally:
        for each in made:
            end(each)


def run_command(*command, **options):
    """Run a command to its end, without input."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([*map(str, command)], text=True, check=False, **options)


def output(done):
    """Return the output of a process that must have succeeded."""
    assert done.returncode == 0, f"{done.args}:\n{done.stdout}{done.stderr or ''}"
    return done.stdout


def start_holder(*command):
    """Start a process that prints "ready" and waits for the end of its input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


class LocalServer(http.server.ThreadingHTTPServer):
    """An HTTP server in a thread of this process, on a free port, until it is closed."""

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self):
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __exit__(self, *exc):
        self.close()


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles requests without a word in the log."""

    def send(self, status, data, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass
