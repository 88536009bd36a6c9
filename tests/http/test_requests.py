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
from support.service import ORIGIN, head, refused, with_origin

from tornado_signal import errors
from tornado_signal.api import wire
from tornado_signal.http.base import Handler
from tornado_signal.http.request import Request
from tornado_signal.transport import connection, exchange

BOUND_S = 20
ASK = head("GET", "/", with_origin(ORIGIN))
DEFECT = (500, "Internal server error")


@pytest.fixture
def handle(service):
    """A function that has GET / answered by a coroutine function of a test."""

    def replace(get):
        fixed = service.application.endpoints
        fixed["/"] = dataclasses.replace(fixed["/"], answer=get)

    return replace


def reply(request, fields):
    """Answer a request."""
    request.respond(wire.encode(fields))


@pytest.fixture
def defects(caplog):
    """The exceptions that have been logged as defects; no others are expected."""

    def found():
        logged = [each.exc_info[0] for each in caplog.records if each.levelno >= logging.ERROR]
        caplog.clear()
        return logged

    return found


async def reaches(found, expected):
    """Wait until `found()` is what is expected; the loop does its work meanwhile."""
    async with asyncio.timeout(BOUND_S):
        while found() != expected:  # noqa: ASYNC110 (objects that go tell nobody)
            await asyncio.sleep(0.01)


# Handlers are coroutines like others (issue 12, 23).


async def test_a_timeout(service, handle):
    """`asyncio.timeout` works in a handler, whether it ends in time or not."""

    async def get(request):
        async with asyncio.timeout(BOUND_S):
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(BOUND_S)
        except TimeoutError:
            reply(request, {"task": asyncio.current_task() is not None})

    handle(get)
    assert await service.get("/") == {"task": True}


async def test_tasks_within_a_handler(service, handle, defects):
    """A group of tasks works in a handler: what fails in it ends the others, and is one defect."""

    async def get(request):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
        reply(request, {"sum": sum(task.result() for task in tasks)})

    handle(get)
    assert await service.get("/") == {"sum": 3}

    async def fail():
        raise ZeroDivisionError

    async def failing(request):
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(BOUND_S))
            group.create_task(fail())

    handle(failing)
    assert refused(await service.call("GET", "/")) == DEFECT
    assert defects() == [ExceptionGroup]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_future_that_is_cancelled(when, service, handle, defects):
    """A handler whose awaited future is cancelled answers 500: nobody waits for ever, and the connection goes on."""
    awaited = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def get(request):
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
    assert service.site.running == 0
    assert defects() == [asyncio.CancelledError]


async def test_draining_waits_for_nobody_who_was_cancelled(service, handle, defects):
    """A request that ended by a cancellation is not waited for when the server stops."""

    async def get(request):
        asyncio.current_task().cancel()
        await asyncio.sleep(BOUND_S)

    handle(get)
    assert refused(await service.call("GET", "/")) == DEFECT
    async with asyncio.timeout(BOUND_S):
        await service.site.drain()
    assert defects() == [asyncio.CancelledError]


@pytest.mark.parametrize("count", [1, 3, 20])
async def test_a_defect_drops_nobody_else(count, service, handle, defects):
    """An exception in one handler's first step leaves those alone that came in the same turn of the loop."""
    asked = 0

    async def get(request):
        nonlocal asked
        asked += 1
        if asked % 2:
            raise ZeroDivisionError
        reply(request, {"asked": asked})

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
    """A request whose work cannot even begin is answered, and holds up no other."""

    def begin(request):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Request, "begin", begin)
        assert refused(await service.call("GET", "/")) == DEFECT
    assert (await service.call("GET", "/")).status == 200
    assert defects() == [ZeroDivisionError]


async def test_a_refusal_that_cannot_be_sent(service, handle, defects):
    """If the answer to an error fails in its turn, the connection ends, and nothing waits for the request."""

    async def get(request):
        raise errors.MethodNotAllowed(("GET\r\nHeader: of-the-client",))

    handle(get)
    assert await service.raw(ASK) is None
    async with asyncio.timeout(BOUND_S):
        await service.site.drain()
    assert defects() == [ValueError]


KEPT = contextvars.ContextVar("KEPT", default="nothing")


async def test_context_variables(service, handle):
    """What one request sets in its context no other one sees, on the same connection, on others, and meanwhile."""
    met = asyncio.Event()

    async def get(request):
        before = KEPT.get()
        said = request.query
        KEPT.set(said)
        if said == "first":
            await met.wait()
        met.set()
        await asyncio.sleep(0)
        reply(request, {"before": before, "after": KEPT.get()})

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
    """Go away without a word of farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half(client):
    """Say that nothing more will be sent, and go away then."""
    client.shutdown(socket.SHUT_WR)
    client.close()


@pytest.fixture
def without_garbage_collection():
    """Whatever is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


KINDS = (connection.Connection, exchange.Exchange, Request, Handler)


def left():
    """By kind, what is there of requests, without looking for garbage, and the large strings that they may hold."""
    found = collections.Counter()
    for each in gc.get_objects():
        for kind in KINDS:
            if isinstance(each, kind):
                found[kind.__name__] += 1
        if isinstance(each, types.AsyncGeneratorType) and each.ag_frame is not None:
            found[each.ag_code.co_name] += 1
    return found


def rss_bytes():
    """Resident memory of this process."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


@pytest.mark.parametrize("goodbye", [socket.socket.close, half, reset], ids=["close", "half", "reset"])
@pytest.mark.parametrize(
    "target", ["/lobby/sessions", "/lobby/sessions?wait=0", "/lobby/events"], ids=["listing", "wait", "stream"]
)
async def test_a_client_leaves_in_the_middle(target, goodbye, start_service, without_garbage_collection):
    """Of a large answer that nobody reads any more nothing stays in memory, also without a garbage collection."""
    service = await start_service(max_sessions_per_origin=1000)
    for number in range(60):
        await service.offer(offer=chr(97 + number % 26) * 255_000)
    await reaches(lambda: len(service.site._tasks), 0)
    before, before_bytes = left(), rss_bytes()
    for _ in range(12):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", service.port))
        await loop.sock_sendall(client, head("GET", target, with_origin(ORIGIN)))
        assert len(await loop.sock_recv(client, 10)) == 10
        await asyncio.sleep(0.05)
        goodbye(client)
    await reaches(lambda: left() - before, collections.Counter())
    assert len(service.store.watches) == service.site.limits.waiting == 0
    assert rss_bytes() - before_bytes < 40_000_000
    assert service.site.running == 0


@pytest.mark.parametrize("goodbye", [socket.socket.close, reset], ids=["close", "reset"])
async def test_no_generator_is_left_open(goodbye, service):
    """The listing that a client has left is closed by its handler, at once: the loop never has to."""
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
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", service.port))
            await loop.sock_sendall(client, head("GET", "/lobby/sessions", with_origin(ORIGIN)))
            await loop.sock_recv(client, 10)
            await asyncio.sleep(0.05)
            goodbye(client)
        await reaches(lambda: service.site.running, 0)
        gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert begun.count("sessions") == 5
    assert "sessions" not in abandoned
    assert not service.store.database._pinned


@pytest.mark.parametrize("target", ["/nowhere", "/poll", "/lobby/sessions?wait=x", "/events"])
async def test_nothing_is_left_of_a_refusal(target, service):
    """Requests that are refused do not add up: one error that were raised again and again would keep them all."""

    async def refuse(count):
        for _ in range(count):
            assert (await service.call("GET", target)).status in (400, 404, 405)
        gc.collect()
        return left()["Request"]

    few = await refuse(3)
    assert await refuse(20) <= few + 3
