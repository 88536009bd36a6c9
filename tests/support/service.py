"""A server in this process, a client that sends arbitrary bytes, and checks for every response."""

import asyncio
import contextlib
import functools
import json
import logging
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import quote

import jsonschema_rs
import pytest
from tornado import httputil
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from tornado_signal.auth import Authority
from tornado_signal.http.application import Application, Route
from tornado_signal.http.error_responses import make_error_responder
from tornado_signal.http.handlers import Handler
from tornado_signal.http.openapi import make_document
from tornado_signal.limits.per_address import Limits
from tornado_signal.operator.control import Control
from tornado_signal.operator.handlers import AdminPolicy
from tornado_signal.operator.handlers import make_application as make_admin_application
from tornado_signal.process.reload import read_resources
from tornado_signal.process.server import all_routes
from tornado_signal.relay.opening import open_relay
from tornado_signal.service import wire
from tornado_signal.service.operations import SUBSCRIPTIONS, declare
from tornado_signal.service.request_log import RequestLog
from tornado_signal.service.service import Service as Shared
from tornado_signal.settings.settings import LiveSettings, Settings
from tornado_signal.stores import open_store
from tornado_signal.system import assets
from tornado_signal.transport import Server, ServerState
from tornado_signal.websocket.presence import Presence

from .stores import HandClock, check_memory

HOST = "signal.example"
ORIGIN = "https://app.example"
OTHER = "https://other.example"
NOW_MS = 1_900_000_000_000
TIMEOUT_MS = 300_000
NEVER_MS = 3_600_000  # interval of background work that must not run in a test
VERSION = "0123456789abcdef0123456789abcdef01234567"
NO_SUCH_CODE = "00000000-0000-4000-8000-000000000000"
HANDSHAKE = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
HANDSHAKE += [("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")]
NOT_FOUND = "Session not found, expired, or origin mismatch"
FILES = {path: media_type for path, (_, media_type) in (assets.CLIENT | assets.DEMO).items()}
# Of a server with keys, which has the most responses.
DOCUMENT = json.loads(json.dumps(make_document(declare(Settings()), FILES, ("list",))))
# It admits all connections.
NO_LIMITER = SimpleNamespace(connected=lambda address, now_ms: SimpleNamespace(reject_status=0, release=lambda: None))


def invalid(parameter):
    return f"Missing or invalid required parameter: {parameter}"


@contextlib.asynccontextmanager
async def _own(application, listening, refusal, tls=None, limiter=None):
    server = Server(ServerState(application, refusal, limiter or NO_LIMITER, tls))
    await server.start(listening)
    try:
        yield server
    finally:
        await server.close(1.0)


@contextlib.asynccontextmanager
async def _tornados(application, listening, refusal, tls=None, limiter=None):
    server = HTTPServer(application, max_body_size=1 << 62)
    server.add_sockets(listening)
    try:
        yield server
    finally:
        server.stop()
        await server.close_all_connections()


TRANSPORTS = {"own": _own, "tornado": _tornados}


class Response(NamedTuple):
    status: int
    headers: httputil.HTTPHeaders
    body: bytes
    reason: str

    @property
    def json(self):
        return json.loads(self.body)


class Connection:
    """A client's connection for arbitrary bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, data):
        """Send bytes. If the server has closed the connection, its response can still be read."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def receive(self, method="GET"):
        """Read a final response. Return None if the connection is closed before it begins."""
        while True:
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                if getattr(error, "partial", b""):
                    raise
                return None
            first, _, rest = head.decode("latin-1").partition("\r\n")
            version, status, reason = first.split(" ", 2)
            assert version == "HTTP/1.1"
            headers = httputil.HTTPHeaders.parse(rest)
            if not status.startswith("1"):
                return Response(int(status), headers, await self._body(method, int(status), headers), reason)

    async def _body(self, method, status, headers):
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int((await self.reader.readline()).split(b";")[0], 16):
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readline() == b"\r\n"
            return body
        if "Content-Length" in headers:
            return await self.reader.readexactly(int(headers["Content-Length"]))
        return await self.reader.read()

    def close(self):
        self.writer.close()


@contextlib.asynccontextmanager
async def connected(port, tls=None, host="127.0.0.1", source=None):
    local = (source, 0) if source else None
    connection = Connection(*await asyncio.open_connection(host, port, ssl=tls, local_addr=local))
    try:
        yield connection
    finally:
        # TLS would wait for the server's close_notify.
        (connection.writer.transport.abort if tls else connection.close)()


def head(method, target, headers):
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def with_origin(origin, headers=(), host=HOST):
    return [("Host", host), *([("Origin", origin)] if origin is not None else []), *headers]


def request(method, target, body=None, origin=ORIGIN, headers=(), host=HOST):
    """Return the bytes of a request. The body is bytes or an object to encode as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    length = [("Content-Length", str(len(data)))] if body is not None else []
    return head(method, target, [*with_origin(origin, headers, host), *length]) + data


def segment(topic):
    return quote(topic, safe="")


class Who(Handler):
    def get(self):
        self.write(wire.encode({"client": self.request.client_address}))


WHO = Route("/who", Who)


def declared():
    methods = {each.path: each.method for each in declare(Settings())}
    return methods | {each.path: "GET" for each in SUBSCRIPTIONS} | {"/openapi.json": "GET"}


def applying(store, clock, settings):
    live, resources = LiveSettings(settings), read_resources(settings)
    authority = None if resources.keys is None else Authority(resources.keys, settings)
    request_log = RequestLog(live)
    shared = Shared(store, live, clock, resources.ice, VERSION, Limits(settings), request_log, authority)
    relay = open_relay(store.shared_redis, shared.charge_publisher)
    application = Application(shared, functools.partial(all_routes, Presence(shared), relay))
    application.relay = relay
    return application


class Service:
    """A server in this process with its store and clock, and methods to send requests."""

    store_closed = False

    def __init__(self, path, transport="own", clock=None, **settings):
        self.clock = clock or HandClock(NOW_MS)
        settings = {"durability": "os", "port": 0, "sweep_interval_ms": NEVER_MS, **settings}
        self.settings = Settings(data_dir=path, **settings)
        self._transport = TRANSPORTS[transport]
        self._stack = contextlib.AsyncExitStack()

    async def start(self):
        self.store = await open_store(self.settings, self.clock)
        self.application = applying(self.store, self.clock, self.settings)
        self.shared = self.application.service
        refusal = make_error_responder(self.shared.log)
        self.server, self.port = await self._listen(self.application, refusal, self.shared.limits)
        self.url = f"http://127.0.0.1:{self.port}"
        state = getattr(self.server, "state", None) or ServerState(self.application, refusal, self.shared.limits)
        self.shared.refusals.cut_off = state.count_cut_off
        name, relay = f"localhost:{self.port}", self.application.relay
        self.control = Control(self.shared, relay, state, partial(setattr, self.shared.live, "current"), name, 0)
        self.control.start()
        self._stack.push_async_callback(self.control.close)
        policy = AdminPolicy(hosts=self.settings.admin_hosts)
        self.admin = make_admin_application(self.control, policy)
        _, self.admin_port = await self._listen(self.admin, refusal)

    async def _listen(self, application, refusal, limiter=None):
        listening = bind_sockets(0, "127.0.0.1")
        server = self._transport(application, listening, refusal, limiter=limiter)
        return await self._stack.enter_async_context(server), listening[0].getsockname()[1]

    async def stop(self):
        """Stop listening, check the store, and close it."""
        await self._stack.aclose()
        await asyncio.wait_for(self.shared.drain(), 30)
        if not self.store_closed:
            check_memory(self.store)
        await self.store.close()

    async def close_store(self):
        self.store_closed = True
        await self.store.close()

    def connect(self, port=None):
        return connected(port or self.port)

    async def raw(self, data, method="GET", port=None):
        async with self.connect(port) as connection:
            await connection.send(data)
            return await connection.receive(method)

    async def call(self, method, target, body=None, *, origin=ORIGIN, headers=(), port=None):
        """Send a request to the public listener or to another port, check the response and return it."""
        response = await self.raw(request(method, target, body, origin, headers), method, port)
        assert response is not None, "no response"
        if port is None:
            check_every_response(response, method)
            of_listed = self.settings.allowed_origins is not None and allowed_origin(response) is not None
            assert credentials(response) == ("true" if of_listed else None)
        check_documented(response, method, target)
        return response

    async def ask_admin(self, path, method="GET", body=None, **headers):
        """Send a request of a program on this machine to the admin listener. Names of headers have underscores."""
        named = {"Host": "localhost"} | {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {} if body is None else {"Content-Length": len(body)}
        return await self.raw(head(method, path, named.items()) + (body or b""), method, self.admin_port)

    async def get(self, target, **options):
        response = await self.call("GET", target, **options)
        assert response.status == 200, response
        return response.json

    async def post(self, target, /, *, origin=ORIGIN, **body):
        response = await self.call("POST", target, body, origin=origin)
        assert response.status == 200, response
        return response.json

    async def offer(self, topic="lobby", info="me", offer="an offer", origin=ORIGIN):
        return (await self.post(f"/{segment(topic)}/offer", origin=origin, info=info, offer=offer))["code"]

    async def sessions(self, topic="lobby", origin=ORIGIN):
        return (await self.get(f"/{segment(topic)}/sessions", origin=origin))["sessions"]

    async def topics(self, origin=ORIGIN):
        return [(topic["topic"], topic["count"]) for topic in (await self.get("/topics", origin=origin))["topics"]]


def check_every_response(response, method):
    """Check that a response is JSON or empty, safe for caches, and does not name the server software."""
    assert response.headers.get_list("Vary") == ["Origin"]
    assert "Server" not in response.headers
    assert len(response.headers.get_list("X-Request-Id")) == 1
    if allowed_origin(response) is not None:
        assert response.headers["Access-Control-Expose-Headers"] == "Retry-After, WWW-Authenticate, X-Request-Id"
    assert response.headers.get_list("Cache-Control") == ["no-store"]
    if response.status == 204:
        assert "Content-Type" not in response.headers
        return
    assert response.headers.get_list("Content-Type") == ["application/json"]
    if method != "HEAD":
        content = response.json
        assert type(content) is dict
        if response.status != 200:
            assert set(content) == {"error"}
            assert type(content["error"]) is str


@functools.cache
def validator(schema):
    """Return the validator of a schema of the document, which is given as JSON."""
    return jsonschema_rs.validator_for({**json.loads(schema), "components": DOCUMENT["components"]})


def check_documented(response, method, target):
    """Check a response by /openapi.json, if that describes the request."""
    path = target.partition("?")[0]
    if path not in DOCUMENT["paths"] and path.count("/") == 2:
        path = f"/{{topic}}/{path.rpartition('/')[2]}"
    operation = DOCUMENT["paths"].get(path, {}).get("get" if method == "HEAD" else method.lower())
    if operation is None:
        return
    assert str(response.status) in operation["responses"], (method, target, response)
    described = operation["responses"][str(response.status)]
    if "$ref" in described:
        described = DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    assert all(name in response.headers for name in described["headers"])
    if method != "HEAD" and (content := described.get("content", {}).get("application/json")):
        validator(json.dumps(content["schema"])).validate(response.json)


def allowed_origin(response, name="Origin"):
    values = response.headers.get_list(f"Access-Control-Allow-{name}")
    assert len(values) <= 1
    return values[0] if values else None


def credentials(response):
    return allowed_origin(response, "Credentials")


def refused(response):
    return response.status, response.json["error"]


@pytest.fixture
def transport():
    return "own"


async def finish_requests():
    """Wait for requests to other servers, which continue without their caller (`Endpoint.send`)."""
    left = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "_HTTPConnection.run"]
    await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
def start_service(io_loop, tmp_path, transport, caplog):
    """A function that starts a server. Finally its store must be consistent, and `caplog` must have no errors."""
    started = []

    async def start(**settings):
        service = Service(tmp_path / f"data{len(started)}", transport, **settings)
        await service.start()
        started.append(service)
        return service

    yield start
    for service in started:
        io_loop.run_sync(service.stop)
    io_loop.run_sync(finish_requests)
    records = [record for when in ("setup", "call", "teardown") for record in caplog.get_records(when)]
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def service(io_loop, start_service):
    return io_loop.run_sync(start_service)


@pytest.fixture
def clients(request, io_loop, service):
    """Three clients of one origin, from `open_socket` of the test's file."""
    stack = contextlib.AsyncExitStack()

    async def connect():
        return [await stack.enter_async_context(request.module.open_socket(service)) for _ in range(3)]

    yield io_loop.run_sync(connect)
    io_loop.run_sync(stack.aclose)
