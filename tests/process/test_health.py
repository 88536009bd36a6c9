"""`health`: what it asks, and how each answer becomes an exit status."""

import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import BOUND_S, call
from support.redis_servers import free_port
from support.waiting import run_command

pytest_plugins = ["support.tls_fixtures"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ADDRESS": "0.0.0.0", "ALLOWED_ORIGINS": "https://app.example.com"},
        {"ADDRESS": "::"},
        {"ADDRESS": "::1,127.0.0.2", "ALLOWED_ORIGINS": "https://*.example.com,https://example.org"},
        {"ADDRESS": "unix:socket"},
        {"TLS_CERTIFICATE": "server.crt", "TLS_KEY": "server.key"},  # which names another host
    ],
)
def test_server_is_found_by_its_settings_without_proxies(settings, start, pair, tmp_path):
    port = free_port()
    variables = {f"TORNADO_SIGNAL_{name}": value for name, value in settings.items()}
    start(*(f"--{name.lower().replace('_', '-')}={value}" for name, value in settings.items()), port=port)
    variables |= {"TORNADO_SIGNAL_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    done = call("health", cwd=tmp_path, **variables)
    place = "unix:socket" if settings.get("ADDRESS") == "unix:socket" else f":{port}"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{place} is healthy\n")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, b'{"error": "Service unavailable"}', "is not healthy: Service unavailable"),
        (200, b"<html>", "is not a tornado-signal"),
        (200, b'["ok"]', "is not a tornado-signal"),
    ],
)
def test_other_responses_are_exit_status_1_with_one_sentence(status, body, reason):
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as thread:

        def answer():
            connection, _ = listening.accept()
            with connection:
                assert connection.recv(1 << 16).startswith(b"GET /health HTTP/1.1\r\n")
                connection.sendall(b"HTTP/1.0 %d x\r\n\r\n%b" % (status, body))

        answered = thread.submit(answer)
        done = call("health", "--port", listening.getsockname()[1])
        answered.result()
    assert (done.returncode, done.stdout) == (1, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


def test_health_check_imports_no_client():
    loaded = "import sys; from tornado_signal.__main__ import main; main(sys.argv[1:]); print(*sys.modules)"
    done = run_command(sys.executable, "-c", loaded, "health", "--port", "1", timeout=BOUND_S)
    assert "tornado_signal.operator.health" in done.stdout.split()
    assert {"asyncio", "http.client", "httpx", "ssl"} & {*done.stdout.split()} == set()


@pytest.mark.parametrize(("port", "reason"), [(1, "no server responds"), (0, "name it with --port")])
def test_missing_response_is_exit_status_1(port, reason):
    done = call("health", "--port", port)
    assert done.returncode == 1
    assert reason in done.stderr
