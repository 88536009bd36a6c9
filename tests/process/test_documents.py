"""The documentation keeps its word: every command of it runs, and its tables are those of the package."""

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify
from support.checkout import copy_checkout
from support.command import BOUND_S, COMMAND, environment
from support.documents import ADDRESS, all_blocks, blocks, pages, sections, table
from support.paths import ROOT
from support.redis_servers import free_port
from support.searches import some
from support.service import declared
from support.waiting import end_all, kill, output, run_command
from websockets.sync.client import connect

import tornado_signal
from tornado_signal import errors
from tornado_signal.__main__ import make_parser
from tornado_signal.outgoing.webhook_events import connection_event, session_event
from tornado_signal.service.statuses import STATUS
from tornado_signal.settings.settings import SETTINGS
from tornado_signal.stores.leveldb import layout
from tornado_signal.system import assets
from tornado_signal_client import cli as client

ON_PATH = {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}


def expected(text):
    """A pattern for an output in which … stands for what differs each time."""
    return ".+".join(map(re.escape, text.split("…")))


# A member of the room that says one thing and ends with the answer.
GREETER = """
import asyncio
from tornado_signal_client import Joined, Message, Peers


async def main():
    async with Peers("http://127.0.0.1:3000", "https://app.example", info="greeter") as peers:
        async with peers.room("lobby") as room:
            async for event in room:
                if isinstance(event, Joined):
                    await room.send("hello", event.peer)
                elif isinstance(event, Message):
                    return print(f"{event.peer.name}: {event.data}")


asyncio.run(main())
"""


BASH = ["bash", "-euo", "pipefail", "-c"]


def bash(script, cwd, prefix=(), **variables):
    """Run a block and return its output. Every command must succeed."""
    variables = environment(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables)
    return output(run_command(*prefix, *BASH, script, cwd=cwd, env=variables))


@contextlib.contextmanager
def serving(script, cwd, prefix=(), **variables):
    """Start the server by the command of a page for the duration of the block. Yield its address."""
    *before, last = script.split("&& ")  # bash becomes the server, so that a signal reaches it
    with subprocess.Popen(
        [*prefix, *BASH, "&& ".join([*before, f"exec {last}"])],
        cwd=cwd,
        env=environment(PIP_DISABLE_PIP_VERSION_CHECK="1", **variables),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        log = ""
        while not (found := re.search(r"listening on (http://\S+)", log)):
            log += (line := process.stderr.readline())
            assert line, log
        try:
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=BOUND_S)
    assert process.returncode == 0


# The number of blocks of each page, and the files that test those which this one does not.
BLOCKS = """
README: 4, authorization: 1, browser-client: 1 (browser/test_client_js), command-line: 2,
containers: 11 (system/test_containers builds and runs the same), contributing: 7,
deploy: 8 (system/test_deploy, system/test_systemd), design: 3, from-peerjs: 1, from-trystero: 1 (browser/test_moving),
http-api: 1, kubernetes: 9 (system/test_kubernetes), maintenance: 3 (system/test_systemd_real),
monitoring: 1 (system/test_monitoring), operator-page: 3, python: 3, quickstart: 6 (one in browser/test_client_js),
recipes: 11 (browser/test_recipes), scaling: 7 (system/test_several_servers, system/test_systemd), settings: 1,
systemd: 5 (system/test_systemd_real), troubleshooting: 12 (also browser/test_troubleshooting),
turn: 2 (system/test_systemd, system/test_check_ice), webhooks: 2, websocket-api: 1
"""


def test_every_code_block_is_tested():
    languages = ("sh", "html", "python", "ini", "yaml", "")
    found = {page: len([each for each, _ in all_blocks(text) if each in languages]) for page, text in pages().items()}
    stated = {page: int(count) for page, count in re.findall(r"([\w-]+): (\d+)", BLOCKS)}
    assert {page: count for page, count in found.items() if count} == stated
    shown = [block for page, text in pages().items() if page != "README" for block in all_blocks(text)]
    assert [block for block in all_blocks(pages()["README"]) if block not in shown] == []


def test_pages_of_the_documentation_work_with_any_text_and_show_no_weak_password():
    shown = [text for page in pages().values() for language, text in all_blocks(page) if language == "html"]
    assert [text for text in shown if not text.startswith('<!DOCTYPE html>\n<meta charset="utf-8">\n')] == []
    passwords = re.findall(r"password[=:] ?\"(.+?)\"", "".join(pages().values()))
    assert passwords
    assert [password for password in passwords if not re.fullmatch(r"[a-z]+( [a-z]+){3,}", password)] == []


@pytest.mark.slow
@pytest.mark.needs("curl", "git")
@pytest.mark.timeout(1800)
def test_quickstart_installs_a_server_whose_commands_work_as_documented(subtests, network, tmp_path):
    checkout = tmp_path / "tornado-signal"
    copy_checkout(checkout)
    (script,) = blocks("quickstart", "Start a server", "sh")
    with serving(script, checkout, TORNADO_SIGNAL_PORT="0") as url:
        for part in (curl_commands, waiting_requests, two_peers, commands_in_a_shell, commands_on_settings):
            with subtests.test(part.__name__):
                part(checkout, url, network)


def curl_commands(checkout, url, network):
    assert (checkout / "data" / "CURRENT").exists()
    rest = blocks("quickstart", "Be two peers with curl", "sh", "json")
    script = "".join(rest[::2]).replace(ADDRESS, url)
    assert script.count(url) == 1
    assert "3000" not in script
    assert re.fullmatch(expected("".join(rest[1::2])), bash(script, checkout))


def waiting_requests(checkout, url, network):
    script, answers = blocks("http-api", "Example", "sh", "json")
    names = blocks("quickstart", "Be two peers with curl", "sh")[0].splitlines()[0]
    assert re.fullmatch(expected(answers), bash(f"{names}\n{script}".replace(ADDRESS, url), checkout))


def two_peers(checkout, url, network):
    (script,) = blocks("quickstart", "Two real peers", "sh")
    install, script = script.split("\n", 1)
    bash(install, checkout)
    command, data = ".venv/bin/tornado-signal serve", str(checkout / "peers")
    with serving(command, checkout, network, TORNADO_SIGNAL_DATA_DIR=data) as url:
        assert url == ADDRESS
        printed = bash(script, checkout, network)
    # Both may print at once, and without a buffer (PYTHONUNBUFFERED) the parts of their lines alternate.
    found = sorted(re.findall("heard:|hello from [AB]", printed))
    assert found == ["heard:", "heard:", "hello from A", "hello from B"]


def commands_in_a_shell(checkout, url, network):
    peers, others = blocks("command-line", "Use a server", "sh")
    script = (peers + others).replace(ADDRESS, url)
    assert script.count(url) == 1
    first, *_, measured = bash(script, checkout).splitlines()
    assert first == "answer to: offer of alice"
    assert '"count": 3' in measured


def commands_on_settings(checkout, url, network):
    (script,) = blocks("settings", "Settings", "sh")
    help_, check, version = [
        bash(line, checkout, TORNADO_SIGNAL_PORT="0", TORNADO_SIGNAL_DATA_DIR=str(checkout / "checked"))
        for line in script.splitlines()
    ]
    assert "--data-dir" in help_
    assert check.startswith("settings: can be used\n")
    assert re.fullmatch(r"\d+(\.\d+)+(\.dev\d+)? \(([0-9a-f]{40}|unknown)\)\n", version)


@pytest.mark.slow
@pytest.mark.needs("aiortc")
def test_programs_in_python_join_publish_and_meet_in_a_room(network, tmp_path):
    (joiner,) = blocks("python", "Connect two programs", "python")
    assert len([line for line in joiner.splitlines() if line]) <= 10
    line = re.search(r"`(async for [^`]*)`", sections("python")["Connect two programs"])[1]
    publisher, changed = re.subn(r"async with await peers\.join.*", line, joiner)
    assert changed == 1

    def begin(program):
        return popen([*network, sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)

    with serving(f"{COMMAND} serve", tmp_path, network) as url, end_all(subprocess.Popen, kill) as popen:
        assert url == ADDRESS
        publishing, joining = begin(publisher), begin(joiner)
        assert [each.stdout.readline() for each in (joining, publishing)] == ["hello\n"] * 2
        assert joining.wait() == 0
        (chatting,) = blocks("python", "Join the chat page", "python")
        chats = [begin(chatting) for _ in range(2)]
        assert [chat.stdout.readline() for chat in chats] == ["hello from Python\n"] * 2
        echo = begin(blocks("python", "Be in a room", "python")[0])
        assert begin(GREETER).stdout.readline() == "Echo: hello\n"
        assert [echo.stdout.readline() for _ in range(2)] == ["greeter is here\n", "greeter has left\n"]


@pytest.mark.needs("openssl")
def test_tokens_of_authorization_open_the_server(start, tmp_path):
    text = sections("authorization")["In five minutes"]
    (setup,) = all_blocks(textwrap.dedent(re.search(r"^ +```sh\n.*?```$", text, re.MULTILINE | re.DOTALL)[0]))
    (program,) = all_blocks(textwrap.dedent(re.search(r"^ +```py\n.*?```$", text, re.MULTILINE | re.DOTALL)[0]))
    *commands, serve = setup[1].splitlines(keepends=True)
    bash("".join(commands), tmp_path)
    server = start(*serve.split()[2:], cwd=tmp_path)
    make = program[1] + "print(make_token('alice', 'lobby'))"
    (command,) = blocks("authorization", "In five minutes", "sh")
    for token in (
        subprocess.check_output([sys.executable, "-c", make], cwd=tmp_path, text=True),
        bash(command, tmp_path, **ON_PATH),
    ):
        assert server.exchange("/room~lobby/sessions", token=token.strip())[0] == 200
        assert server.exchange("/lobby/sessions", token=token.strip())[0] == 403
    assert server.exchange("/room~lobby/sessions")[0] == 401


@pytest.mark.needs("openssl")
def test_receiver_of_webhooks_prints_events(start, tmp_path):
    (setup,) = blocks("webhooks", "In five minutes", "sh")
    (program,) = blocks("webhooks", "In five minutes", "python")
    port = str(free_port())
    *commands, serve = setup.splitlines(keepends=True)
    bash("".join(commands), tmp_path)
    assert (tmp_path / "webhook.secret").stat().st_mode & 0o777 == 0o600
    command = [sys.executable, "-c", program.replace("8000", port)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **options) as receiver:
        try:
            server = start(*serve.replace("8000", port).split()[2:], cwd=tmp_path)
            code = server.offer()
            line = receiver.stdout.readline()
            assert line.startswith("session.created ")
            assert code in line
        finally:
            receiver.terminate()


@pytest.mark.needs("curl", "openssl")
def test_commands_of_the_operators_page_act(start, tmp_path):
    make, serve = blocks("operator-page", "Open it", "sh")[0].splitlines()
    (commands,) = blocks("operator-page", "Actions", "sh")
    (request,) = blocks("operator-page", "Data", "sh")
    bash(make, tmp_path)
    server = start(*serve.replace("3001", "0").split()[2:], cwd=tmp_path)
    origin, topic = re.search(r"--origin (\S+) --topic (\S+)", commands).groups()
    assert server.call(f"/{topic}/offer", {"info": "i", "offer": "o"}, origin=origin)[0] == 200
    port = server.admin_url.rpartition(":")[2]
    printed = bash(commands.replace("3001", port), tmp_path, **ON_PATH)
    assert [line.partition(": ")[2] for line in printed.splitlines()[-2:]] == ["connections 0", "sessions 1"]
    assert json.loads(bash(request.replace("3001", port), tmp_path))["results"][0]["connections"] == 0


def test_documented_webhook_events_and_their_fields_are_those_of_the_package():
    types = {name for row in table("webhooks", "Events", "type") for name in re.findall("`(.+?)`", row[0])}
    (setting,) = (setting for setting in SETTINGS if setting.name == "webhook_events")
    assert types == set(setting.type.allowed.partition(";")[0].split(" or "))
    fields = {name for row in table("webhooks", "Events", "field") for name in re.findall("`(.+?)`", row[0])}
    session = session_event(0, "created", "", b"\0" * 16, "", 0, 0)
    connection = connection_event("", 0, "", "", "", "", 0, 0)
    assert fields == {"sequence", "server", *session, *connection}


@pytest.mark.needs("curl")
def test_requests_of_troubleshooting_show_the_reason(start, tmp_path):
    (topics,) = blocks("troubleshooting", "The room stays empty", "sh")
    (health,) = blocks("troubleshooting", "403 or CORS", "sh")
    server = start("--allowed-origins", "http://127.0.0.1:8000")
    assert bash(topics.replace(ADDRESS, server.url), tmp_path).startswith('{"topics":[]')
    refused = bash(health.replace("https://signal.example.com", server.url), tmp_path)
    assert refused.startswith("HTTP/1.1 403 ")
    assert refused.endswith('{"error":"Origin not allowed"}')
    none = bash(re.sub("-H '.*?' ", "", health).replace("https://signal.example.com", server.url), tmp_path)
    assert none.endswith('{"error":"Missing or invalid required parameter: Origin"}')


def test_websocket_messages_have_the_documented_responses(start):
    """The answers and events of one request may come in any order."""
    (lines,) = blocks("websocket-api", "WebSocket API", "")
    server = start()
    with connect(f"{server.url.replace('http', 'ws')}/ws", origin="https://app.example") as socket_:
        for sent, *wanted in map(str.splitlines, some(lines.split("-> ")[1:])):
            socket_.send(sent)
            received = [socket_.recv(BOUND_S) for _ in wanted]
            for text in wanted:
                assert any(re.fullmatch(expected(text.removeprefix("<- ")), each) for each in received), received
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.needs("mkdocs")
@pytest.mark.timeout(300)
def test_contributing_commands_exist_and_have_their_options():
    """Most of them would run this test inside itself."""
    for line in some("".join(blocks("contributing", "Contributing", "sh")).splitlines()):
        program = line.split()[0]
        assert os.access(ROOT / program, os.X_OK), line
        if re.fullmatch(r"tests/\w+/\w+", program):
            shown = subprocess.check_output([program, "--help"], cwd=ROOT, text=True)
            assert {*re.findall("--[a-z-]+", line)} <= {*re.findall("--[a-z-]+", shown)}, line
        elif program.startswith(("tests/", ".ci/")):
            subprocess.run(["bash", "-n", program], cwd=ROOT, check=True)


def test_documented_endpoints_match_the_routes():
    cells = [row[0] for row in table("http-api", "Endpoints", "endpoint")]
    rows = [re.fullmatch(r"`([A-Z]+) (\S+)`", each).groups() for cell in cells for each in cell.split(", ")]
    routes = {path.replace("{topic}", ":topic"): method for path, method in declared().items()}
    files = [re.sub("/client/.*", "/client/*.js", path) for path in assets.CLIENT]
    routes |= dict.fromkeys([*files, "/demo", "/ws", "/asyncapi.json"], "GET")
    assert len(rows) == len(routes)
    assert {path: method for method, path in rows} == routes


def constant(cell, folder):
    """The value of a constant that is named as `FILE` `NAME`, in ms if the source has seconds."""
    file, name = re.fullmatch(r"`(\S+)` `(\w+)`", cell).groups()
    found = re.search(
        rf"^(?:export )?(?:const )?{name}(?:: Final)? = (\S+?);?(?: |$)", (folder / file).read_text(), re.M
    )
    value = found[1].replace("_", "")
    return float(value) * (1000 if name.endswith("_S") else 1) if value[0].isdigit() else value.strip('"')


def test_constants_of_the_room_protocol_are_those_of_both_languages():
    package = Path(tornado_signal.__file__).parent
    rows = table("room-protocol", "Constants", "constant")
    assert len(rows) == 13
    for _, value, python, javascript in rows:
        expected = value.strip("`")
        expected = float(expected) if expected.isdigit() else expected
        assert constant(javascript, package / "web" / "client") == expected
        assert not python or constant(python, Path(client.__file__).parents[1]) == expected


def test_documented_errors_match_the_server():
    made = {errors.InvalidParameter: ("…",), errors.MethodNotAllowed: ((),), errors.Unavailable: ("x",)}
    made |= {errors.TooMany: ("x", 1), errors.Unauthorized: ("x",), errors.NotAllowed: ("x",)}
    texts = {(str(status), f"`{kind(*made.get(kind, ()))}`") for kind, status in STATUS.items()}
    rows = [tuple(cells[:2]) for cells in table("http-api", "Errors", "status")]
    assert len(rows) == len(set(rows))
    assert set(rows) == texts | {("500", "`Internal server error`")}


def test_table_of_keys_matches_the_module():
    (keys,) = blocks("design", "Keys", "")
    assert keys == "".join(re.findall(r"^ {4}(.*\n)", layout.__doc__, re.MULTILINE))


@pytest.mark.needs("git")
def test_no_text_installs_a_package_that_is_not_published():
    kinds = ("*.md", "*.py", "*.js", "*.html", "*.ts", "*.yaml")
    names = subprocess.check_output(["git", "ls-files", *kinds], cwd=ROOT, text=True).split()
    text = "".join((ROOT / name).read_text() for name in names if not name.endswith(Path(__file__).name))
    unpublished = r"pip install .?tornado[-_]signal|npm (?:install|i|add) tornado-signal|unpkg\.com|jsdelivr|esm\.sh"
    assert re.findall(rf"{unpublished}|ghcr\.io", text) == []


def test_named_flags_exist():
    foreign = {  # of programs other than the command
        *("--format", "--build-arg", "--read-only", "--tmpfs", "--time", "--cluster-replace", "--cluster-slave"),
        *("--quick", "--only", "--server", "--cluster", "--purge"),
    }
    commands = [*make_parser().commands.values(), *client.make_parser().commands.values()]
    flags = {flag for command in commands for argument in command.arguments for flag in argument.option_strings}
    flags |= {setting.flag for setting in SETTINGS}
    named = {flag for text in pages().values() for flag in re.findall(r"`(--[a-z-]+)[ `=]", text)}
    assert named >= foreign
    assert named - foreign - flags == set()


def test_every_page_and_example_has_the_same_admin_port():
    chart = (ROOT / "examples/kubernetes/tornado-signal/templates").iterdir()
    text = "".join([*pages().values(), *(each.read_text() for each in chart)])
    before = r"ADMIN_PORT=|\"admin_port\" |name: admin, (?:port|containerPort): |--admin-port |prometheus.io/port: \""
    ports = re.findall(rf"(?:{before}|127\.0\.0\.1:(?!3000|4318|8000))(\d{{4}})", text)
    assert (set(ports), len(ports) >= 9) == ({"3001"}, True)


def test_claims_of_the_front_page_name_a_test_and_figures_have_their_source():
    """A link with a title names a test, or a step of one, in its file."""
    proofs = {cells[0]: cells[-1] for heading in ("Features", "In production") for cells in table("README", heading)}
    assert len(proofs) >= 20
    for claim, proof in proofs.items():
        named = re.findall(r'\]\((tests/[\w/]+\.py) "(\w+)"\)', proof)
        assert named, claim
        for path, name in named:
            assert re.search(rf"^(?:(?:async )?def )?{name}\b", (ROOT / path).read_text(), re.MULTILINE), (
                f"{path}: {name}"
            )
    for figure, measured in table("README", "Figures"):
        text, anchor = re.fullmatch(r"\[(.+)\]\(docs/performance\.md#([\w-]+)\)", measured).groups()
        (source,) = (text for heading, text in sections("performance").items() if slugify(heading, "-") == anchor)
        assert text in source, figure
    assert len(pages()["README"].splitlines()) <= 150


def test_named_files_and_headings_exist():
    text = "".join(pages().values())
    named = set(
        re.findall(r"`((?:tests|systemd|docs|tornado_signal|\.ci)/[\w./-]*|[A-Z]+(?:\.md)?)(?: --\w.*)?`", text)
    )
    named -= set("FIMSLGE") | {"OPTIONS", "HEAD", "GET", "POST", "WS", "TOPIC", "PAIR", "ROOM", "OFFER", "VERSION"}
    named -= {"REQ", "EVENT", "CLOSED", "AUTH", "COUNT", "OK"}  # messages of Nostr
    assert {"tests/peer.py", "systemd/", "tornado_signal/", "CHANGELOG.md", "LICENSE", ".ci/run"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []
    for path, anchor in some(re.findall(r"\]\((?!https?:)([^)# ]*)#?([^)\" ]*)", pages()["README"])):
        assert (ROOT / path).is_file(), path
        headings = sections(Path(path).stem) if anchor else ()
        assert not anchor or anchor in [slugify(heading, "-") for heading in headings], f"{path}#{anchor}"


def test_every_example_of_a_proxy_is_tested_and_names_existing_settings():
    command = ["git", "ls-files", "docs", "examples", "systemd", "README.md"]
    files = subprocess.check_output(command, cwd=ROOT, text=True).split()
    forwarding = re.compile("proxy_pass|reverse_proxy|ProxyPass|default_backend|kind: Ingress")
    texts = {name: re.sub("(?m)^[ \t]*#.*", "", (ROOT / name).read_text(errors="replace")) for name in files}
    ours = ["systemd/Caddyfile", "systemd/haproxy.cfg", "systemd/nginx.conf"]
    others = ["examples/containers/Caddyfile", "examples/kubernetes/tornado-signal/templates/ingress.yaml"]
    found = {name: len(each) for name, text in texts.items() if (each := forwarding.findall(text))}
    assert found == {"docs/proxies.md": 2} | dict.fromkeys([*ours, *others], 1)
    types = {each.name.upper(): each.type for each in SETTINGS}
    for name in ours:
        said = set(re.findall(r"TORNADO_SIGNAL_([A-Z_]+)=([\w.:/-]*\w)", (ROOT / name).read_text()))
        assert {setting for setting, _ in said} == {"TRUSTED_PROXIES"}
        assert all(types[setting].parse(value) for setting, value in said)
