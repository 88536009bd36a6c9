"""`health`: what it asks, and how each answer becomes an exit status."""

import http.server
import threading

import pytest
from support.command import run
from support.redis_servers import free_port

pytest_plugins = ["support.tls_fixtures"]

REFUSALS = {
    "stopping": (503, b'{"error": "Service unavailable"}', "says: Service unavailable"),
    "another server": (200, b"<html>", "is no tornado-signal"),
    "another JSON": (200, b'["ok"]', "is no tornado-signal"),
    "another encoding": (200, b"\xff", "is no tornado-signal"),
}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ADDRESS": "0.0.0.0", "ALLOWED_ORIGINS": "https://app.example.com"},
        {"ADDRESS": "::1", "ALLOWED_ORIGINS": "https://*.example.com,https://example.org"},
    ],
)
def test_healthy(start, settings):
    """A server is found healthy by its own settings, whatever it serves, wherever it listens, and past any proxy."""
    port = free_port()
    variables = {f"TORNADO_SIGNAL_{name}": value for name, value in settings.items()}
    start(*(f"--{name.lower().replace('_', '-')}={value}" for name, value in settings.items()), port=port)
    done = run("health", TORNADO_SIGNAL_PORT=str(port), http_proxy="http://127.0.0.1:1", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert f":{port} is healthy" in done.stdout


def test_unix_socket(start, tmp_path):
    """It asks over a Unix socket, too."""
    address = f"unix:{tmp_path}/socket"
    start("--address", address)
    done = run("health", "--address", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"the server at {address} is healthy\n", "")


def test_tls(start, pair):
    """It asks over TLS, and does not need to trust the certificate, which is for another name."""
    port = free_port()
    flags = ("--tls-certificate", pair.certificate, "--tls-key", pair.key)
    start(*flags, port=port)
    done = run("health", "--port", port, *flags)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"the server at https://127.0.0.1:{port} is healthy\n",
        "",
    )


@pytest.mark.parametrize("which", REFUSALS)
def test_not_healthy(which):
    """Whatever else answers is exit status 1 and one sentence."""
    status, body, reason = REFUSALS[which]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        done = run("health", "--port", server.server_port)
        server.shutdown()
        thread.join()
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_answers():
    """Nothing at all is exit status 1, too, and so is a port that only the server knows."""
    done = run("health", "--port", free_port())
    assert done.returncode == 1
    assert "no server answers" in done.stderr
    done = run("health", "--port", 0)
    assert done.returncode == 1
    assert "name it with --port" in done.stderr
