"""Requests run as tasks of their own, always get a response, delay no others, and leave no objects behind."""

import asyncio
import collections
import contextvars
import dataclasses
import functools
import gc
import itertools
import logging
import os
import socket
import sys
import types
from unittest import mock

import pytest
from support.processes import memory_bytes
from support.raw_http import reset
from support.rpc import RpcClient, until
from support.service import NO_SUCH_CODE, ORIGIN, TRANSPORTS, head, refused, request, with_origin
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


async def fail_in_a_task_group(call):
    async def fail():
        raise ZeroDivisionError

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(BOUND_S))
        group.create_task(fail())


async def await_what_is_cancelled(call, *, before=False):
    future = asyncio.get_running_loop().create_future()
    if before:
        future.cancel()
    else:
        asyncio.get_running_loop().call_later(0.01, future.cancel)
    await future


async def cancel_itself(call):
    asyncio.current_task().cancel()
    await asyncio.sleep(BOUND_S)


async def refuse_with_an_invalid_header(call):
    raise errors.MethodNotAllowed(("GET\r\nHeader: of-the-client",))


FAILING = {
    "task group": (fail_in_a_task_group, ExceptionGroup),
    "cancelled": (await_what_is_cancelled, asyncio.CancelledError),
    "cancelled before": (functools.partial(await_what_is_cancelled, before=True), asyncio.CancelledError),
    "itself": (cancel_itself, web.HTTPError),
    "before it starts": (None, ZeroDivisionError),
    "invalid header": (refuse_with_an_invalid_header, ValueError),
}


@pytest.mark.parametrize(("get", "logged"), FAILING.values(), ids=FAILING)
async def test_failing_handler_gets_a_500_is_logged_once_and_delays_no_drain(
    get, logged, service, serve_root, caplog, monkeypatch
):
    """The response to an error with an invalid header has no body."""
    serve_root(get)
    async with service.connect() as client, asyncio.timeout(BOUND_S):
        with monkeypatch.context() as patched:
            if get is None:  # it does not start
                patched.setattr(Request, "admit", mock.Mock(side_effect=ZeroDivisionError))
            await client.send(head("GET", "/", with_origin(ORIGIN)))
            response = await client.receive()
        if logged is ValueError:
            assert (response.status, response.body, "Header" in response.headers) == (405, b"", False)
        else:
            assert refused(response) == (500, "Internal server error")
        await client.send(head("GET", "/health", with_origin(ORIGIN)))
        assert (await client.receive()).status == 200
        await service.shared.drain()
    assert service.shared.running == 0
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [logged]
    caplog.clear()


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


KINDS = (connection.Connection, stream.HTTPStream, Request, Handler)


def live_objects():
    counts = collections.Counter()
    for obj in gc.get_objects():
        if isinstance(obj, KINDS):
            counts[type(obj).__name__] += 1
        elif isinstance(obj, types.AsyncGeneratorType) and obj.ag_frame is not None:
            counts[obj.ag_code.co_name] += 1
    return counts


async def disconnect_midway(service, target, disconnect):
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
async def test_response_that_is_not_read_is_freed(target, disconnect, start_service, uncollected):
    """Generators of listings are closed, not abandoned."""
    service = await start_service(max_sessions_per_origin=1000)
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 255_000)
    await until(lambda: not service.shared._tasks)
    hooks, started, abandoned = sys.get_asyncgen_hooks(), [], []

    def noting(names, hook):
        return lambda generator: (names.append(generator.ag_code.co_name), hook(generator))

    before, before_bytes = live_objects(), memory_bytes(os.getpid())
    sys.set_asyncgen_hooks(noting(started, hooks.firstiter), noting(abandoned, hooks.finalizer))
    try:
        for _ in range(12):
            await disconnect_midway(service, target, disconnect)
        await until(lambda: not live_objects() - before)
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert (started.count("sessions"), "sessions" in abandoned) == (12 * ("events" not in target), False)
    assert len(service.store.watches) == service.shared.limits.waiting == 0
    assert memory_bytes(os.getpid()) - before_bytes < 40_000_000
    assert service.shared.running == 0


@pytest.fixture
def garbage(uncollected):
    """A function that returns the package's objects in reference cycles, whose collection would pause the server."""
    gc.set_debug(gc.DEBUG_SAVEALL)

    def collect():
        gc.collect()
        names = [type(obj).__qualname__ for obj in gc.garbage if type(obj).__module__.startswith("tornado_signal")]
        gc.garbage.clear()
        return sorted(names)

    yield collect
    gc.set_debug(0)
    gc.garbage.clear()


async def until_idle(service):
    limits = service.shared.limits
    await until(lambda: not (service.shared.running or limits.waiting or limits.connections))
    await asyncio.sleep(0.05)


async def test_requests_leave_no_reference_cycles_and_those_that_wait_end_with_their_client(service, garbage):
    code = await service.offer()
    for target in ("/health", "/topics", "/lobby/sessions", "/nowhere"):
        await service.call("GET", target)
    await service.post("/poll", code=code, side="offerer", wait=0.1)
    assert (await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})).status == 404
    before = live_objects()
    paths = ("/other/sessions?wait=60", "/lobby/events", f"/events?code={code}&side=offerer")
    waiting = [request("POST", "/poll", {"code": code, "side": "offerer", "wait": 60})]
    waiting += [request("GET", path) for path in paths]
    endings = socket.socket.close, reset, lambda client: client.shutdown(socket.SHUT_WR)
    for raw, leave in itertools.product(waiting, endings):
        client = socket.create_connection(("127.0.0.1", service.port))
        client.sendall(raw)
        await until(lambda: len(service.store.watches) == 1)
        leave(client)
        await until(lambda: not service.store.watches)  # long before the wait is over
        client.close()
    await until_idle(service)
    assert not live_objects() - before
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


async def fill(service, count=400, size=5000):
    """Create sessions whose listing does not fit into the socket buffers."""
    for number in range(count):
        await service.store.create(ORIGIN, "lobby", str(number), "o" * size)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_slow_reader_delays_no_other_client_and_one_that_disconnects_delays_no_drain(service):
    await fill(service)
    async with service.connect() as slow, service.connect() as leaving:
        for client in (slow, leaving):
            await client.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        for _ in range(5):
            assert len(await service.sessions()) == 400
        code = await service.offer()
        await service.post("/answer", code=code, side="answerer", answer="a")
        late = (await slow.receive()).json["sessions"]
        await leaving.reader.read(100_000)
        leaving.writer.transport.abort()
    infos = [session["info"] for session in late if session["code"] != code]
    assert infos == [str(number) for number in range(399, -1, -1)]
    await asyncio.wait_for(service.shared.drain(), 20)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_listing_that_fails_half_way_closes_the_connection(service, monkeypatch):
    await fill(service, count=200)
    real = service.store.sessions

    async def fail_half_way(*arguments):
        steps = 0
        async for step in real(*arguments):
            yield step
            steps += 1
            if steps == 3:
                await service.close_store()

    monkeypatch.setattr(service.store, "sessions", fail_half_way)
    async with service.connect() as connection:
        await connection.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await connection.receive()
    await asyncio.wait_for(service.shared.drain(), 20)


async def test_queued_turns_do_not_delay_new_requests(service):
    turns = [service.shared.resuming.turn(number) for number in range(3000)]
    assert (await service.get("/health"))["status"] == "ok"
    assert not turns[-1].done()
    await asyncio.wait_for(turns[-1], 30)


async def test_drain_waits_for_running_requests_also_of_a_disconnected_client(service, monkeypatch):
    entered, opened, create = asyncio.Event(), asyncio.Event(), service.store.create

    async def create_later(*arguments, **options):
        entered.set()
        await opened.wait()
        return await create(*arguments, **options)

    monkeypatch.setattr(service.store, "create", create_later)
    raw = request("POST", "/lobby/offer", {"info": "i", "offer": "o"})
    for cut in (1, 30, -20, -1):  # an incomplete request has no effect
        async with service.connect() as client:
            await client.send(raw[:cut])
    async with service.connect() as client:
        await client.send(raw)
        await entered.wait()
        client.writer.transport.abort()
    publishing = asyncio.create_task(service.offer(info="next"))
    await until(lambda: service.shared.running == 2)
    draining = asyncio.create_task(service.shared.drain())
    for _ in range(10):
        await asyncio.sleep(0)
    late = await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})
    assert (refused(late), draining.done()) == ((503, "Service unavailable"), False)
    opened.set()
    assert await publishing
    await asyncio.wait_for(draining, 20)
    steps = [step async for step in service.store.sessions(ORIGIN, "lobby", None)]
    assert [listed.session.info for step in steps for listed in step] == ["next", "i"]
