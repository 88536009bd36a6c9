"""Members of rooms: pages, and programs of the Python client. Both evaluate expressions."""

import contextlib
import json
import os
import subprocess
import time

from tornado_signal_client.names import Identity

from .forked import Process, Template
from .waiting import until

# Secrets, sorted by the ids derived from them. Of two members the first one leads.
SECRETS = sorted(("of one member", "of another one"), key=lambda secret: Identity("", "", None, secret).id)
# Each line of standard input is an expression. Its value is printed as JSON.
PROGRAM = """
import ast, asyncio, gc, hashlib, inspect, json, logging, resource, sys, time
from tornado_signal_client.names import Identity
from pathlib import Path
from tornado_signal_client import FileOffered, Full, Joined, Message, Peers, ServerUnreachable, SignalError

async def enter(topic="lobby", **options):
    global room
    room = peers.room(topic, **options)
    asyncio.create_task(listen(room))
    return room.id

async def listen(room):
    try:
        async for event in room:
            if isinstance(event, ServerUnreachable):  # also of a server that is slow on a busy machine
                continue
            if isinstance(event, Full):
                seen.append(["Full", event.full])
                continue
            data = [event.data] if isinstance(event, Message) else []
            if isinstance(event, FileOffered):
                asyncio.create_task(receive(event.file))
            if isinstance(event, Joined):
                event.peer.connection.on("track", tracks.append)
            seen.append([type(event).__name__, event.peer.info, *data])
        seen.append(["End"])
    except Exception as error:
        seen.append([getattr(error, "code", type(error).__name__), str(error)])

# Start coroutines in this order.
def begin(*coroutines):
    global begun
    begun = [*map(asyncio.create_task, coroutines)]

async def hear(messages):
    async for peer, data in messages:
        seen.append(["Heard", peer.info, data])

# Receive a file if it is meant to be received: its name tells how.
async def receive(file):
    try:
        if file.name == "refuse":
            file.cancel()
        elif file.name == "break":
            async for chunk in file:
                break
        elif file.name == "save":
            await file.save("received")
            files.append([file.name, file.type, file.size, hashlib.sha256(Path("received").read_bytes()).hexdigest()])
        else:
            content = await file.read()
            files.append([file.name, file.type, len(content), hashlib.sha256(content).hexdigest()])
    except SignalError as error:
        files.append([file.name, error.code])

async def send_file(source, **options):
    try:
        await room.send_file(source, **options)
    except ExceptionGroup as group:
        return [getattr(error, "code", type(error).__name__) for error in group.exceptions]

async def failure(call):
    try:
        if inspect.isawaitable(called := call()):
            await called
    except Exception as error:
        return getattr(error, "code", type(error).__name__)

def others():
    return sorted(each.info for each in room.peers.values())

# Send messages to every peer, on one of its channels or on a new one for a file. A message can end the connection.
async def send_raw(channel_name, messages):
    for peer in list(room.peers.values()):
        if channel_name == "file":
            channel = peer.connection.createDataChannel("file", protocol="tornado-signal-file")
            while channel.readyState == "connecting" and peer.connection.connectionState == "connected":
                await asyncio.sleep(0.01)
        else:
            channel = peer.channel if channel_name == "room" else peer._negotiation
        for message in messages:
            if channel.readyState == "open":
                channel.send(message)

# Some tests stop the server, which takes more than 5 s on a busy machine.
logging.getLogger("tornado_signal_client.life").setLevel("ERROR")

async def main():
    global files, peers, seen, tracks
    files, seen, tracks = [], [], []
    async with Peers(sys.argv[1].split(), sys.argv[2], info=sys.argv[3]) as peers:
        while line := await asyncio.to_thread(sys.stdin.readline):
            code = compile(json.loads(line), "a test", "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            found = eval(code)
            print(json.dumps(await found if inspect.isawaitable(found) else found, default=repr), flush=True)

asyncio.run(main())
"""


class Program:
    """A Python program with a `Peers` that evaluates expressions. `seen` has the events of its room."""

    def __init__(self, template, urls, origin, info, directory):
        options = {"env": dict(os.environ), "cwd": directory, "stdin": subprocess.PIPE}
        self.process = Process(" ".join(urls), origin, info, code=PROGRAM, forked_from=template, **options)

    def evaluate(self, expression):
        print(json.dumps(expression), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def end(self):
        _, errors = self.process.communicate()
        assert (self.process.returncode, errors) == (0, "")


@contextlib.contextmanager
def forking(enter=()):
    """Yield a process from which programs are forked. `enter` is the prefix of commands in its network."""
    template = Template("tornado_signal_client.room", enter=enter, flags=["-W", "error"])
    try:
        yield template
    finally:
        template.end()


def now_ms():
    return int(time.time() * 1000)


def enter(member, info, topic="lobby", **options):
    """Have a page enter a room, or a program, whose info is that of its start."""
    if isinstance(member, Program):
        member.evaluate(f"enter({topic!r}, **{options!r})")
    else:
        member.evaluate(f"enter({json.dumps(topic)}, {json.dumps({'info': info, **options})})")


def with_others(member, *infos):
    until(lambda: member.evaluate("others()") == sorted(infos))


def all_together(members):
    """Wait until each of these, by their infos, has exactly the others as its peers."""
    for info, member in members.items():
        with_others(member, *(members.keys() - {info}))


def enter_together(members, topic="lobby", **options):
    for info, member in members.items():
        enter(member, info, topic, **options)
    all_together(members)


def happened(page, *names):
    """The events of a page's room: name, info of the peer or message of the error, and data."""
    return [[name, about, data] for name, about, data, _ in page.evaluate("seen") if not names or name in names]


def messages(page):
    return [data for _, _, data in happened(page, "message")]


def all_stayed(*members):
    return not {"Left", "leave"} & {name for member in members for name, *_ in member.evaluate("seen")}
