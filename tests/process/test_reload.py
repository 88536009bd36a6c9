"""SIGHUP: the settings are read again and applied, all or none, and no client notices anything else."""

import http.client
import signal
import threading
import time

import pytest
from support.command import BOUND_S, ORIGIN, Server

OTHER = "https://other.example"
RELOADS = 30


@pytest.fixture
def start(tmp_path):
    """A function that starts a server whose file has these lines."""
    started = []

    def starting(*lines, flags=(), **options):
        write(tmp_path, *lines)
        started.append(Server("--config", "signal.toml", *flags, cwd=tmp_path, **options))
        return started[-1]

    yield starting
    for server in started:
        server.end()


def write(place, *lines):
    """Write the file with the settings."""
    (place / "signal.toml").write_text("".join(f"{line}\n" for line in lines))


def reload(server, lines=1):
    """Have a server read its settings again; so many lines that it says to that, without their times."""
    server.process.send_signal(signal.SIGHUP)
    said = [server.process.stderr.readline().rstrip("\n").partition(" ")[2] for _ in range(lines)]
    server.log += said
    return said


def status(server, path="/topics", body=None, **options):
    return server.call(path, body, **options)[0]


def test_what_is_applied(start, tmp_path):
    """Origins, limits, ICE servers and the log change while connections, waits and data stay."""
    server = start(f"allowed_origins = '{ORIGIN}'", "session_timeout_ms = 60000", flags=["--max-candidate", 64])
    code = server.offer()
    waited = []
    waiting = threading.Thread(
        target=lambda: waited.append(server.call("/poll", {"code": code, "side": "offerer", "wait": 60}))
    )
    waiting.start()
    assert status(server, origin=OTHER) == 403
    host = server.url.removeprefix("http://")
    kept = http.client.HTTPConnection(host, timeout=BOUND_S)
    kept.request("GET", "/health", headers={"Origin": ORIGIN})
    assert kept.getresponse().read()
    write(
        tmp_path,
        f"allowed_origins = ['{OTHER}', '{ORIGIN}']",
        "max_offer = 100",
        "max_candidate = 100",
        "max_sessions_per_topic = 1",
        "max_body_bytes = 2000",
        "demo = false",
        "stun_servers = 'stun:stun.example.com'",
        "log_level = 'debug'",
        "access_log = true",
        "session_timeout_ms = 30000",
        "data_dir = 'elsewhere'",
    )
    said, pending = reload(server, 2)
    assert said == (
        "INFO tornado_signal.server: settings read again, applied: --allowed-origins, --max-body-bytes, --max-offer, "
        "--max-sessions-per-topic, --demo, --stun-servers, --log-level, --access-log"
    )
    assert pending == (
        "WARNING tornado_signal.server: settings that have changed and need a restart: --data-dir, --session-timeout-ms"
    )
    assert status(server, origin=OTHER) == 200
    kept.request("GET", "/topics", headers={"Origin": OTHER})
    assert kept.getresponse().status == 200
    kept.close()
    assert server.call("/other/offer", {"info": "i", "offer": "o" * 101}) == (
        400,
        {"error": "Missing or invalid required parameter: offer"},
    )
    assert status(server, "/lobby/offer", {"info": "i", "offer": "o"}) == 429
    assert status(server, "/other/offer", {"info": "i" * 2000, "offer": "o"}) == 413
    assert status(server, "/demo") == 404
    assert server.call("/openapi.json")[1]["openapi"]
    assert server.call("/ice-servers")[1]["iceServers"] == [{"urls": ["stun:stun.example.com"]}]
    assert status(server, "/answer", {"code": code, "side": "answerer", "candidate": "c" * 65}) == 400  # a flag's
    assert status(server, "/answer", {"code": code, "side": "answerer", "answer": "a"}) == 200
    waiting.join(BOUND_S)
    assert waited[0][1]["answer"] == "a"
    server.offer("later")
    (listed,) = server.call("/later/sessions")[1]["sessions"]
    assert listed["expiresAt"] - listed["createdAt"] == 60_000
    assert server.stop() == 0
    assert any("endpoint=/topics status=200" in line for line in server.log)


BAD = {
    "name": (["allowed_origin = 'any'"], "signal.toml, key allowed_origin = 'any': expected the name of a setting"),
    "value": (["max_offer = 'much'"], "key max_offer = 'much': expected a whole number"),
    "form": (["max_offer ="], "--config = 'signal.toml': expected a TOML file"),
    "secret": (["turn_servers = 'turn:turn.example.com'"], "--turn-servers needs their secret"),
    "together": (["tls_key = 'key.pem'"], "--tls-key = 'key.pem': expected --tls-certificate beside it"),
}


def test_what_cannot_be_used(subtests, start, tmp_path):
    """A file with anything wrong in it changes nothing, and one line says what; the next good one is applied."""
    server = start(f"allowed_origins = '{ORIGIN}'")
    for name, (lines, reason) in BAD.items():
        with subtests.test(name):
            write(tmp_path, f"allowed_origins = '{OTHER}'", *lines)
            (said,) = reload(server)
            assert said.startswith("ERROR tornado_signal.server: what is in use stays: ")
            assert reason in said
            assert [status(server), status(server, origin=OTHER)] == [200, 403]
    (tmp_path / "signal.toml").unlink()
    assert "expected a file that can be read (No such file or directory)" in reload(server)[0]
    write(tmp_path, f"allowed_origins = '{OTHER}'")
    assert reload(server) == ["INFO tornado_signal.server: settings read again, applied: --allowed-origins"]
    assert [status(server), status(server, origin=OTHER)] == [403, 200]
    assert reload(server)[0].endswith("applied: nothing new")
    assert server.stop() == 0


def test_another_environment(start, tmp_path):
    """The file that holds an environment, as `env -0` writes it, takes the place of that of the start."""
    later = tmp_path / "environment"
    variables = {"TORNADO_SIGNAL_RELOAD_ENVIRONMENT": str(later), "TORNADO_SIGNAL_MAX_OFFER": "100"}
    server = start("max_offer = 300", **variables)
    assert reload(server)[0].endswith("applied: nothing new")  # there is no such file
    later.write_bytes(b"HOME=/\0TORNADO_SIGNAL_MAX_OFFER=200\0A=b\nTORNADO_SIGNAL_X=y\0")
    assert reload(server)[0].endswith("applied: --max-offer")
    body = {"info": "i", "offer": "o" * 200}
    assert status(server, "/lobby/offer", body) == 200
    later.write_bytes(b"TORNADO_SIGNAL_CONFIG=other.toml\0")
    assert reload(server)[0].endswith("applied: --max-offer")  # the flag --config wins, and now its file
    assert status(server, "/lobby/offer", {"info": "i", "offer": "o" * 300}) == 200
    later.write_bytes(b"TORNADO_SIGNAL_MAX_OFER=200\0")
    assert "such as TORNADO_SIGNAL_MAX_OFFER" in reload(server)[0]
    assert server.stop() == 0


def test_under_load(start, tmp_path):
    """While settings change again and again, every request on new and kept connections is answered with 200."""
    server = start(f"allowed_origins = '{ORIGIN}'")
    failures, answered, over = [], [], threading.Event()

    def ask(path, body, kept):
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=BOUND_S)
        try:
            while not over.is_set():
                connection.request("POST" if body else "GET", path, body, {"Origin": ORIGIN})
                response = connection.getresponse()
                response.read()
                (answered if response.status == 200 else failures).append(response.status)
                if not kept:
                    connection.close()  # the next request opens another one
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    offer = '{"info": "i", "offer": "o"}'
    clients = [(path, body, kept) for path, body in (("/topics", None), ("/lobby/offer", offer)) for kept in (0, 1)]
    threads = [threading.Thread(target=ask, args=each) for each in clients]
    for thread in threads:
        thread.start()
    for number in range(RELOADS):
        proxies = "" if number % 2 else "trusted_proxies = '127.0.0.1'"
        write(
            tmp_path, f"allowed_origins = '{ORIGIN},https://{number}.example'", f"max_offer = {1000 + number}", proxies
        )
        said = reload(server)
        assert "applied: --allowed-origins, " in said[0]
        until = len(answered) + len(threads)
        deadline_s = time.monotonic() + BOUND_S
        while len(answered) < until and not failures:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
    over.set()
    for thread in threads:
        thread.join(BOUND_S)
    assert failures == []
    assert server.stop() == 0
