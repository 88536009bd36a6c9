"""What a request is to the event loop: a task of its own, which always answers, and leaves nothing when it is over."""

import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import gc
import logging
import socket
import struct
import sys
import types

import pytest
from support.rpc import RpcClient
from support.service import NO_SUCH_CODE, ORIGIN, head, refused, with_origin

from tornado_signal import errors
from tornado_signal.http.call import HttpCall
from tornado_signal.http.handlers import Handler
from tornado_signal.service import wire
from tornado_signal.transport import connection, exchange

BOUND_S = 20
ASK = head("GET", "/", with_origin(ORIGIN))
DEFECT = (500, "Internal server error")


@pytest.fixture
def handle(service):
    """A function that has GET / answered by a coroutine function of a test."""

    def replace(get):
        async def perform(call):
            return wire.encode(await get(call))

        routes = service.application.routes
        operation = dataclasses.replace(routes["/"].arguments["operation"], perform=perform)
        routes["/"] = dataclasses.replace(routes["/"], arguments={"operation": operation})

    return replace


@pytest.fixture
def defects(caplog):
    """The exceptions that have been logged as defects; no others are expected."""

    def found():
        logged = [each.exc_info[0] for each in caplog.records if each.levelno >= logging.ERROR]
        caplog.clear()
        return logged

    return found


async def reaches(found, expected):
    async with asyncio.timeout(BOUND_S):
        while found() != expected:  # noqa: ASYNC110 (objects that go tell nobody)
            await asyncio.sleep(0.01)


# Handlers are coroutines like others (issue 12, 23).


async def test_a_timeout_works_in_a_handler(service, handle):
    async def get(call):
        async with asyncio.timeout(BOUND_S):
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(BOUND_S)
        except TimeoutError:
            return {"task": asyncio.current_task() is not None}

    handle(get)
    assert await service.get("/") == {"task": True}


async def test_what_fails_in_a_task_group_of_a_handler_is_one_defect(service, handle, defects):
    async def get(call):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
        return {"sum": sum(task.result() for task in tasks)}

    handle(get)
    assert await service.get("/") == {"sum": 3}

    async def fail():
        raise ZeroDivisionError

    async def failing(call):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(BOUND_S))
            group.create_task(fail())

    handle(failing)
    assert refused(await service.call("GET", "/")) == DEFECT
    assert defects() == [ExceptionGroup]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_handler_whose_future_is_cancelled_answers_500(when, service, handle, defects):
    awaited = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def get(call):
        begun.set()
        await awaited

    handle(get)
    if when == "before":
        awaited.cancel()
    async with service.connect() as client:
        await client.send(ASK)
        await begun.wait()
        awaited.cancel()
        async with asyncio.timeout(BOUND_S):
            assert refused(await client.receive()) == DEFECT
        await client.send(head("GET", "/health", with_origin(ORIGIN)))
        assert (await client.receive()).status == 200
    assert service.shared.running == 0
    assert defects() == [RuntimeError]


async def test_draining_waits_for_nobody_who_was_cancelled(service, handle, defects):
    async def get(call):
        asyncio.current_task().cancel()
        await asyncio.sleep(BOUND_S)

    handle(get)
    assert refused(await service.call("GET", "/")) == DEFECT
    async with asyncio.timeout(BOUND_S):
        await service.shared.drain()
    assert defects() == [RuntimeError]


@pytest.mark.parametrize("count", [1, 3, 20])
async def test_a_defect_drops_nobody_else(count, service, handle, defects):
    asked = 0

    async def get(call):
        nonlocal asked
        asked += 1
        if asked % 2:
            raise ZeroDivisionError
        return {"asked": asked}

    handle(get)
    async with contextlib.AsyncExitStack() as ends:
        clients = [await ends.enter_async_context(service.connect()) for _ in range(2 * count)]
        for client in clients:  # without a turn of the loop between
            client.writer.write(ASK)
        async with asyncio.timeout(BOUND_S):
            statuses = [(await client.receive()).status for client in clients]
    assert sorted(statuses) == [200] * count + [500] * count
    assert defects() == [ZeroDivisionError] * count


async def test_a_defect_before_the_first_step(service, monkeypatch, defects):
    def admit(call, find_origin):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(HttpCall, "admit", admit)
        assert refused(await service.call("GET", "/")) == DEFECT
    assert (await service.call("GET", "/")).status == 200
    assert defects() == [ZeroDivisionError]


async def test_a_refusal_that_cannot_be_sent(service, handle, defects):
    async def get(call):
        raise errors.MethodNotAllowed(("GET\r\nHeader: of-the-client",))

    handle(get)
    response = await service.raw(ASK)
    assert (response.status, response.body) == (405, b"")
    assert "Header" not in response.headers
    async with asyncio.timeout(BOUND_S):
        await service.shared.drain()
    assert defects() == [ValueError]


KEPT = contextvars.ContextVar("KEPT", default="nothing")


async def test_what_a_request_sets_in_its_context_no_other_sees(service, handle):
    met = asyncio.Event()

    async def get(call):
        before = KEPT.get()
        said = call.request.query
        KEPT.set(said)
        if said == "first":
            await met.wait()
        met.set()
        await asyncio.sleep(0)
        return {"before": before, "after": KEPT.get()}

    handle(get)
    async with service.connect() as one, service.connect() as other:
        await one.send(head("GET", "/?first", with_origin(ORIGIN)))
        await other.send(head("GET", "/?second", with_origin(ORIGIN)) + head("GET", "/?third", with_origin(ORIGIN)))
        found = [(await each.receive()).json for each in (one, other, other)]
        await one.send(head("GET", "/?fourth", with_origin(ORIGIN)))
        found.append((await one.receive()).json)
    assert found == [{"before": "nothing", "after": name} for name in ("first", "second", "third", "fourth")]
    assert KEPT.get() == "nothing"


# Nothing is left of who leaves in the middle (issue 12, 2 and 24).


def reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.fixture
def without_garbage_collection():
    """Whatever is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


KINDS = (connection.Connection, exchange.HTTPStream, HttpCall, Handler)


def left():
    """By kind, what there is of requests, without looking for garbage."""
    found = collections.Counter()
    for each in gc.get_objects():
        if isinstance(each, KINDS):
            found[type(each).__name__] += 1
        elif isinstance(each, types.AsyncGeneratorType) and each.ag_frame is not None:
            found[each.ag_code.co_name] += 1
    return found


def rss_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


async def leave_in_the_middle(service, target, goodbye):
    """Ask for something large, read its beginning, and go."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", service.port))
    await loop.sock_sendall(client, head("GET", target, with_origin(ORIGIN)))
    assert len(await loop.sock_recv(client, 10)) == 10
    await asyncio.sleep(0.05)
    goodbye(client)


@pytest.mark.parametrize("goodbye", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("target", ["/lobby/sessions", "/lobby/sessions?wait=0", "/lobby/events"])
async def test_nothing_stays_in_memory_of_an_answer_that_nobody_reads(
    target, goodbye, start_service, without_garbage_collection
):
    service = await start_service(max_sessions_per_origin=1000)
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 255_000)
    await reaches(lambda: len(service.shared._tasks), 0)
    before, before_bytes = left(), rss_bytes()
    for _ in range(12):
        await leave_in_the_middle(service, target, goodbye)
    await reaches(lambda: left() - before, collections.Counter())
    assert len(service.store.watches) == service.shared.limits.waiting == 0
    assert rss_bytes() - before_bytes < 40_000_000
    assert service.shared.running == 0


@pytest.mark.parametrize("goodbye", [socket.socket.close, reset], ids=["close", "reset"])
async def test_the_listing_that_a_client_has_left_is_closed_at_once(goodbye, service):
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 200_000)
    hooks = sys.get_asyncgen_hooks()
    begun, abandoned = [], []

    def first(generator):
        begun.append(generator.ag_code.co_name)
        hooks.firstiter(generator)

    def last(generator):
        abandoned.append(generator.ag_code.co_name)
        hooks.finalizer(generator)

    sys.set_asyncgen_hooks(first, last)
    try:
        for _ in range(5):
            await leave_in_the_middle(service, "/lobby/sessions", goodbye)
        await reaches(lambda: service.shared.running, 0)
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert begun.count("sessions") == 5
    assert "sessions" not in abandoned
    assert not service.store.database._pinned


@pytest.mark.parametrize("target", ["/nowhere", "/poll", "/lobby/sessions?wait=x", "/events"])
async def test_nothing_is_left_of_a_refusal(target, service):
    async def refuse(count):
        for _ in range(count):
            assert (await service.call("GET", target)).status in (400, 404, 405)
        gc.collect()
        return left()["HttpCall"]

    few = await refuse(3)
    assert await refuse(20) <= few + 3


@pytest.fixture
def garbage():
    """A function that returns the package's objects that only the collector finds, which would stop the server."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)

    def find():
        gc.collect()
        found = [type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("tornado_signal")]
        gc.garbage.clear()
        return sorted(found)

    yield find
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def settled(service):
    """Wait for the end of all requests, and of the connections' own."""
    async with asyncio.timeout(30):
        while service.shared.running or service.shared.limits.waiting or service.shared.limits.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def test_requests_leave_no_garbage(service, garbage):
    code = await service.offer()
    for target in ("/health", "/topics", "/lobby/sessions", "/nowhere"):
        await service.call("GET", target)
    await service.post("/poll", code=code, side="offerer", wait=0.1)
    assert (await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})).status == 404
    for target in ("/lobby/events", f"/events?code={code}&side=offerer"):
        async with service.connect() as connection:
            await connection.send(head("GET", target, with_origin(ORIGIN)))
            async with asyncio.timeout(30):
                while not service.shared.limits.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    await settled(service)
    assert garbage() == []


async def test_websockets_leave_no_garbage(service, garbage):
    url = f"ws://127.0.0.1:{service.port}/ws"
    for aborts in (False, True):
        async with RpcClient(url, ORIGIN) as client:
            code = (await client.call("offer", topic="lobby", info="x", offer="x", hold=True))["code"]
            await client.call("subscribe", topic="lobby")
            await client.call("subscribe", code=code, side="offerer")
            await client.call("poll", code=code, side="offerer", wait=0.1)
            assert "error" in await client.ask("poll", code=NO_SUCH_CODE, side="offerer")
            await client.call("withdraw", code=code, side="offerer")
            if aborts:
                client.socket.transport.abort()
    await settled(service)
    assert garbage() == []
