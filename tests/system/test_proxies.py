"""Behind the real nginx, Caddy and HAProxy, with the configurations that come with the server."""

import asyncio
import contextlib
import ipaddress
import json
import re
import subprocess
import time

import pytest
from support.certificates import client_context
from support.paths import SYSTEMD
from support.proxies import EXAMPLES, PROXIES, CaddyPath, NginxPath, RequiredHAProxy, put
from support.redis_servers import free_port
from support.rpc import RpcClient, until
from support.service import (
    ORIGIN,
    WHO,
    allowed_origin,
    connected,
    head,
    invalid,
    refused,
    request,
    segment,
    with_origin,
)
from support.sse import open_stream
from support.waiting import run_command

from tornado_signal.http.error_responses import make_error_responder
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.system.sockets import open_sockets
from tornado_signal.transport import Server as Listener
from tornado_signal.transport import ServerState, websocket

BOUND_S = 20
HOPS = ["tcp", "unix"]  # how a proxy reaches the server
# Properties of a proxy's configuration are tested with each proxy, in both ways. Others are tested in turns.
TURNS = [("nginx", "unix"), ("caddy", "tcp"), ("haproxy", "unix")]
ELSEWHERE = "127.0.0.7"  # a client that is not the proxy
TRUSTED = (ipaddress.ip_network("127.0.0.1"), "unix")
FORGED = [
    ("X-Forwarded-For", "203.0.113.9"),
    ("X-Forwarded-For", "127.0.0.1, unix:"),
    ("X-Forwarded-Proto", "http"),
    ("X-Forwarded-Host", "forged.example"),
    ("X-Real-IP", "203.0.113.9"),
    ("Forwarded", "for=203.0.113.9;host=forged.example;proto=http"),
]
LARGE = 5_000_000
OFFER = {"info": "i", "offer": "o"}
NOT_PAST_NGINX = ["/a%00b", "/%00", "/..", "/%2e%2E"]
TOPICS = ["a/b", "/", "//", "%2F", "%", "%00", "a b", "a+b", "a?b#c", ".", "..a", "a\\b"]
TOPICS += ["~!$&'()*,;=:@", "é日本🙂", "\x01\x7f"]


class Proxied:
    """A proxy, and what clients do there. `tls` is an SSLContext that trusts it."""

    def __init__(self, proxy, tls):
        self.proxy, self.tls = proxy, tls

    def connect(self, **options):
        return connected(self.proxy.port, self.tls, **options)

    async def call(self, method, target, body=None, *, origin=ORIGIN, headers=(), bound_s=BOUND_S, **options):
        """Send a request through the proxy. Return its response or None."""
        async with asyncio.timeout(bound_s), self.connect(**options) as connection:
            host = f"127.0.0.1:{self.proxy.port}"
            await connection.send(request(method, target, body, origin, headers, host))
            return await connection.receive(method)

    async def post(self, target, /, **body):
        response = await self.call("POST", target, body)
        assert response.status == 200, response
        return response.json


class Through(Proxied):
    """A server in this process behind a proxy. `runs` are the paths that reached the server."""

    def __init__(self, service, *proxied):
        super().__init__(*proxied)
        self.service, self.runs = service, []
        run = service.application.run
        service.application.run = lambda request, *rest: (self.runs.append(request.path), run(request, *rest))[1]


def open_socket(through, **options):
    return RpcClient(f"wss://127.0.0.1:{through.proxy.port}/ws", ORIGIN, ssl=through.tls, **options)


@pytest.fixture(params=PROXIES)
def kind(request):
    return request.param


@pytest.fixture
def start_through(io_loop, start_service, start_proxy, pair, tmp_path):
    listeners = []

    async def start(kind, hop="tcp", idle_s=None, **settings):
        service = await start_service(**{"trusted_proxies": TRUSTED, **settings})
        service.application.routes["/who"] = WHO
        upstream = service.port
        if hop == "unix":
            upstream = tmp_path / "signal.sock"
            shared = service.shared
            listener = Listener(ServerState(service.application, make_error_responder(shared.log), shared.limits))
            sockets = open_sockets([f"unix:{upstream}"], 0, "--port", 0o600)
            await listener.start(sockets)
            listeners.append((listener, *sockets))
        proxy = start_proxy(kind, upstream, idle_s=idle_s)
        return Through(service, proxy, client_context(pair) if proxy.url.startswith("https:") else None)

    yield start
    for listener, listening in listeners:
        io_loop.run_sync(lambda listener=listener: listener.close(1.0))
        listening.close()


@pytest.fixture
def through(io_loop, start_through, kind):
    return io_loop.run_sync(lambda: start_through(kind))


@pytest.mark.needs("curl")
@pytest.mark.parametrize("hop", HOPS)
async def test_neither_the_client_nor_the_own_origin_can_be_forged(kind, hop, start_through):
    """The client is the one that connects to the proxy. The server's own origin is the one that browsers see."""
    through = await start_through(kind, hop)
    for host, source in (("127.0.0.1", ELSEWHERE), ("::1", None)):
        response = await through.call("GET", "/who", headers=FORGED, host=host, source=source)
        assert (response.status, response.json) == (200, {"client": source or host})
    networks = [(await through.call("GET", "/nearby", headers=headers)).json for headers in ([], FORGED)]
    assert networks[0] == networks[1]
    response = await through.call("GET", "/topics", origin=None, headers=[("Sec-Fetch-Site", "same-origin"), *FORGED])
    assert (response.status, allowed_origin(response)) == (200, through.proxy.url)
    options = ["--http2", "--silent", "--cacert", through.proxy.pair.certificate, "--dump-header", "-"]
    options += ["--header", "Sec-Fetch-Site: same-origin", f"{through.proxy.url}/topics"]
    process = await asyncio.create_subprocess_exec("curl", *options, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    assert re.match(b"HTTP/2 200 ", said)
    assert f"access-control-allow-origin: {through.proxy.url}\r\n".encode() in said


@pytest.mark.parametrize("example", EXAMPLES)
async def test_nothing_can_be_forged_with_any_example_of_the_documentation(example, start_through):
    through = await start_through(example)
    path = "/signal" if example in (NginxPath, CaddyPath) else ""
    scheme = "https" if example is RequiredHAProxy else "http"
    for headers in ([], FORGED):
        response = await through.call("GET", f"{path}/who", headers=headers, source=ELSEWHERE)
        assert (response.status, response.json) == (200, {"client": ELSEWHERE}), through.proxy.log()
        own = [("Sec-Fetch-Site", "same-origin"), *headers]
        response = await through.call("GET", f"{path}/topics", origin=None, headers=own, source=ELSEWHERE)
        assert (response.status, allowed_origin(response)) == (200, f"{scheme}://127.0.0.1:{through.proxy.port}")


async def test_origins_and_preflights_are_passed_on(through):
    for origin in (ORIGIN, "null", "https://other.example"):
        response = await through.call("POST", "/lobby/offer", {"info": origin, "offer": "o"}, origin=origin)
        assert (response.status, allowed_origin(response)) == (200, origin)
        listed = (await through.call("GET", "/lobby/sessions", origin=origin)).json["sessions"]
        assert [each["info"] for each in listed] == [origin]
    assert refused(await through.call("GET", "/topics", origin=None)) == (400, invalid("Origin"))
    preflight = await through.call("OPTIONS", "/lobby/offer", headers=[("Access-Control-Request-Method", "POST")])
    assert (preflight.status, allowed_origin(preflight)) == (204, ORIGIN)
    assert preflight.headers["Access-Control-Max-Age"] == "7200"


async def test_topics_of_any_characters_arrive(through):
    for topic in TOPICS:
        code = (await through.post(f"/{segment(topic)}/offer", **OFFER))["code"]
        listed = (await through.call("GET", f"/{segment(topic)}/sessions")).json["sessions"]
        assert [each["code"] for each in listed] == [code], topic
    assert await through.service.topics() == [(topic, 1) for topic in sorted(TOPICS)]


async def test_nul_and_dots_in_paths(start_through):
    """The proxy nginx itself refuses them with JSON that a page can read. Caddy forwards them."""
    nginx, caddy = await start_through("nginx"), await start_through("caddy")
    for path in NOT_PAST_NGINX:
        response = await nginx.call("POST", f"{path}/offer", OFFER)
        assert refused(response) == (400, "Bad request"), path
        assert allowed_origin(response) == "*"
        assert response.headers["Content-Type"] == "application/json"
        await caddy.post(f"{path}/offer", **OFFER)
    assert nginx.runs == []
    assert await caddy.service.topics() == [("\0", 1), ("..", 2), ("a\0b", 1)]


class Narrow(PROXIES["nginx"]):
    """An nginx that allows each client two open requests."""

    def command(self, site):
        limit = "limit_conn tornado_signal_clients"
        return super().command(put(site, [(f"{limit} 1000;", f"{limit} 2;")]))


async def test_nginx_limits_what_a_client_has_open(start_through):
    through = await start_through(Narrow)
    address = {"local_addr": (ELSEWHERE, 0)}
    async with open_socket(through, **address), open_socket(through, **address):
        response = await through.call("GET", "/topics", source=ELSEWHERE)
        assert refused(response) == (429, "Too many requests")
        assert (allowed_origin(response), int(response.headers["Retry-After"])) == ("*", 5)
        assert (await through.call("GET", "/topics")).status == 200
    async with asyncio.timeout(BOUND_S):
        while (await through.call("GET", "/topics", source=ELSEWHERE)).status != 200:
            pass


def test_nginx_counts_the_network_of_an_ipv6_client():
    (rule,) = re.findall(r'^    "~(.*)" \$1;$', (SYSTEMD / "nginx.conf").read_text(), re.MULTILINE)
    for one, other, together in (
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::9", True),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:3::9", False),
        ("2001:db8::1", "2001:db8::a:b:c:d", True),
        ("2001:db8:1::1", "2001:db8:1::a:b:c", True),
        ("2001:db8:1::1", "2001:db8:2::1", False),
    ):
        assert (re.match(rule, one)[1] == re.match(rule, other)[1]) is together
    assert not any(re.match(rule, each) for each in ("192.0.2.1", "::1", "unix:"))


async def test_http_is_sent_to_https(start_through):
    through = await start_through("nginx")
    async with connected(through.proxy.plain_port) as connection:
        await connection.send(request("POST", "/a%2Fb/offer?x=%00", b"", host="signal.example.com"))
        response = await connection.receive()
    assert (response.status, response.headers["Location"]) == (308, "https://signal.example.com/a%2Fb/offer?x=%00")


def in_chunks(data):
    pieces = [data[start : start + 50_000] for start in range(0, len(data), 50_000)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])


async def test_large_body_is_refused_once_and_a_long_listing_arrives_whole(through):
    body = json.dumps({"info": "i", "offer": "o" * LARGE}).encode()
    announced = ("Content-Length", str(len(body)))
    for framing, data in ((announced, body), (("Transfer-Encoding", "chunked"), in_chunks(body))):
        through.runs.clear()
        async with asyncio.timeout(BOUND_S), through.connect() as connection:
            raw = head("POST", "/lobby/offer", with_origin(ORIGIN, [framing])) + data
            sending = asyncio.create_task(connection.send(raw))
            response = await connection.receive()
            await sending
        assert refused(response) == (413, "Request body too large")
        assert allowed_origin(response) == ORIGIN
        assert through.runs == ["/lobby/offer"]
    await through.post("/lobby/offer", info="i", offer="o" * 200_000)
    assert await through.service.topics() == [("lobby", 1)]
    for number in range(40):
        await through.post("/long/offer", info=str(number), offer="o" * 100_000)
    response = await through.call("GET", "/long/sessions")
    assert [each["info"] for each in response.json["sessions"]] == [str(number) for number in reversed(range(40))]


async def test_events_pass_the_proxy_immediately_and_a_disconnected_client_releases_its_connections(through):
    """Though nothing follows them: events of a stream, and the answer to a wait."""
    code = (await through.post("/lobby/offer", **OFFER))["code"]
    async with (
        open_stream(through.proxy.port, "/lobby/events", tls=through.tls) as stream,
        open_stream(through.proxy.port, f"/events?code={code}&side=offerer", tls=through.tls),
        through.connect() as waiting,
        through.connect() as looking,
    ):
        assert (stream.status, stream.headers["Content-Type"]) == (200, "text/event-stream")
        assert [each.data["code"] for each in await asyncio.wait_for(stream.take(), BOUND_S)] == [code]
        for _ in range(3):
            later = (await through.post("/lobby/offer", **OFFER))["code"]
            (event,) = await asyncio.wait_for(stream.take(), BOUND_S)
            assert (event.name, event.data["code"]) == ("session", later)
        await looking.send(request("GET", "/other/sessions?wait=60"))
        for target, body in ((later, {"answer": "a"}), (code, None)):
            await waiting.send(request("POST", "/poll", {"code": target, "side": "offerer", "wait": 60}))
            await until(lambda: waits(through) == 4)
            if body:
                await through.post("/answer", code=target, side="answerer", **body)
                assert (await asyncio.wait_for(waiting.receive("POST"), BOUND_S)).json["answer"] == "a"
    await until(lambda: waits(through) == 0)


def waits(through):
    return len(through.service.store.watches)


@pytest.mark.slow
async def test_longest_waits_end_before_proxy_timeouts(start_through, monkeypatch):
    """The longest wait, of 45 s, a stream on which nothing happens meanwhile, and a WebSocket, which the server pings.

    A WebSocket that is not pinged ends where a proxy has less patience than ours have.
    """

    async def one(through):
        code = (await through.post("/lobby/offer", **OFFER))["code"]
        async with open_stream(through.proxy.port, f"/events?code={code}&side=offerer", tls=through.tls) as stream:
            began_s = time.monotonic()
            response = await through.call("POST", "/poll", {"code": code, "side": "offerer", "wait": 60}, bound_s=90)
            assert time.monotonic() - began_s > 44
            assert response.status == 200
            assert response.json["answer"] is None
            await through.post("/answer", code=code, side="answerer", answer="a")
            (event,) = await asyncio.wait_for(stream.take(), BOUND_S)
            assert (event.name, event.data) == ("answer", {"answer": "a"})
            assert stream.comments >= 2

    throughs = [await start_through(kind) for kind in PROXIES]
    hasty = [await start_through(kind, idle_s=30) for kind in ("nginx", "haproxy")]
    async with contextlib.AsyncExitStack() as stack:
        with monkeypatch.context() as never:
            never.setattr(websocket, "PING_S", 1000.0)
            ending = [await stack.enter_async_context(open_socket(through)) for through in hasty]
        lasting = [await stack.enter_async_context(open_socket(through)) for through in throughs + hasty]
        await asyncio.gather(*map(one, throughs))
        assert [client.socket.close_code for client in ending] == [1006] * len(ending)
        for client in lasting:
            assert (await client.call("health"))["status"] == "ok"


@pytest.mark.parametrize(("kind", "hop"), TURNS)
async def test_websocket_passes_the_proxy(kind, hop, start_through):
    through = await start_through(kind, hop, hold_grace_ms=0)
    large = "o" * 200_000
    async with open_socket(through) as watching:
        await watching.call("subscribe", topic="lobby")
        async with open_socket(through, subprotocols=["signal.v1"]) as client:
            assert client.socket.subprotocol == "signal.v1"
            code = (await client.call("offer", topic="lobby", info="i", offer=large, hold=True))["code"]
            assert (await watching.event())[1]["offer"] == large
            assert [each["code"] for each in (await client.call("sessions", topic="lobby"))["sessions"]] == [code]
            client.socket.transport.abort()
            assert (await watching.event())[:2] == ("gone", {"code": code, "reason": "withdrawn"})
        for message, close_code in ((b"no text", 1003), ("x" * (through.service.settings.max_body_bytes + 1), 1009)):
            async with open_socket(through) as client:
                await client.socket.send(message)
                assert await client.closed() == close_code
    assert {*through.runs} == {"/ws"}


async def test_refused_handshake_has_a_json_response(kind, start_through):
    through = await start_through(kind, allowed_origins=AllowedOrigins(frozenset({ORIGIN})))
    key = [("Sec-WebSocket-Key", "MDEyMzQ1Njc4OTAxMjM0NQ=="), ("Sec-WebSocket-Version", "13")]
    handshake = [("Connection", "Upgrade"), ("Upgrade", "websocket"), *key]
    other = await through.call("GET", "/ws", origin="https://other.example", headers=handshake)
    assert refused(other) == (403, "Origin not allowed")
    assert refused(await through.call("GET", "/lobby/events", headers=handshake)) == (400, invalid("Upgrade"))
    assert refused(await through.call("GET", "/ws")) == (400, invalid("Upgrade"))
    assert (await through.call("GET", "/health", headers=handshake)).status == 200


@pytest.mark.needs("curl")
async def test_thirty_waits_over_http2_are_one_connection(through, tmp_path, pair):
    lines = [f'cacert = "{pair.certificate}"', "parallel", "parallel-max = 50", "http2", "silent"]
    lines.append(f'header = "Origin: {ORIGIN}"')
    for number in range(30):
        lines.append(f'url = "{through.proxy.url}/topic{number}/sessions?wait=60"')
        lines += ['output = "/dev/null"', 'write-out = "%{http_code} %{http_version} %{num_connects}\\n"']
    (tmp_path / "curl").write_text("\n".join(lines))
    process = await asyncio.create_subprocess_exec("curl", "--config", tmp_path / "curl", stdout=subprocess.PIPE)
    await until(lambda: waits(through) == 30)
    for number in range(30):
        await through.service.offer(f"topic{number}")
    async with asyncio.timeout(BOUND_S):
        said, _ = await process.communicate()
    found = [line.split() for line in said.decode().splitlines()]
    assert [(status, version) for status, version, _ in found] == [("200", "2")] * 30
    assert sum(int(connections) for _, _, connections in found) == 1


async def test_clients_continue_after_a_restart_and_the_proxy_responds_like_the_server_meanwhile(
    kind, start, start_proxy, pair
):
    server = start()
    behind = Proxied(start_proxy(kind, server.port), client_context(pair))
    codes = [(await behind.post("/lobby/offer", **OFFER))["code"]]
    async with open_socket(behind) as client:
        await client.call("health")
        stopping = asyncio.get_running_loop().run_in_executor(None, server.stop)
        assert await client.closed() == 1012
        assert await stopping == 0
    # A broken connection, after which an EventSource comes back, and no error, after which it would not.
    assert await behind.call("GET", "/lobby/events", headers=[("Accept", "text/event-stream")]) is None
    calls = (behind.call("POST", "/lobby/offer", OFFER), behind.call("GET", "/lobby/sessions"))
    for response in await asyncio.gather(*calls):
        assert refused(response) == (503, "Service unavailable")
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["Retry-After"] == "1"
        assert allowed_origin(response) == "*"
    start(port=server.port)
    codes.append((await behind.post("/lobby/offer", **OFFER))["code"])
    listed = (await behind.call("GET", "/lobby/sessions")).json["sessions"]
    assert [each["code"] for each in listed] == codes[::-1]
    async with open_socket(behind) as client:
        assert (await client.call("health"))["status"] == "ok"


class Breaking:
    """An upstream that answers the first request of each connection, and breaks off when it has read the second."""

    def __init__(self):
        self.requests = []  # the methods of those that it has read
        self._open = 0  # how many connections

    async def start(self, port=0):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader, writer):
        self._open += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for turn in range(2):
                text = (await reader.readuntil(b"\r\n\r\n")).decode()
                if length := re.search(r"(?i)^content-length: (\d+)", text, re.MULTILINE):
                    await reader.readexactly(int(length[1]))
                self.requests.append(text.split(" ")[0])
                if not turn:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        self._open -= 1

    async def stop(self, proxy):
        proxy.stop()
        self._server.close()
        await until(lambda: not self._open)


async def test_post_is_not_sent_twice(kind, start_proxy, pair):
    """An interrupted POST on a kept connection reaches the server once, and the page gets an error.

    The error is a 503. HAProxy closes the page's connection instead if it was not the first request.
    """
    breaking = Breaking()
    proxy = start_proxy(kind, await breaking.start())
    statuses = []
    async with connected(proxy.port, client_context(pair)) as client, asyncio.timeout(BOUND_S):
        for method in ("GET", "POST"):
            await client.send(request(method, "/lobby/offer", {}))
            response = await client.receive()
            statuses.append(response and response.status)
    assert statuses == [200, None if kind == "haproxy" else 503]
    assert breaking.requests == ["GET", "POST"]
    await breaking.stop(proxy)


async def test_caddy_retries_a_get_until_the_server_is_back(start_proxy, pair):
    port = free_port()
    behind = Proxied(start_proxy("caddy", port), client_context(pair))
    asking = asyncio.create_task(behind.call("GET", "/lobby/sessions"))
    publishing = asyncio.create_task(behind.call("POST", "/lobby/offer", OFFER))
    await asyncio.sleep(0.5)  # they have been refused a few times by then
    server = Breaking()
    await server.start(port)
    assert (await asking).status == 200
    assert (published := (await publishing).status) in (200, 503)
    assert server.requests.count("POST") == (published == 200)
    await server.stop(behind.proxy)


@pytest.mark.needs("caddy")
def test_caddyfile_is_formatted():
    for command in (["fmt", "--diff"], ["adapt", "--adapter", "caddyfile", "--config"]):
        done = run_command("caddy", *command, SYSTEMD / "Caddyfile", timeout=BOUND_S)
        changed = [line for line in done.stdout.splitlines() if re.match("[+-]", line)]
        assert (done.returncode, changed, done.stderr) == (0, [], "")
