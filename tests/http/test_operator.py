"""The admin listener of one server: probes, metrics, the operator's page, its data and its actions."""

import asyncio
import contextlib
import ipaddress
import itertools
import json
import logging
import os
import socket
import types

from support.command import BOUND_S
from support.rpc import RpcClient, until
from support.service import HANDSHAKE, ORIGIN, OTHER, head, request, with_origin
from support.tokens import make_token, write_secret

from tornado_signal.errors import SessionNotFound, Unavailable
from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.operator import actions, history, status
from tornado_signal.operator.access import MAX_BODY_BYTES
from tornado_signal.service.refusals import CALM_S
from tornado_signal.service.service import MAX_REFUSED_ORIGINS
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import SETTINGS
from tornado_signal.system import logs
from tornado_signal.system.lifecycle import DRAINING, LEAVING

LOCAL = ("Host", "localhost")
LOOPBACK = ipaddress.ip_network("127.0.0.1")


class Client(RpcClient):
    async def closed(self):
        await asyncio.wait_for(self.socket.wait_closed(), BOUND_S)
        return self.socket.close_code, self.socket.close_reason


def connect(service, origin=ORIGIN, headers=()):
    return Client(f"ws://127.0.0.1:{service.port}/ws", origin, additional_headers=headers)


async def describe(service):
    response = await service.ask_admin("/status")
    assert response.status == 200
    assert response.headers["Cache-Control"] == "no-store"
    assert list(response.json) == ["time", "verdict", "processes", "missing", "store", "log"]
    assert response.json["missing"] == response.json["log"] == []
    return response.json


async def process(service):
    (only,) = (await describe(service))["processes"]
    return only


async def act(service, name, status=200, **fields):
    body = json.dumps(fields).encode()
    response = await service.ask_admin(f"/actions/{name}", "POST", body)
    assert response.status == status, response
    if status != 200:
        assert response.json["action"] == name
        return response.json["error"]
    assert response.json["missing"] == []
    (result,) = response.json["results"]
    assert result.pop("process") == f"localhost:{service.port}"
    return result


async def test_responses_to_head_are_empty_and_others_compressed_for_clients_that_accept_it(service):
    for path in ("/", "/status", "/metrics", "/readyz", "/healthz"):
        response = await service.ask_admin(path, method="HEAD")
        assert (response.status, response.body) == (200, b""), path
    for path in ("/", "/status", "/metrics"):
        response = await service.ask_admin(path, Accept_Encoding="gzip")
        plain = await service.ask_admin(path)
        assert response.headers["Content-Encoding"] == "gzip"
        assert len(response.body) < len(plain.body) / 2
        assert "Content-Encoding" not in plain.headers


# Probes and metrics

GETS = ("/healthz", "/readyz", "/metrics")


async def ask(service, method, path):
    """Send a request without an Origin, and return the status and the content."""
    response = await service.ask_admin(path, method)
    assert response.headers["Content-Type"] == "application/json"
    assert "Access-Control-Allow-Origin" not in response.headers
    return response.status, response.body and response.json


async def test_metrics_are_served_without_the_data_directory(service):
    data = service.settings.data_dir
    aside = data.rename(data.with_name("aside"))
    data.touch()
    response = await service.ask_admin("/metrics")
    data.unlink()
    aside.rename(data)
    assert response.status == 200
    assert b"\ntornado_signal_store_available 1.0\n" in response.body
    assert b"store_size_bytes" not in response.body


async def test_draining_server_or_server_without_store_is_alive_but_not_ready(service):
    async def reason():
        assert await ask(service, "GET", "/healthz") == (200, {"status": "ok"})
        status, fields = await ask(service, "GET", "/readyz")
        assert (status, fields["status"]) == (503, "unavailable")
        return fields["reason"]

    await service.close_store()
    assert "database" in await reason()
    service.shared.lifecycle.reach(DRAINING)
    assert await reason() == "draining"


async def test_unknown_paths_and_methods_are_refused_in_json(service):
    for method in ("GET", "POST"):
        for path in ("/index.html", "/topics", "/healthz/", "/lobby/sessions", "/metrics/x", "/inspect", "/compact"):
            assert await ask(service, method, path) == (404, {"error": "Not found"})
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        for path in GETS:
            assert await ask(service, method, path) == (405, {"error": "Method not allowed"})


async def test_internal_error_is_500_and_logged(service, monkeypatch, caplog):
    async def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(service.store, "probe", fail)
    assert await ask(service, "GET", "/readyz") == (500, {"error": "Internal server error"})
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [ZeroDivisionError]
    caplog.clear()


async def test_admin_paths_are_404_on_the_public_listener(service):
    for path in GETS:
        assert (await service.call("GET", path)).status == 404


def test_idle_connections_do_not_block_probes(start):
    kinds = [b"", b"GET /", b"GET / HTTP/1.1\r\n\r\n"]
    kinds += [b"POST /actions/drain HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
    server = start("--admin-port", 0)
    port = int(server.admin_url.rpartition(":")[2])
    descriptors = f"/proc/{server.process.pid}/fd"
    before = len(os.listdir(descriptors))
    alive = head("GET", "/healthz", [("Host", "localhost")])
    with contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_S))

        clients = [connect() for _ in range(ADMIN_CONNECTIONS)]
        for client in clients:
            client.sendall(alive)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        for sent in kinds:
            idle = [connect() for _ in range(2 * ADMIN_CONNECTIONS)]
            for client in idle:
                with contextlib.suppress(ConnectionError):
                    client.sendall(sent)
            for _ in range(3):
                assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 200
            assert len(os.listdir(descriptors)) <= before + ADMIN_CONNECTIONS
        assert server.call("/health")[0] == 200
    assert server.stop() == 0


async def test_first_and_last_refused_request_of_a_reason_are_logged(service, caplog, monkeypatch):
    service.admin.policy.token = b"a token"
    refusals = service.admin.refusals
    rows = [
        (401, "/status", {}, "without the token of --admin-token-file"),
        (403, "/status", {"Origin": "https://a.example"}, "web pages have no access"),
        (403, "/healthz", {"Host": "a.example"}, "the Host is not an address; list this name in --admin-hosts"),
    ]
    for code, path, headers, _ in rows:
        for _ in range(3):
            assert (await service.ask_admin(path, **headers)).status == code
    refusals.check()
    later_s = asyncio.get_running_loop().time() + CALM_S
    monkeypatch.setattr(refusals, "_loop", types.SimpleNamespace(time=lambda: later_s))
    refusals.check()
    assert caplog.messages == [
        *(f"clients are refused ({status}): admin listener: {reason}" for status, _, _, reason in rows),
        *(
            f"clients are no longer refused ({status}): admin listener: {reason}; it was 3 requests"
            for status, _, _, reason in rows
        ),
    ]


HOSTS = ("localhost", "localhost:1", "127.0.0.1:9000", "127.8.8.8", "[::1]", "[::1]:80", "10.1.2.3:80", "[fd00::1]:1")
OTHERS = ("evil.example", "evil.example:3001", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.", "a")


async def test_host_is_an_address_or_localhost_or_a_name_of_the_setting(start_service):
    service = await start_service(admin_hosts=("signal", "signal.example"))
    for path in GETS:
        for host in (*HOSTS, "signal", "signal:3001", "SIGNAL.example:3001"):
            assert (await service.ask_admin(path, Host=host)).status == 200
        without_host = f"GET {path} HTTP/1.0\r\n\r\n".encode()  # only from old clients, never from browsers
        assert (await service.raw(without_host, "GET", service.admin_port)).status == 200
    rows = [*itertools.product(OTHERS[:1], GETS, ("1.1", "1.0"), ("GET", "HEAD", "POST", "OPTIONS"))]
    for host, path, version, method in [*rows, *itertools.product(OTHERS[1:], GETS, ("1.1",), ("GET",))]:
        for target, named in ((path, host), (f"http://{host}{path}", "localhost")):
            raw = f"{method} {target} HTTP/{version}\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode()
            response = await service.raw(raw, method, service.admin_port)
            assert response.status == 403, raw
            assert method == "HEAD" or "--admin-hosts" in response.json["error"]


# Data


async def test_figures_follow_the_service(service):
    await service.offer("lobby")
    code = await service.offer("attic")
    await service.post("/answer", code=code, answer="an answer", side="answerer")
    assert (await service.call("GET", "/nowhere")).status == 404
    only = await process(service)
    assert (only["version"], only["state"], only["worker"]) == (service.shared.version, "starting", 0)
    figures = only["figures"]
    assert (figures["requests_total"], figures["created_total"], figures["answered_total"]) == (4, 2, 1)
    assert (figures["unanswered_sessions"], figures["topics"]) == (1, 1)
    assert figures["memory_bytes"] > 1 << 20
    assert only["refusals"] == [[404, "path not found", 1, 1, 1, "path not found (404)"]]


async def test_clients_behind_a_proxy_and_origins_with_errors_are_shown(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,), rate_per_address=1)
    bad = {"origin": OTHER, "headers": [("X-Forwarded-For", "192.0.2.7")]}
    statuses = [(await service.call("GET", "/topics?page=0", **bad)).status for _ in range(20)]
    refused = statuses.count(429)
    await service.offer()
    only = await process(service)
    hammering, usual = only["clients"]
    counts = {"requests": 20, "refused": 20, "failed": 0}
    assert hammering == {"client": "192.0.2.7", **counts, "minute": counts}
    assert (usual["client"], usual["requests"], usual["refused"]) == ("127.0.0.1", 1, 0)
    broken, working = only["recent_origins"]
    assert broken == {"origin": OTHER, **counts, "minute": counts}
    assert (working["origin"], working["refused"]) == (ORIGIN, 0)
    text = "requests of an address (429)"
    assert [429, "requests of an address", refused, refused, refused, text] in only["refusals"]
    assert only["figures"]["failed_total"] == 0
    for _ in range(7):
        service.shared.rotate_recent()
    hammering = (await process(service))["clients"][0]
    assert hammering == {"client": "192.0.2.7", **counts, "minute": dict.fromkeys(counts, 0)}


async def test_refused_origins_have_their_own_rows_and_one_log_line_an_hour(start_service, caplog):
    listed = {"https://shop.example", "https://www.chat.example", "https://*.many.example"}
    service = await start_service(allowed_origins=AllowedOrigins(frozenset(listed)), rate_per_address=0)
    for number in range(700):  # an attacker invents origins
        await service.call("GET", "/health", origin=f"https://{number}.example")
    similar = {
        "https://www.shop.example": "https://shop.example",
        "http://shop.example": "https://shop.example",
        "https://chat.example": "https://www.chat.example",
        "https://many.example": "https://*.many.example",
    }
    for origin in [*similar, "https://shop.example", None] * 2:
        assert (await service.call("GET", "/health", origin=origin)).status in (200, 400, 403)
    async with service.connect() as connection:  # a WebSocket
        await connection.send(head("GET", "/ws", with_origin("https://chat.example", HANDSHAKE)))
        assert (await connection.receive()).status == 403
    lines = [record.getMessage() for record in caplog.records]
    for origin, other in similar.items():
        lists = f"lists only {other}, which is another origin; add it if they are yours"
        assert lines.count(f"pages of {origin} are refused: --allowed-origins {lists}") == 1
    assert lines[0].startswith("pages of https://0.example are refused: --allowed-origins does not list it; add it if")
    assert len(lines) == MAX_REFUSED_ORIGINS + len(similar)
    only = await process(service)
    rows = {row["origin"]: row["requests"] for row in only["refused_origins"]}
    assert rows.items() >= {**dict.fromkeys(similar, 2), "https://chat.example": 3, "others": 250}.items()
    assert {row["origin"]: row["requests"] for row in only["recent_origins"]} == {"https://shop.example": 2, "": 2}
    assert only["refusals"][0] == [403, "origin not allowed", 709, 709, 709, "origin not allowed (403)"]
    caplog.clear()


async def test_history_has_the_verdict_its_cause_and_its_time(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,))
    service.control.rotate()
    assert (await describe(service))["verdict"] == {"level": "well", "since": None, "causes": []}
    began_ms = service.shared.clock.now_ms()
    for _ in range(300):
        await service.call("GET", "/topics", origin=None, headers=[("X-Forwarded-For", "192.0.2.7")])
    for _ in range(10):
        await service.call("GET", "/topics")
    for _ in range(2):
        service.control.rotate()
    response = await service.ask_admin("/status?history=1")
    verdict = response.json["verdict"]
    (cause,) = verdict["causes"]
    expected = "97 % of the requests are refused, 300 in 5 minutes: no Origin; 100 % from 192.0.2.7"
    assert (verdict["level"], cause["rule"], cause["text"]) == ("strained", "refused", expected)
    assert abs(verdict["since"] - began_ms) < BOUND_S * 1000
    points = [history.Point(*point) for point in response.json["history"]["points"]]
    assert response.json["history"]["columns"] == list(history.Point._fields)
    assert sum(point.requests for point in points) >= 310
    assert (sum(point.refused for point in points), points[-1].troubles) == (300, ["refused"])
    for _ in range(history.MAX_POINTS + 5):
        service.control.rotate()
    assert (await describe(service))["verdict"]["level"] == "well"
    assert len((await service.ask_admin("/status?history=1")).json["history"]["points"]) <= history.MAX_POINTS + 1


async def test_settings_have_their_default_or_a_source(service):
    settings = (await process(service))["settings"]
    assert settings.keys() == {setting.name for setting in SETTINGS}
    assert settings["socket_mode"] == {"value": "660", "source": None}
    assert settings["protocols"] == {"value": "peerjs,y-webrtc,tracker,nostr,rxdb,matchbox,godot", "source": None}


async def test_store_has_the_largest_origins_and_topics_are_hidden(service):
    for origin, number in ((ORIGIN, 3), (OTHER, 1)):
        for index in range(number):
            await service.offer(f"hidden {index % 2}", origin=origin)
    store = (await describe(service))["store"]
    assert store == {
        "origins": [
            {"origin": ORIGIN, "unanswered_sessions": 3, "topics": 2},
            {"origin": OTHER, "unanswered_sessions": 1, "topics": 1},
        ],
        "topics": None,
    }
    assert (await process(service))["topics"] is None


async def test_topics_are_shown_on_a_setting(start_service):
    service = await start_service(admin_topics=True)
    for topic in ("large", "large", "small"):
        await service.offer(topic)
    async with connect(service) as client:
        await client.call("offer", topic="large", info="me", offer="held", hold=True)
        await client.call("subscribe", topic="small")
        state = await describe(service)
    assert state["store"]["topics"] == [
        {"origin": ORIGIN, "topic": "large", "unanswered_sessions": 3},
        {"origin": ORIGIN, "topic": "small", "unanswered_sessions": 1},
    ]
    (only,) = state["processes"]
    assert only["origins"] == [{"origin": ORIGIN, "watchers": 1, "held_offers": 1, "websockets": {"/ws": 1}}]
    topics = {entry["topic"]: entry for entry in only["topics"]}
    assert topics["large"] == {
        "origin": ORIGIN, "topic": "large", "watchers": 0, "held_offers": 1, "websockets": {}
    }  # fmt: skip
    assert topics["small"]["watchers"] == 1


async def test_topic_of_an_offer_that_was_taken_over_is_found(start_service):
    service = await start_service(admin_topics=True)
    secret = "a secret of the peer"
    async with connect(service) as first, connect(service) as second:
        offer = await first.call("offer", topic="lobby", info="me", offer="held", hold=True, secret=secret)
        await second.call("hold", code=offer["code"], secret=secret)
        (topic,) = (await process(service))["topics"]
    assert (topic["topic"], topic["held_offers"]) == ("lobby", 1)


def abort_all(service):
    for connection in list(service.server.state.connections):
        connection.abort()


async def test_connections_that_end_while_topics_are_found_are_left_out(start_service, monkeypatch):
    service = await start_service(admin_topics=True)
    secret = "a secret of the peer"

    async def find_topic(*_):
        abort_all(service)
        await asyncio.sleep(0)
        raise SessionNotFound

    monkeypatch.setattr(service.shared.store, "find_topic", find_topic)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            first, second = [await stack.enter_async_context(connect(service)) for _ in range(2)]
            offer = await first.call(
                "offer", topic="lobby", info="me", offer=f"held {number}", hold=True, secret=secret
            )
            await second.call("hold", code=offer["code"], secret=secret)
        (origin,) = (await process(service))["origins"]
    assert (origin["held_offers"], origin["websockets"]) == (3, {"/ws": 6})


async def test_nothing_that_peers_send_is_shown(service):
    code = await service.offer("hidden topic", info="hidden info", offer="hidden offer")
    await service.call("POST", "/answer", {"code": code, "side": "answerer", "candidate": "hidden candidate"})
    await service.call("GET", "/hidden/hidden")
    async with connect(service) as client:
        await client.call("subscribe", topic="hidden topic")
        text = (await service.ask_admin("/status")).body.decode()
    assert "hidden" not in text
    assert code not in text


async def test_wake_ups_are_measured(service):
    code = await service.offer()
    before = sum((await process(service))["figures"]["wake_up_seconds"]["counts"])
    waiting = asyncio.create_task(service.post("/poll", code=code, side="offerer", wait=BOUND_S))
    await until(lambda: service.shared.waits)
    await service.post("/answer", code=code, answer="an answer", side="answerer")
    assert (await asyncio.wait_for(waiting, BOUND_S))["answer"] == "an answer"
    figures = (await process(service))["figures"]
    assert sum(figures["wake_up_seconds"]["counts"]) == before + 1
    assert figures["waiting_requests"] == 0
    assert not service.shared.waits


async def test_addresses_show_how_much_of_each_limit_they_use(start_service):
    limits = {"max_connections_per_address": 4, "rate_per_address": 10, "max_sessions_per_address": 10}
    service = await start_service(unlimited_addresses=(), **limits)
    kept = [(await asyncio.open_connection("127.0.0.1", service.port))[1] for _ in range(2)]
    for _ in range(5):
        await service.offer()
    (address,) = (await process(service))["addresses"]
    assert (address["address"], address["connections"], address["waiting"]) == ("127.0.0.1", 2, 0)
    used = address["used"]
    assert (used["connections"], used["waiting"]) == (0.5, 0)
    assert 0.4 < used["sessions"] <= 0.5
    assert 0.02 < used["requests"] < 0.06
    assert 0 < used["bytes"] < 0.01
    for writer in kept:
        writer.close()
        await writer.wait_closed()


async def test_largest_of_many_addresses_are_shown(service, monkeypatch):
    monkeypatch.setattr(status, "SLICE", 7)
    limits = service.shared.limits
    for number in range(50):
        for _ in range(number):
            limits.connected(f"198.51.100.{number}", 0)
    found = (await process(service))["addresses"]
    assert [address["connections"] for address in found] == list(range(49, 29, -1))


async def test_latest_warnings_are_shown(service):
    log = logging.getLogger("tornado_signal.test")
    log.addHandler(logs._recent)
    try:
        for number in range(logs.MAX_RECENT + 1):
            log.warning("warning %d", number)
        log.info("not shown")
        found = (await process(service))["log"]
    finally:
        log.removeHandler(logs._recent)
        logs._recent.records.clear()
    assert [line["message"] for line in found] == [f"warning {number}" for number in range(1, logs.MAX_RECENT + 1)]
    assert found[0].keys() == {"time", "level", "logger", "message"}


# Access


async def test_only_the_own_page_and_programs_of_this_machine_have_access_and_no_page_can_act(service):
    for more, allowed in [
        *(({"Sec_Fetch_Site": site}, True) for site in ("same-origin", "none")),
        *(({"Sec_Fetch_Site": site}, False) for site in ("same-site", "cross-site")),
        ({"Origin": "http://localhost"}, False),
    ]:
        assert (await service.ask_admin("/status", **more)).status == (200 if allowed else 403)
        acting = await service.ask_admin("/actions/drain", "POST", b"", **more)
        assert (acting.status, service.shared.lifecycle.state < LEAVING) == (403, True)
    for host, allowed in (("localhost", True), ("evil.example", False), ("192.0.2.1", False)):
        assert (await service.ask_admin("/status", Host=host)).status == (200 if allowed else 403)


async def test_page_contains_no_data_and_allows_only_its_own_files(service):
    for path, media_type in (("/", "html"), ("/operator.js", "javascript"), ("/operator.css", "css")):
        response = await service.ask_admin(path, Host="signal.internal")
        assert response.status == 200
        assert response.headers["Content-Type"] == f"text/{media_type}; charset=utf-8"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]


# Actions


async def test_connections_of_an_origin_are_closed_and_others_stay(service):
    async with service.connect() as stream, connect(service) as client, connect(service, origin=OTHER) as other:
        await stream.send(request("GET", "/lobby/events"))
        await stream.reader.readuntil(b"retry: ")
        assert await act(service, "disconnect", origin=ORIGIN) == {"connections": 2}
        assert await client.closed() == (1008, "closed by the operator")
        assert await other.call("health")
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(stream.reader.read(), BOUND_S)


async def test_clients_of_a_topic_a_session_or_a_token_are_closed(start_service, tmp_path):
    service = await start_service(auth_keys=write_secret(tmp_path / "keys"))
    ends_s = service.clock.now_ms() / 1000 + 600

    async def of(stack, sub):
        client = await stack.enter_async_context(connect(service))
        await client.call("authorize", token=make_token({"exp": ends_s, "sub": sub}))
        return client

    async with contextlib.AsyncExitStack() as stack:
        holder, watcher, other, named = [await of(stack, sub) for sub in ("a", "b", "c", "d")]
        await watcher.call("subscribe", topic="lobby")
        codes = [
            (await client.call("offer", topic=topic, info="i", offer="o", hold=True))["code"]
            for client, topic in ((holder, "lobby"), (other, "attic"))
        ]
        assert await act(service, "disconnect", origin=OTHER, topic="lobby") == {"connections": 0}
        assert await act(service, "disconnect", origin=ORIGIN, topic="lobby") == {"connections": 2}
        for client in (holder, watcher):
            assert await client.closed() == (1008, "closed by the operator")
        assert await act(service, "disconnect", origin=ORIGIN, code=codes[0]) == {"connections": 0}
        assert await act(service, "disconnect", origin=ORIGIN, code=codes[1]) == {"connections": 1}
        assert await other.closed() == (1008, "closed by the operator")
        assert await act(service, "disconnect", subject="d") == {"connections": 1}
        assert await named.closed() == (1008, "closed by the operator")


async def test_session_is_withdrawn_by_its_code(service):
    first, second = [await service.offer() for _ in range(2)]
    assert await act(service, "withdraw", origin=OTHER, code=first) == {"sessions": 0}
    assert await act(service, "withdraw", origin=ORIGIN, code=first) == {"sessions": 1}
    assert [session["code"] for session in await service.sessions()] == [second]


async def test_connections_that_end_during_an_action_are_left_out(service, monkeypatch, caplog):
    monkeypatch.setattr(actions, "CLOSED_AT_ONCE", 1)
    monkeypatch.setattr(actions, "end", lambda *_: abort_all(service))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(connect(service))
        assert await act(service, "disconnect", origin=ORIGIN) == {"connections": 1}
    assert logged_actions(caplog) == ['disconnect {"origin": "https://app.example"}: {"connections": 1}']


async def test_failed_action_is_logged(service, monkeypatch, caplog):
    def sessions(*_):
        raise Unavailable("test")

    monkeypatch.setattr(service.shared.store, "sessions", sessions)
    body = json.dumps({"origin": ORIGIN, "topic": "lobby"}).encode()
    assert (await service.ask_admin("/actions/withdraw", "POST", body)).status == 503
    expected = 'withdraw {"origin": "https://app.example"}: {"error": "Unavailable"}'
    assert logged_actions(caplog) == [expected]


async def test_idle_connection_of_a_proxy_stays_and_its_websocket_is_closed(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,))
    forwarded = [("X-Forwarded-For", "192.0.2.7")]
    async with service.connect() as proxy, connect(service, headers=forwarded) as client:
        await proxy.send(request("GET", "/topics", headers=forwarded))
        assert (await proxy.receive()).status == 200
        assert await act(service, "disconnect", address="192.0.2.7") == {"connections": 1}
        assert await client.closed() == (1008, "closed by the operator")
        await proxy.send(request("GET", "/topics"))
        assert (await proxy.receive()).status == 200


async def test_blocked_network_is_refused_until_it_is_unblocked(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,))
    blocked, other = [("X-Forwarded-For", "192.0.2.7")], [("X-Forwarded-For", "198.51.100.7")]
    async with connect(service, headers=blocked) as client:
        assert await act(service, "block", address="192.0.2.0/24", seconds=60) == {"connections": 1}
        assert await client.closed() == (1008, "blocked by the operator")
    response = await service.call("GET", "/topics", headers=blocked)
    assert (response.status, response.json) == (429, {"error": "Too many requests"})
    assert int(response.headers["Retry-After"]) > 0
    assert (await service.call("GET", "/topics", headers=other)).status == 200
    only = await process(service)
    ((network, until_ms),) = only["blocks"]
    assert (network, until_ms - service.shared.clock.now_ms()) == ("192.0.2.0/24", 60_000)
    assert [429, "blocked", 1, 1, 1, "blocked (429)"] in only["refusals"]
    assert await act(service, "unblock", address="192.0.2.0/24") == {"blocked": True}
    assert await act(service, "unblock", address="192.0.2.0/24") == {"blocked": False}
    for address in ("::ffff:192.0.2.7", "64:ff9b::c000:207", "2002:c000:207::/48", "2002:c000:207:8:9::"):
        await act(service, "block", address=address, seconds=60)
        assert (await service.call("GET", "/topics", headers=blocked)).status == 429
        assert await act(service, "unblock", address="::ffff:192.0.2.0/120") == {"blocked": False}
        assert await act(service, "unblock", address="192.0.2.7") == {"blocked": True}
        assert (await service.call("GET", "/topics", headers=blocked)).status == 200


async def test_block_of_another_server_closes_connections_with_that_reason(service):
    """A server that takes blocks over closes nothing at first."""
    url = f"ws://127.0.0.1:{service.port}"
    sent = {"/ws ": b"", "/ws": b'{"jsonrpc":"2.0","id":1,"method":"health"}', "/y-webrtc": b'{"type":"ping"}'}
    async with contextlib.AsyncExitStack() as stack:
        clients = {path: await stack.enter_async_context(RpcClient(url + path.strip(), ORIGIN)) for path in sent}
        service.shared.limits.block(ipaddress.ip_network("127.0.0.1"), 0)
        for path, client in clients.items():
            await (client.socket.send(sent[path].decode()) if sent[path] else client.socket.ping())
            assert (await client.closed(), client.socket.close_reason) == (1008, "blocked by the operator")


async def test_block_of_an_ipv6_address_is_that_of_its_client(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,))
    await act(service, "block", address="2001:db8::1", seconds=60)
    for address, expected in (("2001:db8::2", 429), ("2001:db8:0:1::1", 200)):
        assert (await service.call("GET", "/topics", headers=[("X-Forwarded-For", address)])).status == expected


async def test_without_a_block_no_verdict_is_kept(start_service):
    service = await start_service(trusted_proxies=(LOOPBACK,), rate_per_address=1)
    headers = [("X-Forwarded-For", "192.0.2.7")]
    statuses = [(await service.call("GET", "/topics", headers=headers)).status for _ in range(12)]
    assert statuses[-1] == 429
    assert not service.shared.limits._blocked


async def test_connections_of_a_blocked_address_are_refused(service):
    await act(service, "block", address="127.0.0.1", seconds=60)
    async with service.connect() as connection:
        await connection.send(request("GET", "/topics"))
        assert (await connection.receive()).status == 429


async def test_block_ends_after_its_time(service, pass_time):
    await act(service, "block", address="192.0.2.7", seconds=100)
    await pass_time(99)
    assert service.shared.limits.is_blocked("192.0.2.7")
    await pass_time(2)
    assert not service.shared.limits.is_blocked("192.0.2.7")
    assert not service.shared.limits.blocks


async def test_sessions_of_a_topic_are_withdrawn_and_others_stay(service):
    await service.offer("lobby")
    secret = "a secret of the peer"
    await service.post("/lobby/offer", info="me", offer="owned", secret=secret)
    await service.offer("attic")
    await service.offer("lobby", origin=OTHER)
    assert await act(service, "withdraw", origin=ORIGIN, topic="lobby") == {"sessions": 2}
    assert await service.topics() == [("attic", 1)]
    assert await service.topics(origin=OTHER) == [("lobby", 1)]


async def test_drain_stops_the_server(service):
    assert await act(service, "drain") == {"state": "leaving"}
    await asyncio.wait_for(service.shared.lifecycle.reached(LEAVING), BOUND_S)


INVALID = [
    ("disconnect", {}, "one of these is required"),
    ("disconnect", {"address": "192.0.2.1", "origin": ORIGIN}, "one of these is required"),
    ("disconnect", {"address": "signal.example"}, "address must be"),
    ("disconnect", {"address": 3_221_225_985}, "address must be"),
    ("block", {"address": "64:ff9b::/96", "seconds": 60}, "address must be"),
    ("block", {"address": "2002::/16", "seconds": 60}, "address must be"),
    ("block", {"address": "192.0.2.1"}, "seconds must be"),
    ("block", {"address": "192.0.2.1", "seconds": 0}, "seconds must be"),
    ("block", {"address": "192.0.2.1", "seconds": True}, "seconds must be"),
    ("block", {"address": "192.0.2.1", "seconds": 10**9}, "seconds must be"),
    ("block", {"address": "10.0.0.0/8", "seconds": 60}, "includes a trusted proxy"),
    ("block", {"address": "10.1.2.3", "seconds": 60}, "includes a trusted proxy"),
    ("disconnect", {"topic": "lobby"}, "one of these is required"),
    ("disconnect", {"origin": ORIGIN, "code": "x"}, "code must be"),
    ("disconnect", {"subject": ""}, "subject must be"),
    ("withdraw", {"origin": ORIGIN}, "exactly one of topic and code"),
    ("withdraw", {"origin": ORIGIN, "code": 1}, "code must be"),
    ("withdraw", {"origin": ORIGIN, "topic": ""}, "topic must be"),
    ("log-level", {"level": "loud"}, "level must be one of"),
    ("log-level", {"level": ["info"]}, "level must be one of"),
    ("drain", {"force": True}, "drain has no field 'force'"),
]


async def test_invalid_fields_are_refused_and_change_nothing(start_service):
    service = await start_service(trusted_proxies=(ipaddress.ip_network("10.1.2.0/24"),))
    for name, fields, error in INVALID:
        assert error in await act(service, name, 400, **fields)
    assert not service.shared.limits.blocks
    assert service.shared.lifecycle.state < LEAVING


async def test_body_that_is_not_an_object_is_refused(service):
    for body in (b"[]", b"{", b"null", b'"x"', b'{"address":' + b"[" * 8000):
        response = await service.ask_admin("/actions/drain", "POST", body)
        assert (response.status, response.json) == (400, {"error": "the body must be a JSON object", "action": "drain"})
    announced = [LOCAL, ("Content-Length", str(MAX_BODY_BYTES + 1))]
    chunk = f"\r\n{MAX_BODY_BYTES + 1:x}\r\n".encode() + b" " * (MAX_BODY_BYTES + 1)
    for headers, body in ((announced, b""), ([LOCAL, ("Transfer-Encoding", "chunked")], chunk.lstrip())):
        response = await service.raw(head("POST", "/actions/drain", headers) + body, "POST", service.admin_port)
        assert (response.status, response.json) == (413, {"error": "Request entity too large"})
    assert service.shared.lifecycle.state < LEAVING


async def test_unknown_actions_and_parameters_are_refused(service):
    assert (await service.ask_admin("/actions/format", "POST", b"")).status == 404
    assert (await service.ask_admin("/status?history=2")).status == 400


def logged_actions(caplog):
    """The logged actions of an operator on this machine."""
    records = [record for record in caplog.records if record.name == "tornado_signal.operator.actions"]
    assert {record.levelname for record in records} <= {"WARNING"}
    return [record.getMessage().removeprefix("operator at 127.0.0.1: ") for record in records]


async def test_actions_are_logged_without_data_of_peers(service, caplog):
    await act(service, "withdraw", origin='an "origin"\nwith lines', topic="a topic")
    assert logged_actions(caplog) == [r'withdraw {"origin": "an \"origin\"\nwith lines"}: {"sessions": 0}']
