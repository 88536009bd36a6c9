"""/status of real servers: its token, the sources of settings, and several processes."""

import json
import urllib.error
import urllib.request

import pytest
from support.command import BOUND_S
from support.redis_servers import RedisServer


def ask(server, path="/status", **headers):
    request = urllib.request.Request(server.admin_url + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=BOUND_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text("a token of the operator\n")
    return path


def test_token_is_required_where_it_is_configured(start, token):
    server = start("--admin-port", "0", "--admin-token-file", token)
    assert ask(server)[0] == 401
    assert ask(server, Authorization="Bearer another")[0] == 401
    status, body = ask(server, Authorization="Bearer a token of the operator")
    assert (status, list(json.loads(body)["workers"])) == (200, ["1"])
    assert b"a token" not in body
    assert ask(server, "/")[0] == 200


def test_each_setting_has_its_source(tmp_path, start, monkeypatch):
    (tmp_path / "config.toml").write_text("rate_per_address = 7\n")
    monkeypatch.setenv("TORNADO_SIGNAL_LOG_LEVEL", "info")
    server = start("--admin-port", "0", "--config", tmp_path / "config.toml", "--demo", "true")
    settings = json.loads(ask(server)[1])["workers"]["1"]["settings"]
    assert settings["demo"] == {"value": "true", "source": "flag"}
    assert settings["log_level"] == {"value": "info", "source": "environment"}
    assert settings["rate_per_address"] == {"value": "7", "source": "file"}
    assert settings["max_connections"]["source"] is None


def test_all_workers_are_shown(start, token):
    redis = RedisServer("redis")
    flags = ("--store", "redis", "--redis-nodes", redis.address, "--durability", "os", "--workers", "2")
    server = start("--admin-port", "0", "--admin-token-file", token, *flags)
    assert ask(server)[0] == 401
    for _ in range(20):
        server.offer()
    status, body = ask(server, Authorization="Bearer a token of the operator")
    workers = json.loads(body)["workers"]
    assert (status, list(workers)) == (200, ["1", "2"])
    created = [each["metrics"]["tornado_signal_sessions_created_total"] for each in workers.values()]
    assert sum(created) == 20
    assert {each["state"] for each in workers.values()} == {"serving"}
    assert all(each["origins"] is None for each in workers.values())
    assert server.stop() == 0
    redis.kill()
