"""Requests run as tasks of their own, always get a response, and leave no objects behind."""

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import gc
import logging
import socket
import sys
import types

import pytest
from support.raw_http import reset
from support.rpc import RpcClient, until
from support.service import NO_SUCH_CODE, ORIGIN, head, refused, with_origin
from tornado import web

from tornado_signal import errors
from tornado_signal.http.handlers import Handler
from tornado_signal.http.request import Request
from tornado_signal.service import wire
from tornado_signal.transport import connection, stream
from tornado_signal.transport.frames import FrameReader
from tornado_signal.transport.websocket import WebSocket
from tornado_signal.websocket.connection import RpcConnection, RpcRequestContext

BOUND_S = 20
GET_ROOT = head("GET", "/", with_origin(ORIGIN))
INTERNAL_ERROR = (500, "Internal server error")


@pytest.fixture
def serve_root(service):
    """A function that serves GET / with a coroutine function of the test."""

    def replace(get):
        async def work(call):
            return wire.encode(await get(call))

        routes = service.application.routes
        operation = dataclasses.replace(routes["/"].arguments["operation"], work=work)
        routes["/"] = dataclasses.replace(routes["/"], arguments={"operation": operation})

    return replace


@pytest.fixture
def logged_errors(caplog):
    """A function that returns the types of the logged exceptions and clears them."""

    def take():
        error_types = [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR]
        caplog.clear()
        return error_types

    return take


# Handlers are ordinary coroutines.


async def test_failed_task_group_in_a_handler_is_logged_once(service, serve_root, logged_errors):
    async def get(call):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
        return {"sum": sum(task.result() for task in tasks)}

    serve_root(get)
    assert await service.get("/") == {"sum": 3}

    async def fail():
        raise ZeroDivisionError

    async def failing(call):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(BOUND_S))
            group.create_task(fail())

    serve_root(failing)
    assert refused(await service.call("GET", "/")) == INTERNAL_ERROR
    assert logged_errors() == [ExceptionGroup]


@pytest.mark.parametrize("cancelled", ["before", "after"])
async def test_handler_awaiting_a_cancelled_future_answers_500(cancelled, service, serve_root, logged_errors):
    future = asyncio.get_running_loop().create_future()
    started = asyncio.Event()

    async def get(call):
        started.set()
        await future

    serve_root(get)
    if cancelled == "before":
        future.cancel()
    async with service.connect() as client:
        await client.send(GET_ROOT)
        await started.wait()
        future.cancel()
        async with asyncio.timeout(BOUND_S):
            assert refused(await client.receive()) == INTERNAL_ERROR
        await client.send(head("GET", "/health", with_origin(ORIGIN)))
        assert (await client.receive()).status == 200
    assert service.shared.running == 0
    assert logged_errors() == [asyncio.CancelledError]


async def test_drain_does_not_wait_for_cancelled_handlers(service, serve_root, logged_errors):
    async def get(call):
        asyncio.current_task().cancel()
        await asyncio.sleep(BOUND_S)

    serve_root(get)
    assert refused(await service.call("GET", "/")) == INTERNAL_ERROR
    async with asyncio.timeout(BOUND_S):
        await service.shared.drain()
    assert logged_errors() == [web.HTTPError]


async def test_internal_error_does_not_affect_other_requests(service, serve_root, logged_errors):
    count, requests = 20, 0

    async def get(call):
        nonlocal requests
        requests += 1
        if requests % 2:
            raise ZeroDivisionError
        return {"asked": requests}

    serve_root(get)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(service.connect()) for _ in range(2 * count)]
        for client in clients:  # all in one event-loop iteration
            client.writer.write(GET_ROOT)
        async with asyncio.timeout(BOUND_S):
            statuses = [(await client.receive()).status for client in clients]
    assert sorted(statuses) == [200] * count + [500] * count
    assert logged_errors() == [ZeroDivisionError] * count


async def test_internal_error_before_the_handler_starts(service, monkeypatch, logged_errors):
    def admit(*arguments):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Request, "admit", admit)
        assert refused(await service.call("GET", "/")) == INTERNAL_ERROR
    assert (await service.call("GET", "/")).status == 200
    assert logged_errors() == [ZeroDivisionError]


async def test_error_response_with_an_invalid_header_is_sent_without_body(service, serve_root, logged_errors):
    async def get(call):
        raise errors.MethodNotAllowed(("GET\r\nHeader: of-the-client",))

    serve_root(get)
    response = await service.raw(GET_ROOT)
    assert (response.status, response.body) == (405, b"")
    assert "Header" not in response.headers
    async with asyncio.timeout(BOUND_S):
        await service.shared.drain()
    assert logged_errors() == [ValueError]


VARIABLE = contextvars.ContextVar("KEPT", default="nothing")


async def test_context_variables_are_private_to_a_request(service, serve_root):
    second_started = asyncio.Event()

    async def get(call):
        before = VARIABLE.get()
        query = call.query
        VARIABLE.set(query)
        if query == "first":
            await second_started.wait()
        second_started.set()
        await asyncio.sleep(0)
        return {"before": before, "after": VARIABLE.get()}

    serve_root(get)
    async with service.connect() as first, service.connect() as second:
        await first.send(head("GET", "/?first", with_origin(ORIGIN)))
        await second.send(head("GET", "/?second", with_origin(ORIGIN)) + head("GET", "/?third", with_origin(ORIGIN)))
        responses = [(await client.receive()).json for client in (first, second, second)]
        await first.send(head("GET", "/?fourth", with_origin(ORIGIN)))
        responses.append((await first.receive()).json)
    assert responses == [{"before": "nothing", "after": name} for name in ("first", "second", "third", "fourth")]
    assert VARIABLE.get() == "nothing"


# Requests of clients that disconnect midway leave nothing behind.


@pytest.fixture
def without_garbage_collection():
    """Without it, objects in reference cycles stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


KINDS = (connection.Connection, stream.HTTPStream, Request, Handler)


def live_objects():
    """Return the number of objects of requests by type, without collecting garbage."""
    counts = collections.Counter()
    for obj in gc.get_objects():
        if isinstance(obj, KINDS):
            counts[type(obj).__name__] += 1
        elif isinstance(obj, types.AsyncGeneratorType) and obj.ag_frame is not None:
            counts[obj.ag_code.co_name] += 1
    return counts


def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def disconnect_midway(service, target, disconnect):
    """Request something large, read its first bytes, and disconnect."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", service.port))
    await loop.sock_sendall(client, head("GET", target, with_origin(ORIGIN)))
    assert len(await loop.sock_recv(client, 10)) == 10
    await asyncio.sleep(0.05)
    disconnect(client)


@pytest.mark.parametrize(
    ("target", "disconnect"),
    [("/lobby/sessions", socket.socket.close), ("/lobby/sessions?wait=0", reset), ("/lobby/events", reset)],
)
async def test_response_that_is_not_read_is_freed(target, disconnect, start_service, without_garbage_collection):
    service = await start_service(max_sessions_per_origin=1000)
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 255_000)
    await until(lambda: not service.shared._tasks)
    before, before_bytes = live_objects(), rss_bytes()
    for _ in range(12):
        await disconnect_midway(service, target, disconnect)
    await until(lambda: not live_objects() - before)
    assert len(service.store.watches) == service.shared.limits.waiting == 0
    assert rss_bytes() - before_bytes < 40_000_000
    assert service.shared.running == 0


async def test_listing_generator_is_closed_when_the_client_disconnects(service):
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 200_000)
    hooks = sys.get_asyncgen_hooks()
    started, abandoned = [], []

    def on_start(generator):
        started.append(generator.ag_code.co_name)
        hooks.firstiter(generator)

    def on_abandoned(generator):
        abandoned.append(generator.ag_code.co_name)
        hooks.finalizer(generator)

    sys.set_asyncgen_hooks(on_start, on_abandoned)
    try:
        for _ in range(5):
            await disconnect_midway(service, "/lobby/sessions", reset)
        await until(lambda: not service.shared.running)
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert started.count("sessions") == 5
    assert "sessions" not in abandoned


@pytest.mark.parametrize("target", ["/nowhere", "/poll", "/lobby/sessions?wait=x", "/events"])
async def test_refused_request_is_freed(target, service):
    async def refuse(count):
        for _ in range(count):
            assert (await service.call("GET", target)).status in (400, 404, 405)
        gc.collect()
        return live_objects()["Request"]

    few = await refuse(3)
    assert await refuse(20) <= few + 3


@pytest.fixture
def garbage():
    """A function that returns the package's objects in reference cycles, whose collection would pause the server."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def collect():
        gc.collect()
        names = [type(obj).__qualname__ for obj in gc.garbage if type(obj).__module__.startswith("tornado_signal")]
        gc.garbage.clear()
        return sorted(names)

    yield collect
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def until_idle(service):
    """Wait until all requests and connections have ended."""
    limits = service.shared.limits
    await until(lambda: not (service.shared.running or limits.waiting or limits.connections))
    await asyncio.sleep(0.05)


async def test_requests_leave_no_reference_cycles(service, garbage):
    code = await service.offer()
    for target in ("/health", "/topics", "/lobby/sessions", "/nowhere"):
        await service.call("GET", target)
    await service.post("/poll", code=code, side="offerer", wait=0.1)
    assert (await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})).status == 404
    for target in ("/lobby/events", f"/events?code={code}&side=offerer"):
        async with service.connect() as connection:
            await connection.send(head("GET", target, with_origin(ORIGIN)))
            await until(lambda: service.shared.limits.waiting)
    await until_idle(service)
    assert garbage() == []


@pytest.mark.parametrize("end", ["close", "abort", "break the rules"])
async def test_closed_websocket_is_freed_without_the_garbage_collector(end, start_service, garbage):
    service = await start_service(hold_grace_ms=50)
    kinds = (FrameReader, WebSocket, RpcConnection, RpcRequestContext)
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        code = (await client.call("offer", topic="lobby", info="x", offer="x", hold=True))["code"]
        await client.call("subscribe", topic="lobby")
        await client.call("subscribe", code=code, side="offerer")
        await client.call("poll", code=code, side="offerer", wait=0.1)
        assert "error" in await client.ask("poll", code=NO_SUCH_CODE, side="offerer")
        another = (await client.call("offer", topic="lobby", info="x", offer="x", hold=True))["code"]
        await client.call("withdraw", code=another, side="offerer")
        client.send("poll", code=code, side="offerer", wait=60)
        await until(lambda: service.shared.limits.waiting == 3)
        if end == "abort":
            client.socket.transport.abort()
        elif end == "break the rules":
            client.socket.transport.write(b"\xff" * 20)
            assert await client.closed() == 1002
    await until(lambda: not any(type(each) in kinds for each in gc.get_objects()))
    await until_idle(service)
    assert garbage() == []
