"""The operator's data, actions and command on real servers: tokens, workers, and servers that share a Redis."""

import asyncio
import base64
import contextlib
import hashlib
import json
import signal
import socket

import pytest
from support.command import BOUND_S, ORIGIN, call
from support.processes import stopped
from support.rpc import open_socket
from support.service import head
from support.waiting import until

from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.operator.admin import page as admin_page

OTHER = "https://other.example"
TOKEN = "a token of the operator"


def ask(server, path="/status", body=None, Origin=None, **headers):
    return server.call(path, body, base=server.admin_url, origin=Origin, **headers)


def names(state):
    return [process["server"].rpartition(":")[2] + f"/{process['worker']}" for process in state["processes"]]


def admin(server, *arguments, **options):
    done = call("admin", "--admin-url", server.admin_url, *arguments, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def test_reload_replaces_the_token(share, token):
    server = share("--admin-token-file", token, "--workers", "2")
    old, new = ({"Authorization": f"Bearer {text}"} for text in (TOKEN, TOKEN[::-1]))
    token.write_text(TOKEN[::-1])
    server.process.send_signal(signal.SIGHUP)
    until(lambda: ask(server, **old)[0] == 401)
    until(lambda: len(ask(server, **new)[1]["processes"]) == 2)
    assert server.stop() == 0
    (line,) = (line for line in server.log if "settings reloaded" in line)
    assert line.endswith("applied: admin token\n")


@pytest.mark.parametrize("workers", [1, 2])
def test_full_listener_is_logged_when_it_begins_and_ends(share, workers):
    server = share("--workers", str(workers))
    with contextlib.ExitStack() as stack:
        for _ in range(ADMIN_CONNECTIONS):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the responses do not fit
            client.settimeout(BOUND_S)
            client.connect(("127.0.0.1", int(server.admin_url.rpartition(":")[2])))
            client.sendall(head("GET", "/operator.js", [("Host", "localhost")]) * 200)
            assert client.recv(1024).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(OSError):
            assert server.ask_admin("/readyz")[0] == 503
        line = server.process.stderr.readline()
    assert "clients are refused: all connections of the admin listener are in use" in line
    assert "clients are served again: admin had no room" in server.process.stderr.readline()
    assert server.stop() == 0


def test_each_setting_has_its_source_and_a_log_level_lasts_until_the_next_reload(tmp_path, start):
    (tmp_path / "config.toml").write_text("rate_per_address = 7\n")
    (tmp_path / "secret").write_text("whsec_" + base64.b64encode(b"a secret of the receiver").decode())
    webhooks = ("--webhook-url", "http://127.0.0.1:9/hidden?key=hidden", "--webhook-secret-file", tmp_path / "secret")
    flags = ("--config", tmp_path / "config.toml", "--demo", "true", "--socket-mode", "600", *webhooks)
    server = start("--admin-port", "0", *flags, TORNADO_SIGNAL_LOG_LEVEL="info")

    def settings():
        (process,) = ask(server)[1]["processes"]
        return process["settings"]

    found = settings()
    shown = {name: (each["value"], each["source"]) for name, each in found.items()}
    expected = {"log_level": ("info", "environment"), "rate_per_address": ("7", "file"), "demo": ("true", "flag")}
    expected |= {"socket_mode": ("600", "flag"), "webhook_url": ("http://127.0.0.1:9/…", "flag")}
    assert shown.items() >= expected.items()
    assert found["max_connections"]["source"] is None
    assert admin(server, "log-level", "--level", "debug")[0] == 0
    assert settings()["log_level"] == {"value": "debug", "source": "operator"}
    server.call("/nowhere/sessions", origin="")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: settings()["log_level"] == {"value": "info", "source": "environment"})
    server.call("/somewhere/sessions", origin="")
    assert server.stop() == 0
    assert len([line for line in server.log if "has no Origin" in line]) == 1


def test_token_is_required_and_the_command_acts_and_explains(start, token):
    server = start("--admin-port", "0", "--admin-token-file", token)
    server.offer()
    assert [ask(server)[0], ask(server, Authorization="Bearer another")[0]] == [401, 401]
    status, state = ask(server, Authorization=f"Bearer {TOKEN}")
    assert (status, names(state), TOKEN in json.dumps(state)) == (200, [f"{server.port}/0"], False)
    status, _, error = admin(server, "drain")
    assert (status, "requires its token" in error) == (1, True)
    access = ("--admin-token-file", token)
    assert json.loads(admin(server, "status", *access)[1])["store"]["origins"][0]["origin"] == ORIGIN
    status, shown, _ = admin(server, "withdraw", "--origin", ORIGIN, "--topic", "lobby", *access)
    assert (status, shown.partition(": ")[2]) == (0, "sessions 1\n")
    assert server.codes() == []
    status, _, error = admin(server, "block", "--address", "192.0.2.1", *access)
    assert (status, "refuses: seconds must be an integer" in error) == (1, True)
    status, shown, _ = admin(server, "block", "--address", "192.0.2.1", "--for", "1h", "--json", *access)
    assert (status, json.loads(shown)["results"][0]["connections"]) == (0, 0)
    status, _, error = admin(server, "format", *access)
    assert (status, "invalid choice: 'format'" in error) == (2, True)
    status, shown, _ = admin(server, "drain", *access)
    assert (status, server.wait()) == (0, 0)
    log = "".join(server.log)
    assert ('operator at 127.0.0.1: drain {}: {"state": "leaving"}' in log, TOKEN in log) == (True, False)


def test_all_workers_are_shown_and_act(share, token):
    server = share("--admin-token-file", token, "--workers", "2", "--allowed-origins", ORIGIN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert ask(server)[0] == 401
    for _ in range(20):
        server.offer()
        assert server.call("/health", origin=OTHER)[0] == 403
    until(lambda: len(ask(server, **headers)[1]["processes"]) == 2)
    state = ask(server, **headers)[1]
    assert names(state) == [f"{server.port}/{worker}" for worker in (1, 2)]
    assert sum(process["figures"]["created_total"] for process in state["processes"]) == 20
    assert {process["state"] for process in state["processes"]} == {"serving"}
    assert state["store"]["origins"] == [{"origin": ORIGIN, "unanswered_sessions": 20, "topics": 1}]
    assert {row["origin"] for each in state["processes"] for row in each["refused_origins"]} == {OTHER}
    *_, heads, row = admin_page(state).splitlines()
    assert (heads.split("  ")[0], row.split()) == ("REFUSED ORIGIN", [OTHER, "20"])

    def block():
        result = ask(server, "/actions/block", {"address": "192.0.2.1", "seconds": 60}, **headers)[1]
        return [len(result["results"]), result["missing"]] == [2, []]

    until(block)
    state = ask(server, **headers)[1]
    assert [len(process["blocks"]) for process in state["processes"]] == [1, 1]
    status, result = ask(server, "/actions/log-level", {"level": "debug"}, **headers)
    assert (status, [entry["level"] for entry in result["results"]]) == (200, ["debug"])

    def levels():
        return {each["settings"]["log_level"]["value"] for each in ask(server, **headers)[1]["processes"]}

    until(lambda: levels() == {"debug"})
    assert ask(server, "/actions/log-level", {"level": "loud"}, **headers)[0] == 400
    assert ask(server, "/actions/block", {"address": "x", "seconds": 1}, **headers)[0] == 400
    assert ask(server, "/actions/drain", {}, **headers)[0] == 200
    assert server.wait() == 0


async def test_servers_that_share_a_redis_are_one(share):
    first = share()
    assert ask(first, "/actions/block", {"address": "192.0.2.0/24", "seconds": 600})[0] == 200
    second, third = share(), share()  # which take the block over
    every = sorted(f"{server.port}/0" for server in (first, second, third))
    until(lambda: all(sorted(names(ask(server)[1])) == every for server in (first, second, third)))
    until(lambda: [len(process["blocks"]) for process in ask(second)[1]["processes"]] == [1] * 3)
    for server in (first, second, third):
        server.offer()
    until(lambda: [entry["unanswered_sessions"] for entry in ask(first)[1]["store"]["origins"]] == [3])
    assert all(process["figures"]["created_total"] == 1 for process in ask(first)[1]["processes"])
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_socket(server)) for server in (first, second, third)]
        honest = await stack.enter_async_context(open_socket(third, OTHER))
        ending = await asyncio.to_thread(ask, first, "/actions/disconnect", {"origin": ORIGIN})
        assert sum(result["connections"] for result in ending[1]["results"]) == 3
        for client in clients:
            assert await client.close_frame() == (1008, "closed by the operator")
        assert await honest.call("health")


def test_actions_on_redis_that_are_not_signed_do_nothing(share, redis, tmp_path):
    first, second = share(), share()
    until(lambda: all(len(ask(server)[1]["processes"]) == 2 for server in (first, second)))
    digest = hashlib.sha256(b"admin\0signed requests").hexdigest()[:32]
    channel = f"{tmp_path.name}:{{relay.{digest}}}"
    drain = {"from": "a" * 16, "number": 1, "name": "drain", "fields": {}, "by": "x\nforged line"}
    for message in (json.dumps(drain), "junk", "", "[" * 100_000):
        assert redis.ask("SPUBLISH", channel, "12345678" + message) == 2
    assert ask(second, "/actions/block", {"address": "192.0.2.1", "seconds": 60})[1]["missing"] == []
    assert [process["state"] for process in ask(first)[1]["processes"]] == ["serving"] * 2
    assert [server.stop() for server in (first, second)] == [0, 0]
    log = "".join(first.log)
    assert (log.count("is refused"), "forged line" in log, "Traceback" in log) == (1, False, False)


def test_server_that_does_not_respond_is_named(share):
    first, second = share(), share()
    until(lambda: len(ask(first)[1]["processes"]) == 2)
    with stopped([second.process.pid]):
        state = ask(first)[1]
        assert [name.rpartition(":")[2] for name in state["missing"]] == [str(second.port)]
        assert names(state) == [f"{first.port}/0"]
        status, _, error = admin(first, "block", "--address", "192.0.2.1", "--for", "1m")
        assert (status, f":{second.port}; repeat the action" in error) == (1, True)
    assert second.stop() == 0
    until(lambda: not ask(first)[1]["missing"])
