"""A reload reads settings and files again and applies all or none, and no client notices anything else."""

import dataclasses
import http.client
import re
import signal
from pathlib import Path

import pytest
from support import writers
from support.certificates import make_pair
from support.command import BOUND_S, ORIGIN
from support.redis_traffic import in_background, until
from support.webhooks import SECRET

import tornado_signal
from tornado_signal.process.draining import Stages
from tornado_signal.process.reload import CONTENTS, changed_contents, read_resources
from tornado_signal.process.server import ServingProcess
from tornado_signal.settings.settings import SETTINGS, Settings
from tornado_signal.system.lifecycle import LEAVING, SERVING, Lifecycle

OTHER = "https://other.example"
RELOADS = 30


@pytest.fixture
def configured(start, tmp_path):
    """A function that starts a server whose file has these lines."""

    def starting(*lines, flags=(), **options):
        write(tmp_path, *lines)
        return start("--config", "signal.toml", *flags, TORNADO_SIGNAL_STUN_SERVERS=None, **options)

    return starting


def write(place, *lines):
    (place / "signal.toml").write_text("".join(f"{line}\n" for line in lines))


def reload(server, lines=1):
    """Reload a server's settings, and return the resulting log lines without their times."""
    server.process.send_signal(signal.SIGHUP)
    said = []
    while len(said) < lines:
        line = server.process.stderr.readline().rstrip("\n").partition(" ")[2]
        server.log.append(line)
        if " are refused" not in line:  # which other origins and requests over a limit cause
            said.append(line)
    return said


def status(server, path="/topics", body=None, **options):
    return server.call(path, body, **options)[0]


def test_reload_changes_origins_limits_ice_servers_and_the_log(configured, tmp_path):
    server = configured(f"allowed_origins = '{ORIGIN}'", "session_timeout_ms = 60000", flags=["--max-candidates", 1])
    code = server.offer()
    waited = in_background(lambda: server.call("/poll", {"code": code, "side": "offerer", "wait": 60}))
    assert status(server, origin=OTHER) == 403
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND_S)
    kept.request("GET", "/health", headers={"Origin": ORIGIN})
    assert kept.getresponse().read()
    changed = [f"allowed_origins = ['{OTHER}', '{ORIGIN}']", "demo = false", "stun_servers = 'stun:stun.example.com'"]
    changed += ["max_offer = 100", "max_candidates = 100", "max_sessions_per_origin = 1", "max_body_bytes = 2000"]
    changed += ["log_level = 'debug'", "access_log = true", "session_timeout_ms = 30000", "data_dir = 'elsewhere'"]
    write(tmp_path, *changed)
    said, pending = reload(server, 2)
    assert said == (
        "INFO tornado_signal.process.reload: settings reloaded, applied: --allowed-origins, --max-body-bytes, "
        "--max-offer, --max-sessions-per-origin, --demo, --stun-servers, --log-level, --access-log"
    )
    assert pending == (
        "WARNING tornado_signal.process.reload: changed settings that need a restart: --data-dir, --session-timeout-ms"
    )
    assert status(server, origin=OTHER) == 200
    kept.request("GET", "/topics", headers={"Origin": OTHER})
    assert kept.getresponse().status == 200
    kept.close()
    refused = (400, {"error": "Missing or invalid required parameter: offer"})
    assert server.call("/other/offer", {"info": "i", "offer": "o" * 101}) == refused
    assert status(server, "/lobby/offer", {"info": "i", "offer": "o"}) == 429
    assert status(server, "/other/offer", {"info": "i" * 2000, "offer": "o"}) == 413
    assert status(server, "/demo") == 404
    assert server.call("/openapi.json")[1]["openapi"]
    assert server.call("/ice-servers")[1]["iceServers"] == [{"urls": ["stun:stun.example.com"]}]
    assert status(server, "/answer", {"code": code, "side": "answerer", "candidates": ["a", "b"]}) == 429  # a flag's
    assert status(server, "/answer", {"code": code, "side": "answerer", "answer": "a"}) == 200
    assert waited()[1]["answer"] == "a"
    server.offer("later")
    (listed,) = server.call("/later/sessions")[1]["sessions"]
    assert listed["expiresAt"] - listed["createdAt"] == 60_000
    assert server.stop() == 0
    assert any("endpoint=/topics status=200" in line for line in server.log)
    assert not any("ICE servers: none" in line for line in server.log)


BAD = {
    "allowed_origin = 'any'": "signal.toml, key allowed_origin = 'any': expected the name of a setting",
    "max_offer = 'much'": "key max_offer = 'much': expected a whole number",
    "max_offer =": "--config = 'signal.toml': expected a TOML file",
    "turn_servers = 'turn:turn.example.com'": "--turn-servers = '…': expected --turn-secret-file to be set as well",
    "tls_key = 'key.pem'": "--tls-key = '…': expected --tls-certificate to be set as well",
}


def test_invalid_file_changes_nothing_on_reload(subtests, configured, tmp_path):
    server = configured(f"allowed_origins = '{ORIGIN}'")
    for line, reason in BAD.items():
        with subtests.test(line):
            write(tmp_path, f"allowed_origins = '{OTHER}'", line)
            (said,) = reload(server)
            assert said.startswith("ERROR tornado_signal.process.reload: reload failed, keeping the current settings: ")
            assert reason in said
            assert said.endswith(". Fix it and reload again")
            assert [status(server), status(server, origin=OTHER)] == [200, 403]
    (tmp_path / "signal.toml").unlink()
    assert "expected a readable file (No such file or directory)" in reload(server)[0]
    write(tmp_path, f"allowed_origins = '{OTHER}'")
    assert reload(server) == ["INFO tornado_signal.process.reload: settings reloaded, applied: --allowed-origins"]
    assert [status(server), status(server, origin=OTHER)] == [403, 200]
    assert reload(server)[0].endswith("applied: nothing new")
    assert server.stop() == 0


def test_reload_replaces_the_environment_file_of_the_start(configured, tmp_path):
    later = tmp_path / "environment"
    variables = {"TORNADO_SIGNAL_RELOAD_ENVIRONMENT": str(later), "TORNADO_SIGNAL_MAX_OFFER": "100"}
    server = configured("max_offer = 300", **variables)
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
    until(lambda: "such as TORNADO_SIGNAL_MAX_OFFER" in (tmp_path / "environment.result").read_text())
    later.unlink()
    assert reload(server)[0].endswith("applied: --max-offer")
    until(lambda: (tmp_path / "environment.result").read_text() == "reloaded")
    assert server.stop() == 0


def test_requests_are_served_during_repeated_reloads(configured, tmp_path):
    origins = ",".join([ORIGIN, *writers.ORIGINS])
    server = configured(f"allowed_origins = '{origins}'")
    with writers.Writers(server.url, "reloads", number=4) as working:
        for number in range(RELOADS):
            proxies = "" if number % 2 else "trusted_proxies = '127.0.0.1'"
            changed = f"allowed_origins = '{origins},https://{number}.example'"
            write(tmp_path, changed, f"max_offer = {1000 + number}", proxies)
            assert "applied: --allowed-origins, " in reload(server)[0]
            assert status(server) == 200  # on a new connection
            while working.acknowledgements.acquire(blocking=False):  # those of earlier requests
                pass
            # At most four were on their way. All clients are served again.
            assert all(working.acknowledgements.acquire(timeout=BOUND_S) for _ in range(8))
    assert working.wrong == []
    assert not working.refusals.acquire(blocking=False)
    assert server.stop() == 0


PACKAGE = Path(tornado_signal.__file__).parent
# Where settings are read when they are needed.
READERS = ("operator", "http", "limits", "process", "protocols", "service", "websocket")
SECRETS = ("turn_secret_file", "redis_password_file", "redis_sentinel_password_file", "admin_token_file")


class Recorder:
    def __init__(self, settings):
        self._settings = settings
        self.read = set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._settings, name)


@pytest.fixture
def files(tmp_path):
    """Return a usable file for each setting that names one."""
    secrets = {name: tmp_path / name for name in SECRETS}
    for path in secrets.values():
        path.write_text("0123456789abcdef")
    webhook_secret, key, pair = tmp_path / "webhook", tmp_path / "key.secret", make_pair(tmp_path)
    webhook_secret.write_text(SECRET)
    key.write_text("0123456789abcdef" * 2)
    more = {"turn_servers": ("turn:a",), "webhook_url": "http://127.0.0.1:1", "webhook_secret_file": webhook_secret}
    return secrets | more | {"auth_keys": key, "tls_certificate": pair.certificate, "tls_key": pair.key}


@pytest.fixture
def process(io_loop, tmp_path, files):
    stages, lifecycle = Stages(), Lifecycle()
    settings = Settings(data_dir=tmp_path / "data", port=0, durability="os", stun_servers=(), **files)
    serving = ServingProcess(settings, lifecycle, None)

    async def start():
        await serving.open(stages, lambda: settings)
        lifecycle.reach(SERVING)

    io_loop.run_sync(start)
    yield serving
    lifecycle.reach(LEAVING)
    io_loop.run_sync(stages.close)


async def test_reload_applies_every_reloadable_setting(process):
    recorder = Recorder(process.live.current)
    process.reloader.apply(recorder)
    paths = [path for name in READERS for path in (PACKAGE / name).glob("*.py")]
    on_demand = {name for path in paths for name in re.findall(r"\b_?settings\.(\w+)", path.read_text())}
    on_demand |= {"max_sessions_per_origin", "max_candidates"}  # by stores, when they are needed
    assert process.live.current is recorder
    assert recorder.read | on_demand >= {setting.name for setting in SETTINGS if setting.live}


@pytest.mark.parametrize(
    ("name", "setting", "content"),
    [
        ("certificate and key", "tls_certificate", None),
        ("keys of tokens", "auth_keys", "another key of at least thirty-two bytes"),
        ("secret of TURN servers", "turn_secret_file", "another secret of TURN"),
        ("secret of webhooks", "webhook_secret_file", SECRET[:-4] + "AAA="),
        ("passwords of Redis", "redis_sentinel_password_file", "another"),
    ],
)
async def test_changed_content_of_a_file_is_named(files, tmp_path, name, setting, content):
    settings = Settings(**files)
    before = read_resources(settings)
    assert changed_contents(before, read_resources(settings)) == []
    if content is None:
        other = make_pair(tmp_path, "other")
        settings = dataclasses.replace(settings, tls_certificate=other.certificate, tls_key=other.key)
    else:
        files[setting].write_text(content)
    assert changed_contents(before, read_resources(settings)) == [name]
    assert name in CONTENTS
