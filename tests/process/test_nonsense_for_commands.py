"""A server with many kinds of nonsense, against the commands: one line says what is wrong."""

import argparse
import asyncio
import json

import pytest
from support import malicious
from support.command import CLIENT, COMMAND, call

from tornado_signal.operator import admin, health
from tornado_signal_client import http
from tornado_signal_client.cli import discovery
from tornado_signal_client.types import Event

# A structural rule says where the package reads responses. Each of these readers has a command that gets every kind of
# nonsense. Other commands call the same reader, and get a few kinds.
FEW = ("no object", "control characters", "compressed bomb", "slow body", "cut head", "redirection to another host")
OTHERS = tuple(
    map(str.split, ("sessions lobby", "watch lobby", "ping --count 1", "offer lobby", "answer lobby", "check-ice"))
)
COMMANDS = [
    *((("topics",), name) for name in (malicious.RESPONSES | malicious.TOPICS)),
    *((("watch",), name) for name in (*FEW, *malicious.TOPICS)),
    *((command, name) for command in OTHERS for name in FEW),
]
STATUS, HEALTH = ("admin", "status"), ("health",)


@pytest.fixture(scope="module")
def urls():
    with malicious.http_servers() as urls:
        yield urls


@pytest.fixture(autouse=True)
def short_limits(monkeypatch):
    monkeypatch.setattr(http, "RESPONSE_S", 1.0)
    monkeypatch.setattr(health, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(admin, "LIMIT_S", 1.0)


def check_error(*arguments, command=COMMAND):
    with malicious.bounded_memory():
        ended = call(*arguments, command=command, input=b"x")
    assert (ended.returncode, ended.stdout) == (1, "")
    *warnings, _ = lines = ended.stderr.splitlines()
    assert all("WARNING tornado_signal_client.life: no server has responded for 5 s" in line for line in warnings)
    assert len(warnings) <= 1
    assert all(line.isprintable() for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "name"), COMMANDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_nonsense_is_one_line_of_error(urls, arguments, name):
    check_error(*arguments, "--url", f"{urls['']}/{name.replace(' ', '-')}", command=CLIENT)


@pytest.mark.parametrize("name", ["many-ICE-servers", "wrong-ICE-port", "control-characters-in-ICE"])
def test_nonsense_as_ice_servers_is_one_line_of_error(urls, name):
    with malicious.bounded_memory():
        ended = call("check-ice", "--url", f"{urls['']}/{name}", command=CLIENT)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert (ended.stderr + ended.stdout).replace("\n", "").isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "tables"),
    sorted(
        {(name, each, False) for name in (*malicious.RESPONSES, *malicious.ADMIN) for each in (STATUS, HEALTH)}
        | {(name, ("admin", "drain"), False) for name in (*FEW, *malicious.ADMIN)}
        | {(name, STATUS, True) for name in (*FEW, *malicious.ADMIN)}
    ),
)
def test_nonsense_of_an_admin_listener_is_one_line_of_error(monkeypatch, urls, name, arguments, tables):
    monkeypatch.setattr("tornado_signal.system.terminal.wants_tables", lambda as_json: tables)
    url = urls[name]
    place = ["--port", url.split(":")[-1]] if arguments == HEALTH else ["--admin-url", url]
    if arguments == STATUS and not tables and name in UNCHANGED.split(", "):
        ended = call(*arguments, *place)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert isinstance(json.loads(ended.stdout), dict)
    else:
        check_error(*arguments, *place)


# Objects, which programs get unchanged.
UNCHANGED = "empty object, no list, many objects, empty entries, wrong field, no number, too large a number"
UNCHANGED += ", negative length, two lengths, half of a surrogate pair, cursor without text, wrong processes"


async def test_table_of_a_topic_has_the_newest_sessions_only(monkeypatch):
    class Client:
        async def topic_events(self, topic):
            for number in range(discovery.MAX_ROWS + 500):
                yield Event("session", malicious.SESSION | {"code": f"code-{number}"})
            await asyncio.Event().wait()

    drawn = asyncio.get_running_loop().create_future()
    monkeypatch.setattr("tornado_signal_client.cli.terminal.wants_tables", lambda as_json: True)
    monkeypatch.setattr(discovery, "_draw", lambda head, heads, rows: drawn.done() or drawn.set_result([*rows]))
    watching = asyncio.ensure_future(discovery.watch_topic(Client(), argparse.Namespace(topic="lobby", json=False)))
    rows = await asyncio.wait_for(drawn, 60)
    watching.cancel()
    assert [code for code, *_ in rows] == [
        f"code-{number}" for number in reversed(range(500, discovery.MAX_ROWS + 500))
    ]
