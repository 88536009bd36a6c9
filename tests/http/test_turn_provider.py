"""TURN servers of a provider, requested from a real HTTP server on this machine."""

import base64
import dataclasses
import json
import re
import urllib.request

import pytest
from prometheus_client.utils import floatToGoString
from support import rpc
from support.backend import TURN, Backend, drip, flood, hang, responding
from support.command import run
from support.service import NOW_MS
from support.waiting import until

from tornado_signal.errors import OperatorError
from tornado_signal.outgoing import endpoint, turn
from tornado_signal.outgoing.turn import Refresher, make_provider
from tornado_signal.service import ice
from tornado_signal.settings.settings import Settings

SECRET = "ident:secret-of-the-provider"
STUN = {"urls": ["stun:stun.example:3478"]}
GOOD = {"iceServers": [TURN]}


@pytest.fixture
def backend():
    with Backend() as backend:
        yield backend


@pytest.fixture
def settings(tmp_path, backend):
    path = tmp_path / "provider-secret"
    path.write_text(SECRET + "\n")
    return Settings(turn_provider=backend.url, turn_provider_secret_file=path)


@pytest.fixture
def refreshing(service, monkeypatch, io_loop):
    """The refresher of a server, which retries after few milliseconds."""
    monkeypatch.setattr(turn, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(turn, "MAX_RETRY_S", 0.02)
    running = []

    async def make():
        running.append(Refresher(service.shared))

    io_loop.run_sync(make)
    yield running[0]
    io_loop.run_sync(running[0].close)


async def others(service):
    """Return the servers in addition to the STUN servers of the settings, and the expiry."""
    response = await service.get("/ice-servers")
    assert response["iceServers"][0] == {"urls": list(Settings().stun_servers)}
    return response["iceServers"][1:], response["expiresAt"]


async def admin(service, path):
    response = await service.ask_admin(path)
    return response.body.decode() if path == "/metrics" else response.json


def basic(text):
    return f"Basic {base64.b64encode(text.encode()).decode()}"


WRONG = [{"urls": []}, {}, None, "turn:turn.example", {"urls": "stun:a b"}, {"urls": 7}]
WRONG += [{**TURN, "urls": url} for url in ("https://turn.example", "turn:turn.example/x")]
WRONG += [{"urls": TURN["urls"], "username": "a"}, *({**TURN, "credential": wrong} for wrong in (7, "a\nb"))]
OWN = None, ("GET", "/ice?key=of-query"), (f"Bearer {SECRET}", None, b"")
HOSTS = {"cloudflare": "rtc.live.cloudflare.com", "metered": "{name}.metered.live", "twilio": "api.twilio.com"}
HOSTS |= {"xirsys": "global.xirsys.net"}
# The responses of the services are as in the documentation that `FORMS` names.
FORMS = {
    "cloudflare": (
        "cloudflare:0123",
        ("POST", "/v1/turn/keys/0123/credentials/generate-ice-servers"),
        (f"Bearer {SECRET}", "application/json", b'{"ttl": 3600}'),
        ({"iceServers": [{"urls": ["stun:stun.example:3478"]}, TURN]}, 201),
        ([STUN, TURN], 3600),
    ),
    "metered": (
        "metered:app",
        ("GET", "/api/v1/turn/credentials?apiKey=ident%3Asecret-of-the-provider"),
        (None, None, b""),
        ([{"urls": "stun:stun.example:3478"}, {**TURN, "urls": TURN["urls"][0]}], 200),
        ([STUN, TURN], 3600),
    ),
    "twilio": (
        "twilio:AC01",
        ("POST", "/2010-04-01/Accounts/AC01/Tokens.json"),
        (basic(f"AC01:{SECRET}"), "application/x-www-form-urlencoded", b"Ttl=3600"),
        ({"ttl": "1800", "ice_servers": [{"url": STUN["urls"][0], "urls": STUN["urls"][0]}, TURN]}, 201),
        ([STUN, TURN], 1800),
    ),
    "xirsys": (
        "xirsys:channel",
        ("PUT", "/_turn/channel"),
        (basic(SECRET), "application/json", b'{"format": "urls", "expire": "3600"}'),
        ({"v": {"iceServers": {**TURN, "urls": STUN["urls"] + TURN["urls"]}}, "s": "ok"}, 200),
        ([{**TURN, "urls": STUN["urls"] + TURN["urls"]}], 3600),
    ),
    "own backend": (*OWN, ({**GOOD, "expiresAt": NOW_MS + 90_000}, 200), ([TURN], 90)),
    "own backend with a list": (*OWN, ([TURN], 200), ([TURN], 3600)),
    # A response is used as far as it is right.
    "more than 20 servers": (*OWN, ({"iceServers": [TURN] * 25}, 200), ([TURN] * 20, 3600)),
    "a year": (*OWN, ({**GOOD, "ttl": 31_536_000}, 200), ([TURN], 86_400)),
    "a number that is too large": (*OWN, ({**GOOD, "ttl": "9" * 5000}, 200), ([TURN], 86_400)),
    "lifetimes of other types": (*OWN, ({**GOOD, "ttl": True, "expiresAt": "soon"}, 200), ([TURN], 3600)),
    "some wrong servers": (*OWN, ({"iceServers": [*WRONG, TURN, STUN]}, 200), ([TURN, STUN], 3600)),
    "some wrong URLs": (*OWN, ([{**TURN, "urls": [TURN["urls"][0], "x:y", 7, None]}], 200), ([TURN], 3600)),
    "further fields": (*OWN, ([{**TURN, "credentialType": "password", "x": 1}], 200), ([TURN], 3600)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
async def test_form_of_a_response(form, service, refreshing, backend, settings, monkeypatch):
    named, target, sent, response, (servers, lifetime_s) = form
    backend.behaviour = responding(*response)
    services = {name: each.url.split("/")[:3] for name, each in turn.FORMS.items()}
    assert services == {name: ["https:", "", host] for name, host in HOSTS.items()}
    local = {
        name: each._replace(url=re.sub("https://[^/]*", backend.base, each.url)) for name, each in turn.FORMS.items()
    }
    monkeypatch.setattr(turn, "FORMS", local)
    refreshing.use(
        make_provider(dataclasses.replace(settings, turn_provider=named or settings.turn_provider, turn_ttl_s=3600))
    )
    await rpc.until(lambda: service.shared.provided.servers)
    ((method, path, headers, body),) = backend.requests
    assert (method, path) == target
    assert (headers.get("Authorization"), headers.get("Content-Type"), body) == sent
    assert await others(service) == (servers, NOW_MS + 1000 * lifetime_s)


def lines(caplog):
    """Return the log lines of the refresher. Tornado logs a too long body itself, or not, depending on its parts."""
    return [record.getMessage() for record in caplog.records if record.name == turn.__name__]


BAD = {
    "slow": (hang, "Timeout"),
    "slow body": (drip, "Timeout"),
    "endless": (flood, "."),
    "redirect": (responding(b"", 302, Location="/elsewhere"), "HTTP 302"),
    "401": (responding({}, 401), "HTTP 401; check --turn-provider-secret-file"),
    "404": (responding({}, 404), "HTTP 404; check --turn-provider"),
    "429": (responding({}, 429, **{"Retry-After": "0"}), "HTTP 429; the provider limits requests"),
    "error with the secret": (responding(SECRET.encode(), 500), "HTTP 500; trying again"),
    "HTML": (responding(b"<!doctype html><title>Sign in</title>"), "not JSON"),
    "not UTF-8": (responding(b'["\xff"]'), "not JSON"),
    "nested": (responding(b"[" * 60_000), "not JSON"),
    "empty list": (responding([]), "names no TURN server"),
    "a number": (responding(7), "names no TURN server"),
    "an error with 200": (responding({"s": "error", "v": "unauthorized"}), "names no TURN server"),
    "STUN only": (responding([STUN]), "names no TURN server"),
    "lifetime of a second": (responding({**GOOD, "ttl": 1}), "expire in 1 s"),
    "expired": (responding({**GOOD, "expiresAt": NOW_MS - 1}), "expire in -0 s"),
    "malformed": (lambda handler: handler.wfile.write(b"malformed\r\n\r\n"), "."),
}


@pytest.mark.parametrize(("behaviour", "problem"), BAD.values(), ids=BAD)
async def test_failing_provider(behaviour, problem, service, refreshing, backend, settings, monkeypatch, caplog):
    """Clients are served, and the log has one line at the begin and one at the end."""
    if problem == "Timeout":
        monkeypatch.setattr(endpoint, "REQUEST_S", 0.3)
    backend.behaviour = behaviour
    refreshing.use(make_provider(settings))
    await rpc.until(lambda: service.shared.provided.failed >= 2)
    assert await others(service) == ([], NOW_MS + 86_400_000)
    (line,) = lines(caplog)
    assert re.match(f"the TURN provider http://127.0.0.1:.* fails: .*{problem}", line)
    assert (await admin(service, "/readyz"))["turnProvider"] in line
    assert "of-query" not in line
    backend.behaviour = responding(GOOD)
    await rpc.until(lambda: service.shared.provided.succeeded)
    assert await others(service) == ([TURN], NOW_MS + 86_400_000)
    assert [line, f"the TURN provider {backend.base} works again"] == lines(caplog)
    assert SECRET not in caplog.text
    assert not any(record.exc_info for record in caplog.records)
    assert {target for _, target, _, _ in backend.requests} == {"/ice?key=of-query"}
    assert "turnProvider" not in await admin(service, "/readyz")
    caplog.clear()


async def test_last_servers_are_used_until_they_expire(service, refreshing, backend, settings, monkeypatch, caplog):
    monkeypatch.setattr(turn, "MIN_LIFETIME_S", 1)
    backend.behaviour = responding({**GOOD, "ttl": 1})
    refreshing.use(make_provider(settings))
    await rpc.until(lambda: len(backend.requests) >= 2)  # after half of the lifetime
    backend.behaviour = responding({}, 500)
    await rpc.until(lambda: service.shared.provided.problem)
    assert await others(service) == ([TURN], NOW_MS + 1000)
    service.clock.ms += 1000
    assert await others(service) == ([], NOW_MS + 1000 + 86_400_000)
    (line,) = lines(caplog)
    assert "peers get its last servers for 1 s" in line
    caplog.clear()


async def test_operator_sees_the_provider_and_a_reload_takes_another_secret(service, refreshing, backend, settings):
    async def state():
        status, metrics = await admin(service, "/status"), await admin(service, "/metrics")
        found = dict(re.findall(r"^tornado_signal_turn_provider_(\S+) (\S+)$", metrics, re.MULTILINE))
        return status["processes"][0]["turn_provider"], found

    assert await state() == (None, {})
    refreshing.use(make_provider(settings))
    await rpc.until(lambda: service.shared.provided.succeeded)
    refreshing.use(make_provider(settings))  # which is equal
    expires_ms = NOW_MS + 86_400_000
    shown, metrics = await state()
    assert shown == {"name": backend.base, "servers": 1, "expires": expires_ms, "problem": ""}
    assert metrics == {
        'requests_total{result="ok"}': "1.0",
        'requests_total{result="failed"}': "0.0",
        "expiry_timestamp_seconds": floatToGoString(expires_ms / 1000),
        "failing": "0.0",
    }
    settings.turn_provider_secret_file.write_text("another secret of the provider")
    refreshing.use(make_provider(settings))
    await rpc.until(lambda: service.shared.provided.succeeded and service.shared.provided.servers)
    secrets = [headers["Authorization"] for _, _, headers, _ in backend.requests]
    assert secrets == [f"Bearer {SECRET}", "Bearer another secret of the provider"]
    refreshing.use(None)
    assert await others(service) == ([], expires_ms)


@pytest.mark.parametrize(
    ("named", "secret", "message"),
    [
        ("cloudflare:x", "one line of sixteen\nand another", "must hold one line"),
        ("cloudflare:x", "a secret with a\rcarriage return", "ASCII characters only"),
        ("cloudflare:x", "ein geheimes Geheimnis: ä", "ASCII characters only"),
        ("xirsys:x", "secret without ident", "ident of Xirsys, a colon"),
    ],
)
def test_unusable_setting_is_refused_and_the_secret_not_shown(named, secret, message, tmp_path):
    path = tmp_path / "secret"
    path.write_text(secret)
    settings = Settings(turn_provider=named, turn_provider_secret_file=path)
    with pytest.raises(OperatorError, match=message) as caught:
        make_provider(settings)
    assert secret not in str(caught.value)


def test_urls_of_the_settings_are_those_of_providers():
    for url in (*TURN["urls"], *STUN["urls"], "turns:[2001:db8::1]:5349?transport=tcp", "stuns:a"):
        assert ice.parse_server({**TURN, "urls": url})["urls"] == [url]


# A running server: settings, reload and workers


def has_turn(server):
    return TURN in server.call("/ice-servers")[1]["iceServers"]


def test_secret_of_the_environment_and_a_reload(backend, start, tmp_path):
    backend.behaviour = responding({}, 401)
    config = tmp_path / "signal.toml"
    config.write_text("")
    replaced = tmp_path / "environment"
    server = start(
        *("--config", config, "--turn-provider", backend.url, "--admin-port", 0),
        TORNADO_SIGNAL_TURN_PROVIDER_SECRET=SECRET,
        TORNADO_SIGNAL_RELOAD_ENVIRONMENT=str(replaced),
    )
    until(lambda: backend.requests)
    assert "fails: HTTP 401; check --turn-provider-secret-file" in server.process.stderr.readline()
    with urllib.request.urlopen(f"{server.admin_url}/readyz") as response:
        assert "HTTP 401" in json.load(response)["turnProvider"]
    assert not has_turn(server)
    backend.behaviour = responding([TURN])
    replaced.write_bytes(b"TORNADO_SIGNAL_TURN_PROVIDER_SECRET=another secret of the provider\0")
    server.process.send_signal(1)
    until(lambda: has_turn(server))
    assert server.stop() == 0
    tokens = [headers["Authorization"] for _, _, headers, _ in backend.requests]
    assert (tokens[0], tokens[-1]) == (f"Bearer {SECRET}", "Bearer another secret of the provider")
    log = "".join(server.log)
    assert "secret of the TURN provider" in log
    assert SECRET not in log
    assert "of-query" not in log


@pytest.mark.parametrize(("status", "said"), [(200, "1 servers, valid for 86400 s"), (500, "which fails")])
def test_check_asks_the_provider_and_succeeds_without_it(status, said, backend, tmp_path):
    backend.behaviour = responding([TURN], status)
    (tmp_path / "secret").write_text(SECRET)
    flags = ("--turn-provider", backend.url, "--turn-provider-secret-file", "secret")
    done = run("serve", "--check", "--port", 0, "--data-dir", "data", *flags, cwd=tmp_path)
    assert done.returncode == 0
    assert f"TURN provider: {backend.base}, {said}" in done.stdout
    assert (f"HTTP {status}" in done.stderr) == (status != 200)
    assert "trying again" not in done.stderr


@pytest.mark.needs("redis-server")
def test_each_worker_asks_once(backend, redis_server, start):
    server = start(
        *("--workers", 2, "--durability", "os", "--turn-provider", backend.url),
        redis=redis_server(),
        TORNADO_SIGNAL_TURN_PROVIDER_SECRET=SECRET,
    )
    until(lambda: len(backend.requests) == 2)
    until(lambda: has_turn(server))
    assert server.stop() == 0
    assert len(backend.requests) == 2
