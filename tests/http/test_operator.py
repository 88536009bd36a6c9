"""The admin listener of one server: probes, metrics, the operator's page, its data and its actions."""

import asyncio
import contextlib
import ipaddress
import itertools
import json
import logging
import os
import socket

from support.command import BOUND_S
from support.rpc import open_socket, until
from support.service import HANDSHAKE, ORIGIN, OTHER, head, request, with_origin
from support.tokens import make_token, write_secret

from tornado_signal.errors import SessionNotFound, Unavailable
from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.operator import actions, history, status
from tornado_signal.operator.handlers import MAX_BODY_BYTES
from tornado_signal.service.refusals import CALM_S
from tornado_signal.service.service import MAX_REFUSED_ORIGINS
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import SETTINGS
from tornado_signal.system import logs
from tornado_signal.system.lifecycle import LEAVING

LOCAL = ("Host", "localhost")
BEHIND_PROXY = {"trusted_proxies": (ipaddress.ip_network("127.0.0.1"),)}
PEER_SECRET = "a secret of the peer"


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
    response = await service.ask_admin(f"/actions/{name}", "POST", json.dumps(fields).encode())
    assert response.status == status, response
    if status == 400:
        assert response.json["action"] == name
        return response.json["error"]
    if status != 200:
        return None
    assert response.json["missing"] == []
    (result,) = response.json["results"]
    assert result.pop("process") == f"localhost:{service.port}"
    return result


async def hold(client, topic, offer="held"):
    offer = await client.call("offer", topic=topic, info="me", offer=offer, hold=True, secret=PEER_SECRET)
    return offer["code"]


def forwarded(address):
    return [("X-Forwarded-For", address)]


async def test_responses_are_compressed_for_clients_that_accept_it_and_the_page_allows_only_its_own_files(service):
    for path in ("/", "/status", "/metrics", "/readyz", "/healthz"):
        response = await service.ask_admin(path, method="HEAD")
        assert (response.status, response.body) == (200, b""), path
    for path in ("/", "/status", "/metrics"):
        response, plain = await service.ask_admin(path, Accept_Encoding="gzip"), await service.ask_admin(path)
        assert (response.headers["Content-Encoding"], plain.headers.get("Content-Encoding")) == ("gzip", None)
        assert len(response.body) < len(plain.body) / 2
    for path, media_type in (("/", "html"), ("/operator.js", "javascript"), ("/operator.css", "css")):
        response = await service.ask_admin(path, Host="signal.internal")  # a page without data
        assert (response.status, response.headers["Content-Type"]) == (200, f"text/{media_type}; charset=utf-8")
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["Referrer-Policy"] == "no-referrer"


# Probes and metrics

GETS = ("/healthz", "/readyz", "/metrics")


async def refusal(service, method, path):
    response = await service.ask_admin(path, method)
    assert response.headers["Content-Type"] == "application/json"
    assert "Access-Control-Allow-Origin" not in response.headers
    return response.status, response.json["error"]


async def test_metrics_need_no_data_directory_and_an_internal_error_is_logged(service, monkeypatch, caplog):
    data = service.settings.data_dir
    aside = data.rename(data.with_name("aside"))
    data.touch()
    response = await service.ask_admin("/metrics")
    data.unlink()
    aside.rename(data)
    assert response.status == 200
    assert b"\ntornado_signal_store_available 1.0\n" in response.body
    assert b"store_size_bytes" not in response.body
    monkeypatch.setattr(service.store, "probe", lambda: 1 / 0)
    assert await refusal(service, "GET", "/readyz") == (500, "Internal server error")
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [ZeroDivisionError]
    caplog.clear()


async def test_unknown_paths_and_methods_are_refused_in_json_and_the_public_listener_has_no_admin_paths(service):
    for method in ("GET", "POST"):
        for path in ("/index.html", "/topics", "/healthz/", "/lobby/sessions", "/metrics/x", "/inspect", "/compact"):
            assert await refusal(service, method, path) == (404, "Not found")
    for path in GETS:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert await refusal(service, method, path) == (405, "Method not allowed")
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
                assert server.ask_admin("/readyz")[0] == 200
            assert len(os.listdir(descriptors)) <= before + ADMIN_CONNECTIONS
        assert server.call("/health")[0] == 200
    assert server.stop() == 0


async def test_first_and_last_refused_request_of_a_reason_are_logged(service, caplog, pass_time):
    service.admin.policy.token = b"a token"
    rows = [
        (401, "/status", {}, "without the token of --admin-token-file"),
        (403, "/status", {"Origin": "https://a.example"}, "web pages have no access"),
        (403, "/healthz", {"Host": "a.example"}, "the Host is not an address; list this name in --admin-hosts"),
    ]
    for code, path, headers, _ in rows * 3:
        assert (await service.ask_admin(path, **headers)).status == code
    service.admin.refusals.check()
    await pass_time(CALM_S)
    service.admin.refusals.check()
    reasons = [f"({code}): admin listener: {reason}" for code, _, _, reason in rows]
    ends = [f"clients are no longer refused {reason}; it was 3 requests" for reason in reasons]
    assert caplog.messages == [*(f"clients are refused {reason}" for reason in reasons), *ends]


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


async def test_figures_follow_the_service_and_settings_have_their_default_or_a_source(service):
    await service.offer("lobby")
    code = await service.offer("attic")
    waiting = asyncio.create_task(service.post("/poll", code=code, side="offerer", wait=BOUND_S))
    await until(lambda: service.shared.waits)
    await service.post("/answer", code=code, answer="an answer", side="answerer")
    assert (await asyncio.wait_for(waiting, BOUND_S))["answer"] == "an answer"
    assert (await service.call("GET", "/nowhere")).status == 404
    only = await process(service)
    assert (only["version"], only["state"], only["worker"]) == (service.shared.version, "starting", 0)
    figures = only["figures"]
    assert (figures["requests_total"], figures["created_total"], figures["answered_total"]) == (5, 2, 1)
    assert (figures["unanswered_sessions"], figures["topics"]) == (1, 1)
    assert (sum(figures["wake_up_seconds"]["counts"]), figures["waiting_requests"]) == (1, 0)
    assert not service.shared.waits
    assert figures["memory_bytes"] > 1 << 20
    assert only["refusals"] == [[404, "path not found", 1, 1, 1, "path not found (404)"]]
    assert only["settings"].keys() == {setting.name for setting in SETTINGS}
    assert only["settings"]["socket_mode"] == {"value": "660", "source": None}
    protocols = {"value": "peerjs,y-webrtc,tracker,nostr,rxdb,matchbox,godot", "source": None}
    assert only["settings"]["protocols"] == protocols


async def test_clients_behind_a_proxy_and_origins_with_errors_are_shown(start_service):
    service = await start_service(**BEHIND_PROXY, rate_per_address=1)
    bad = {"origin": OTHER, "headers": forwarded("192.0.2.7")}
    statuses = [(await service.call("GET", "/topics?page=0", **bad)).status for _ in range(20)]
    refused = statuses.count(429)
    assert not service.shared.limits._is_in_block.cache_info().currsize  # without a block no verdict is kept
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
    async with service.connect() as connection:
        for number in range(700):  # an attacker invents origins
            await connection.send(request("GET", "/health", origin=f"https://{number}.example"))
            assert (await connection.receive()).status == 403
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
    service = await start_service(**BEHIND_PROXY)
    service.control.rotate()
    assert (await describe(service))["verdict"] == {"level": "well", "since": None, "causes": []}
    began_ms = service.shared.clock.now_ms()
    async with service.connect() as connection:
        for origin, headers in [(None, forwarded("192.0.2.7"))] * 300 + [(ORIGIN, [])] * 10:
            await connection.send(request("GET", "/topics", origin=origin, headers=headers))
            await connection.receive()
    for _ in range(2):
        service.control.rotate()
    response = await service.ask_admin("/status?history=1")
    verdict = response.json["verdict"]
    (cause,) = verdict["causes"]
    expected = "97 % of the requests are refused, 300 in 5 minutes: no Origin; 100 % from 192.0.2.7"
    assert (verdict["level"], cause["rule"], cause["text"]) == ("strained", "refused", expected)
    assert abs(verdict["since"] - began_ms) < BOUND_S * 1000
    assert response.json["history"]["columns"] == list(history.Point._fields)
    points = [history.Point(*point) for point in response.json["history"]["points"]]
    assert sum(point.requests for point in points) >= 310
    assert (sum(point.refused for point in points), points[-1].troubles) == (300, ["refused"])


async def test_store_has_the_largest_origins_and_nothing_that_peers_send_is_shown(service):
    for origin, topics in ((ORIGIN, ("hidden 0", "hidden 1", "hidden 0")), (OTHER, ("hidden 0",))):
        for topic in topics:
            code = await service.offer(topic, info="hidden info", offer="hidden offer", origin=origin)
    answer = {"code": code, "side": "answerer", "candidate": "hidden candidate"}
    assert (await service.call("POST", "/answer", answer, origin=OTHER)).status == 200
    await service.call("GET", "/hidden/hidden")
    async with open_socket(service) as client:
        await client.call("subscribe", topic="hidden 0")
        text = (await service.ask_admin("/status")).body.decode()
    assert "hidden" not in text
    assert code not in text
    state = json.loads(text)
    assert state["store"] == {
        "origins": [
            {"origin": ORIGIN, "unanswered_sessions": 3, "topics": 2},
            {"origin": OTHER, "unanswered_sessions": 1, "topics": 1},
        ],
        "topics": None,
    }
    assert state["processes"][0]["topics"] is None


async def test_topics_are_shown_on_a_setting_also_of_an_offer_that_was_taken_over(start_service):
    service = await start_service(admin_topics=True)
    for topic in ("large", "large", "small"):
        await service.offer(topic)
    async with open_socket(service) as client, open_socket(service) as second:
        await client.call("subscribe", topic="small")
        code = await hold(client, "large")
        for holder in (client, second):
            await holder.call("hold", code=code, secret=PEER_SECRET)
            state = await describe(service)
            assert state["store"]["topics"] == [
                {"origin": ORIGIN, "topic": "large", "unanswered_sessions": 3},
                {"origin": ORIGIN, "topic": "small", "unanswered_sessions": 1},
            ]
            (only,) = state["processes"]
            assert only["origins"] == [{"origin": ORIGIN, "watchers": 1, "held_offers": 1, "websockets": {"/ws": 2}}]
            large, small = sorted(only["topics"], key=lambda entry: entry["topic"])
            counts = {"watchers": 0, "held_offers": 1, "websockets": {}}
            assert large == {"origin": ORIGIN, "topic": "large", **counts}
            assert (small["topic"], small["watchers"]) == ("small", 1)


def abort_all(service):
    for connection in list(service.server.state.connections):
        connection.abort()


async def test_connections_that_end_while_topics_are_found_are_left_out(start_service, monkeypatch):
    service = await start_service(admin_topics=True)

    async def find_topic(*_):
        abort_all(service)
        await asyncio.sleep(0)
        raise SessionNotFound

    monkeypatch.setattr(service.shared.store, "find_topic", find_topic)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            first, second = [await stack.enter_async_context(open_socket(service)) for _ in range(2)]
            await second.call("hold", code=await hold(first, "lobby", f"held {number}"), secret=PEER_SECRET)
        (origin,) = (await process(service))["origins"]
    assert (origin["held_offers"], origin["websockets"]) == (3, {"/ws": 6})


async def test_largest_addresses_show_how_much_of_each_limit_they_use(start_service, monkeypatch):
    monkeypatch.setattr(status, "SLICE", 7)
    settings = {"max_connections_per_address": 4, "rate_per_address": 10, "max_sessions_per_address": 10}
    service = await start_service(unlimited_addresses=(), **settings)
    async with service.connect(), service.connect():
        for _ in range(5):
            await service.offer()
        (address,) = (await process(service))["addresses"]
    assert (address["address"], address["connections"], address["waiting"]) == ("127.0.0.1", 2, 0)
    used = address["used"]
    assert (used["connections"], used["waiting"]) == (0.5, 0)
    assert 0.4 < used["sessions"] <= 0.5
    assert 0.02 < used["requests"] < 0.06
    assert 0 < used["bytes"] < 0.01
    service = await start_service(max_connections_per_address=100)
    for number in range(50):
        for _ in range(number):
            service.shared.limits.connected(f"198.51.100.{number}", 0)
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


async def test_only_the_own_page_and_programs_of_this_machine_have_access_and_no_page_can_act(service):
    for headers, code in (
        *(({"Sec_Fetch_Site": site}, 200) for site in ("same-origin", "none")),
        *(({"Sec_Fetch_Site": site}, 403) for site in ("same-site", "cross-site")),
        ({"Origin": "http://localhost"}, 403),
    ):
        assert (await service.ask_admin("/status", **headers)).status == code
        assert (await service.ask_admin("/actions/drain", "POST", b"", **headers)).status == 403
        assert service.shared.lifecycle.state < LEAVING
    for host in ("evil.example", "192.0.2.1"):
        assert (await service.ask_admin("/status", Host=host)).status == 403


# Actions


async def test_clients_of_an_origin_a_topic_a_session_or_a_token_are_closed_and_others_stay(start_service, tmp_path):
    service = await start_service(auth_keys=write_secret(tmp_path / "keys"))
    ends_s = service.clock.now_ms() / 1000 + 600

    async def of(stack, sub, origin=ORIGIN):
        client = await stack.enter_async_context(open_socket(service, origin))
        await client.call("authorize", token=make_token({"exp": ends_s, "sub": sub}))
        return client

    async with contextlib.AsyncExitStack() as stack:
        holder, watcher, other, named, last = [await of(stack, sub) for sub in ("a", "b", "c", "d", "e")]
        stranger = await of(stack, "d2", OTHER)
        stream = await stack.enter_async_context(service.connect())
        headers = [("Authorization", f"Bearer {make_token({'exp': ends_s})}")]
        await stream.send(request("GET", "/attic/events", headers=headers))
        await stream.reader.readuntil(b"retry: ")
        await watcher.call("subscribe", topic="lobby")
        codes = [await hold(client, topic) for client, topic in ((holder, "lobby"), (other, "attic"))]
        for fields, closed, connections in (
            ({"origin": OTHER, "topic": "lobby"}, [], 0),
            ({"origin": ORIGIN, "topic": "lobby"}, [holder, watcher], 2),
            ({"origin": ORIGIN, "code": codes[0]}, [], 0),
            ({"origin": ORIGIN, "code": codes[1]}, [other], 1),
            ({"subject": "d"}, [named], 1),
            ({"origin": ORIGIN}, [last], 2),
        ):
            assert await act(service, "disconnect", **fields) == {"connections": connections}
            for client in closed:
                assert await client.close_frame() == (1008, "closed by the operator")
        assert await stranger.call("health")
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(stream.reader.read(), BOUND_S)


def logged_actions(caplog):
    """The logged actions of an operator on this machine."""
    records = [record for record in caplog.records if record.name == "tornado_signal.operator.actions"]
    assert {record.levelname for record in records} <= {"WARNING"}
    return [record.getMessage().removeprefix("operator at 127.0.0.1: ") for record in records]


async def test_sessions_are_withdrawn_and_actions_logged_without_data_of_peers(service, monkeypatch, caplog):
    def sessions(*_):
        raise Unavailable("test")

    first, _ = [await service.offer("lobby") for _ in range(2)]
    await service.post("/lobby/offer", info="me", offer="owned", secret=PEER_SECRET)
    await service.offer("attic")
    await service.offer("lobby", origin=OTHER)
    assert await act(service, "withdraw", origin=OTHER, code=first) == {"sessions": 0}
    assert await act(service, "withdraw", origin=ORIGIN, code=first) == {"sessions": 1}
    assert first not in [session["code"] for session in await service.sessions()]
    assert await act(service, "withdraw", origin=ORIGIN, topic="lobby") == {"sessions": 2}
    assert await service.topics() == [("attic", 1)]
    assert await service.topics(origin=OTHER) == [("lobby", 1)]
    caplog.clear()
    await act(service, "withdraw", origin='an "origin"\nwith lines', topic="a topic")
    monkeypatch.setattr(service.shared.store, "sessions", sessions)
    await act(service, "withdraw", 503, origin=ORIGIN, topic="a topic")
    assert logged_actions(caplog) == [
        r'withdraw {"origin": "an \"origin\"\nwith lines"}: {"sessions": 0}',
        'withdraw {"origin": "https://app.example"}: {"error": "Unavailable"}',
    ]


async def test_connections_that_end_during_an_action_are_left_out(service, monkeypatch, caplog):
    monkeypatch.setattr(actions, "CLOSED_AT_ONCE", 1)
    monkeypatch.setattr(actions, "end", lambda *_: abort_all(service))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(open_socket(service))
        assert await act(service, "disconnect", origin=ORIGIN) == {"connections": 1}
    assert logged_actions(caplog) == ['disconnect {"origin": "https://app.example"}: {"connections": 1}']


async def test_idle_connection_of_a_proxy_stays_and_its_websocket_is_closed(start_service):
    service, headers = await start_service(**BEHIND_PROXY), forwarded("192.0.2.7")
    async with service.connect() as proxy, open_socket(service, additional_headers=headers) as client:
        await proxy.send(request("GET", "/topics", headers=headers))
        assert (await proxy.receive()).status == 200
        assert await act(service, "disconnect", address="192.0.2.7") == {"connections": 1}
        assert await client.close_frame() == (1008, "closed by the operator")
        await proxy.send(request("GET", "/topics"))
        assert (await proxy.receive()).status == 200


async def test_blocked_network_is_refused_until_it_is_unblocked_or_the_block_ends(start_service, pass_time):
    service, blocked = await start_service(**BEHIND_PROXY), forwarded("192.0.2.7")
    async with open_socket(service, additional_headers=blocked) as client:
        assert await act(service, "block", address="192.0.2.0/24", seconds=60) == {"connections": 1}
        assert await client.close_frame() == (1008, "blocked by the operator")
    response = await service.call("GET", "/topics", headers=blocked)
    assert (response.status, response.json) == (429, {"error": "Too many requests"})
    assert int(response.headers["Retry-After"]) > 0
    assert (await service.call("GET", "/topics", headers=forwarded("198.51.100.7"))).status == 200
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
    await act(service, "block", address="2001:db8::1", seconds=60)  # its client is a /64
    for address, expected in (("2001:db8::2", 429), ("2001:db8:0:1::1", 200)):
        assert (await service.call("GET", "/topics", headers=forwarded(address))).status == expected
    await pass_time(59)
    assert len(service.shared.limits.blocks) == 1
    await pass_time(2)
    assert not service.shared.limits.blocks


async def test_block_of_another_server_closes_connections_with_that_reason(service, open_raw):
    """A server that takes blocks over closes nothing at first."""
    sent = {"/ws": '{"jsonrpc":"2.0","id":1,"method":"health"}', "/y-webrtc": '{"type":"ping"}'}
    clients = [(await open_raw(service, path), message) for path, message in [("/ws", None), *sent.items()]]
    service.shared.limits.block(ipaddress.ip_network("127.0.0.1"), 0)
    for client, message in clients:
        await (client.send(message) if message else client.socket.ping())
        assert await client.ended() == (1008, "blocked by the operator")


INVALID = [  # an action, a part of the error, and fields
    ("disconnect", "one of these is required", {}, {"address": "192.0.2.1", "origin": ORIGIN}, {"topic": "lobby"}),
    ("disconnect", "address must be", {"address": "signal.example"}, {"address": 3_221_225_985}),
    ("disconnect", "code must be", {"origin": ORIGIN, "code": "x"}),
    ("disconnect", "subject must be", {"subject": ""}),
    ("block", "address must be", *({"address": each, "seconds": 60} for each in ("64:ff9b::/96", "2002::/16"))),
    ("block", "seconds must be", {"address": "192.0.2.1"}),
    ("block", "seconds must be", *({"address": "192.0.2.1", "seconds": each} for each in (0, True, 10**9))),
    ("block", "includes a trusted proxy", *({"address": each, "seconds": 60} for each in ("10.0.0.0/8", "10.1.2.3"))),
    ("withdraw", "exactly one of topic and code", {"origin": ORIGIN}),
    ("withdraw", "code must be", {"origin": ORIGIN, "code": 1}),
    ("withdraw", "topic must be", {"origin": ORIGIN, "topic": ""}),
    ("log-level", "level must be one of", {"level": "loud"}, {"level": ["info"]}),
    ("drain", "drain has no field 'force'", {"force": True}),
]


async def test_invalid_fields_are_refused_and_change_nothing(start_service):
    service = await start_service(trusted_proxies=(ipaddress.ip_network("10.1.2.0/24"),))
    for name, error, *rows in INVALID:
        for fields in rows:
            assert error in await act(service, name, 400, **fields)
    assert (await service.ask_admin("/actions/format", "POST", b"")).status == 404
    assert (await service.ask_admin("/status?history=2")).status == 400
    assert not service.shared.limits.blocks
    assert service.shared.lifecycle.state < LEAVING


async def test_body_that_is_not_an_object_is_refused_and_drain_stops_the_server(service):
    for body in (b"[]", b"{", b"null", b'"x"', b'{"address":' + b"[" * 8000):
        response = await service.ask_admin("/actions/drain", "POST", body)
        assert (response.status, response.json) == (400, {"error": "the body must be a JSON object", "action": "drain"})
    announced = [LOCAL, ("Content-Length", str(MAX_BODY_BYTES + 1))]
    chunk = f"{MAX_BODY_BYTES + 1:x}\r\n".encode() + b" " * (MAX_BODY_BYTES + 1)
    for headers, body in ((announced, b""), ([LOCAL, ("Transfer-Encoding", "chunked")], chunk)):
        response = await service.raw(head("POST", "/actions/drain", headers) + body, "POST", service.admin_port)
        assert (response.status, response.json) == (413, {"error": "Request entity too large"})
    assert service.shared.lifecycle.state < LEAVING
    assert await act(service, "drain") == {"state": "leaving"}
    await asyncio.wait_for(service.shared.lifecycle.reached(LEAVING), BOUND_S)
