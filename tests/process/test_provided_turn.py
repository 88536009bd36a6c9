"""The TURN provider of a running server: settings, reload and workers."""

import json
import urllib.request

import pytest
from support.backend import TURN, Backend, responding
from support.command import run
from support.waiting import until

pytest_plugins = ["support.redis_traffic"]
SECRET = "a secret of the provider"


@pytest.fixture
def backend():
    with Backend() as backend:
        yield backend


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


def test_failure_of_any_kind_is_one_line_of_the_log(backend, start):
    backend.behaviour = lambda handler: handler.wfile.write(b"malformed\r\n\r\n")
    server = start("--turn-provider", backend.url, TORNADO_SIGNAL_TURN_PROVIDER_SECRET=SECRET)
    assert f"the TURN provider {backend.base} fails" in server.process.stderr.readline()
    assert server.stop() == 0
    assert [line for line in server.log if " tornado_signal" not in line] == []


@pytest.mark.parametrize(("status", "said"), [(200, "1 servers, valid for 86400 s"), (429, "which fails")])
def test_check_asks_the_provider_and_succeeds_without_it(status, said, backend, tmp_path):
    backend.behaviour = responding([TURN], status)
    (tmp_path / "secret").write_text(SECRET)
    flags = ("--turn-provider", backend.url, "--turn-provider-secret-file", "secret")
    done = run("serve", "--check", "--port", 0, "--data-dir", "data", *flags, cwd=tmp_path)
    assert done.returncode == 0
    assert f"TURN provider: {backend.base}, {said}" in done.stdout
    assert ("HTTP 429" in done.stderr) == (status == 429)


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
