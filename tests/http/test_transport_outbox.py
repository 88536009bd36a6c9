"""What leaves together: answers of one turn of the loop, whoever closes when, and no more of them than is good."""

import asyncio
import contextlib
import select
import socket
import threading

import pytest
from support.raw_http import answers, echo_application, read_all, serving
from tornado import web

from tornado_signal.transport import outbox

HEAD = b" HTTP/1.1\r\nHost: a.example\r\n"
CLIENTS = 20
LARGE = 4 * outbox.TURN_BYTES


class Blocking(web.RequestHandler):
    """Keeps the loop from going on until it is told to; whatever comes meanwhile comes in one turn."""

    async def get(self):
        await asyncio.sleep(0)  # now it is the callbacks' part of the turn, and reading comes next
        self.application.blocked.set()
        self.application.go_on.wait(10)
        self.finish("blocked")


class Counting(web.RequestHandler):
    """Says how many of the clients have something to read already."""

    def get(self):
        self.finish(str(len(select.select(self.application.clients, [], [], 0)[0])))
        self.application.looked.set()


class Large(web.RequestHandler):
    """Answers with more than is kept, in pieces, and then looks whether the first of them have arrived."""

    def get(self):
        for _ in range(4):
            self.write(b"x" * (LARGE // 4))
            self.flush()
        self.finish(str(len(select.select(self.application.clients, [], [], 10)[0])))
        self.application.looked.set()


@pytest.fixture(params=["uvloop", "asyncio"])
def running(request):
    """A server whose loop can be held up."""

    def make():
        application = echo_application(("/blocking", Blocking), ("/counting", Counting), ("/large", Large))
        application.blocked, application.go_on, application.looked = (threading.Event() for _ in range(3))
        application.clients = []
        return application

    with serving(make, loop=request.param) as server:
        yield server


@contextlib.contextmanager
def one_turn(running):
    """What is sent in here is read in one turn."""
    with running.connect() as client:
        client.sendall(b"GET /blocking" + HEAD + b"\r\n")
        assert running.application.blocked.wait(10)
        yield client
        running.application.go_on.set()
        client.recv(1)


def ask(running, path, count):
    """What comes to clients, one for each connection, that ask in the same turn."""
    clients = [running.connect() for _ in range(count)]
    running.run(asyncio.sleep(0.05))  # until all are connections
    running.application.clients = clients
    with one_turn(running):
        for client in clients:
            client.sendall(b"GET " + path + HEAD + b"\r\n")
    assert running.application.looked.wait(20)  # nothing is taken from what there is to see
    for client in clients:
        client.shutdown(socket.SHUT_WR)
    found = [read_all(client) for client in clients]
    for client in clients:
        client.close()
    return [answers(received)[0].body for received in found]


def test_answers_of_one_turn_leave_together(running):
    """While requests that came together are worked on, no client is woken: all have their answers afterwards."""
    assert ask(running, b"/counting", CLIENTS) == [b"0"] * CLIENTS


def test_what_is_large_leaves_at_once(running):
    """No more is kept than a little: a large answer is on its way while its handler still works."""
    (body,) = ask(running, b"/large", 1)
    assert body == b"x" * LARGE + b"1"


def test_a_client_that_ends_its_half_gets_its_answer(running):
    """The answer is there when the client says that it sends no more, but has not left yet: it does."""
    with one_turn(running) as client:
        client.shutdown(socket.SHUT_WR)
        running.application.go_on.set()
        (answer,) = answers(read_all(client))
        assert answer.body == b"blocked"
