"""The command line: what it prints, and how every way to end becomes an exit status."""

import subprocess
import sys

import pytest
from support.backend import Backend, responding
from support.command import CLIENT, COMMAND, call, environment, run
from support.redis_servers import free_port

URLS = ["https://x", "http://127.0.0.1:1/path", "http://user@127.0.0.1:1", "ftp://127.0.0.1:1"]


@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "tornado_signal"]])
def test_version_is_that_of_the_package_and_its_commit(command):
    code = "from tornado_signal import COMMIT, __version__; print(f'{__version__} ({COMMIT})')"
    asked = ([*command, "--version"], [sys.executable, "-c", code])
    said, stated = (subprocess.run(each, env=environment(), capture_output=True, text=True) for each in asked)
    assert (said.returncode, said.stdout, said.stderr) == (0, stated.stdout, "")


def test_help_names_serve_and_each_exit_status():
    done = call("--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert "serve run the server" in shown
    assert "Exit status: 0 clean stop, 1 an error to fix on this machine, 2 wrong usage, 3 an internal error." in shown


@pytest.mark.parametrize(
    ("command", "arguments", "variables", "reason"),
    [
        (COMMAND, [], {}, "COMMAND"),
        (COMMAND, ["serve", "--port"], {}, "--port"),
        (COMMAND, ["serve", "--port", "65536"], {}, "argument --port: '65536': expected a whole number"),
        *((COMMAND, [name], {}, f"invalid choice: '{name}'") for name in ("backup", "repair", "inspect", "compact")),
        *((COMMAND, ["admin", "drain", "--admin-url", url], {}, f"{url}': expected http://HOST:PORT") for url in URLS),
        (COMMAND, ["serve"], {"TORNADO_SIGNAL_PORT": "x"}, "variable TORNADO_SIGNAL_PORT = 'x': expected a whole"),
        (COMMAND, ["check"], {"TORNADO_SIGNAL_PROT": "1"}, "TORNADO_SIGNAL_PROT"),
        (COMMAND, ["completion", "sh"], {}, "invalid choice: 'sh'"),
        (CLIENT, ["topics", "--orgin", "x"], {}, "unrecognized arguments: --orgin x; did you mean --origin?"),
        (CLIENT, ["topics", "--url", "ftp://x"], {}, "argument --url: 'ftp://x': expected the address of a server"),
        (CLIENT, ["topics", "--url", "http://x:65536"], {}, "argument --url: 'http://x:65536': expected"),
        (CLIENT, ["topics", "--origin", "https://x/"], {}, "argument --origin: 'https://x/': expected an origin"),
        (CLIENT, ["topics"], {"SIGNAL_URL": "x"}, "variable SIGNAL_URL = 'x': expected the address of a server"),
        (CLIENT, ["topics"], {"SIGNAL_ORIGIN": "*"}, "environment variable SIGNAL_ORIGIN = '*': expected an origin"),
        (CLIENT, ["sessions"], {}, "the following arguments are required: TOPIC"),
        (CLIENT, ["sessions", ""], {}, "argument TOPIC: '': expected a topic of 1 to 256 characters"),
        (CLIENT, ["sessions", "x" * 257], {}, "expected a topic of 1 to 256 characters"),
        (CLIENT, ["offer", "lobby", "--wait", "soon"], {}, "argument --wait: 'soon': expected a number of seconds"),
        (CLIENT, ["offer", "lobby", "--candidate", ""], {}, "argument --candidate: '': expected a non-empty text"),
        (CLIENT, ["ping", "--count", "0"], {}, "argument --count: '0': expected a whole number from 1 to 100000"),
        (CLIENT, ["completion", "sh"], {}, "invalid choice: 'sh'"),
    ],
)
def test_wrong_command_line_or_environment_is_exit_status_2(command, arguments, variables, reason, tmp_path):
    done = call(*arguments, command=command, cwd=tmp_path, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_defect_of_the_installed_command_is_exit_status_3_with_a_traceback(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import tornado_signal.process.server\n"
        "async def serve(settings, read): raise ZeroDivisionError('unforeseen')\n"
        "tornado_signal.process.server.serve = serve\n"
    )
    done = run("serve", "--port", 0, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 3
    expected = "ERROR tornado_signal.system.boundary: unhandled exception; please report this bug\nTraceback (most"
    assert expected in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: unforeseen\n")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ADDRESS": "localhost"},
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
    with Backend() as other:
        other.behaviour = responding(body, status)
        done = call("health", "--port", other.server_port)
    assert [request.target for request in other.requests] == ["/health"]
    assert (done.returncode, done.stdout) == (1, "")
    assert (reason in done.stderr, done.stderr.count("\n")) == (True, 1)
    for port, reason in ((1, "no server responds"), (0, "name it with --port")):
        done = call("health", "--port", port)
        assert (done.returncode, reason in done.stderr) == (1, True)
