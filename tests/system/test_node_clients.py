"""Programs in Node.js with original packages: clients of trackers and Nostr, RxDB, and tokens made by jose."""

import json
import os
import re
import subprocess
import textwrap

import pytest
from support import libraries
from support.documents import blocks, sections
from support.node import Node
from support.paths import ROOT
from support.tokens import write_secret
from support.waiting import end_all, kill, output, run_command, until

pytestmark = [pytest.mark.slow, pytest.mark.needs("node"), pytest.mark.timeout(120)]


@pytest.fixture
def script(tmp_path):
    """A function that returns the command of a script of tests/libraries, next to its packages."""
    (tmp_path / "node_modules").symlink_to(libraries.node_modules())
    for module in libraries.FOLDER.glob("*.mjs"):
        (tmp_path / module.name).write_text(module.read_text())
    return lambda name: ["node", "--import", tmp_path / "native.mjs", tmp_path / name]


REFUSAL = "blocked: only the ephemeral kinds 20000 to 29999 are relayed\n"


@pytest.mark.parametrize(
    ("protocol", "name", "more"),
    [
        ("tracker", "bittorrent-tracker", ["2\n"]),
        ("tracker", "p2pt", []),
        ("nostr", "nostr-tools", [REFUSAL, "1,11\n"]),
        ("nostr", "ndk", [REFUSAL]),
    ],
)
def test_clients_of_trackers_and_nostr_meet(protocol, name, more, start, script):
    server = start("--shared-protocols", protocol)
    command = [*script(f"{name}.mjs"), f"{server.url.replace('http', 'ws')}/{protocol}"]
    with end_all(subprocess.Popen, kill) as open_process:
        clients = [open_process([*command, each], stdout=subprocess.PIPE, text=True) for each in "ab"]
        for client, other in zip(clients, "ba", strict=True):
            for line in [f"{other}\n", *more]:
                assert client.stdout.readline() == line


@pytest.mark.parametrize(
    ("protocol", "versions"),
    [("nostr", ["rxdb"] * 3), ("rxdb", ["rxdb"] * 3), ("rxdb", ["rxdb-17.5", "rxdb", "rxdb-17.5"])],
)
def test_databases_of_rxdb_replicate(protocol, versions, start, script):
    server = start("--shared-protocols", protocol)
    command = [*script("rxdb.mjs"), f"{server.url.replace('http', 'ws')}/{protocol}"]
    with end_all(subprocess.Popen, kill) as open_process:
        commands = [[*command, name, version] for name, version in zip(("one", "two"), versions, strict=False)]
        one, two = (open_process(each, stdout=subprocess.PIPE, text=True) for each in commands)
        for client, other in ((one, "two"), (two, "one")):
            assert client.stdout.readline() == f"{other}\n"
        one.kill()
        again = open_process([*command, "three", versions[2]], stdout=subprocess.PIPE, text=True)
        assert {again.stdout.readline() for _ in range(2)} == {"one\n", "two\n"}
        assert two.stdout.readline() == "three\n"


@pytest.mark.parametrize("implementation", ["werift", "node-datachannel/polyfill"])
def test_members_of_rooms_and_pairs_exchange_messages_and_files(implementation, start, script):
    command = [*script("members.mjs"), (ROOT / "tornado_signal/web/client.js").as_uri(), start().url, implementation]
    done = run_command(*command)
    results = json.loads(output(done))
    assert "MaxListeners" not in done.stderr  # Node.js counts the listeners of a signal
    assert results == 4 * [[{"json": True}, 300_000, [1, 2, 3], "notes.txt", 300_000]]


# Expressions for a `support.node.Node`, in which `texts` are those of the open documents.
EDITORS = """
import * as Y from "yjs";
import { RTCPeerConnection } from "werift";
import { RoomProvider } from "./provider.mjs";

const providers = [];
export const open = (url) => {
  const options = { url, origin: "https://app.example", RTCPeerConnection };
  providers.push(new RoomProvider("document", new Y.Doc(), options));
  providers.at(-1).awareness.setLocalState({ editor: providers.length });
};
export const write = (at, text) => providers[at].doc.getText("t").insert(0, text);
export const texts = () => providers.map(({ doc }) => String(doc.getText("t")));
export const editors = (at) => [...providers[at].awareness.getStates().values()].map(({ editor }) => editor).sort();
export const leave = (at) => providers.splice(at, 1)[0].leave();
"""


def test_editors_with_the_provider_of_the_recipe_meet_and_survive_a_restart(start, script, tmp_path):
    """Two that enter at the same time also meet, unlike with y-webrtc (docs/y-webrtc.md)."""
    script("members.mjs")
    (recipe,) = blocks("recipes", "Yjs", "js")
    assert recipe.count('"tornado-signal"') == 1
    assert len(re.findall(r"^\s*\S", recipe, re.MULTILINE)) <= 40
    module = (ROOT / "tornado_signal/web/client.js").as_uri()
    (tmp_path / "provider.mjs").write_text(recipe.replace('"tornado-signal"', f'"{module}"'))
    (tmp_path / "editors.mjs").write_text(EDITORS)
    server = start()
    with end_all(Node, Node.close) as open_node:
        node = open_node(tmp_path / "editors.mjs")
        node.evaluate(f"[open('{server.url}'), open('{server.url}'), write(0, '<a>'), write(1, '<b>')].length")
        until(lambda: len({*node.evaluate("texts()")}) == 1 and node.evaluate("texts()[0].length") == 6)
        until(lambda: [node.evaluate(f"editors({at})") for at in (0, 1)] == [[1, 2], [1, 2]])
        server.stop()
        node.evaluate("[write(0, '<c>')].length")
        until(lambda: "<c>" in node.evaluate("texts()[1]"))
        start("--port", server.url.rpartition(":")[2])
        node.evaluate(f"[open('{server.url}')].length")
        until(lambda: len({*node.evaluate("texts()")}) == 1)
        node.evaluate("[leave(0)].length")
        until(lambda: node.evaluate("editors(0)") == [2, 3])
        node.evaluate("[setTimeout(process.exit)].length")


def test_missing_origin_of_a_program_is_named(start):
    client = (ROOT / "tornado_signal/web/client.js").as_uri()
    program = f'const {{ SignalClient }} = await import("{client}");'
    program += f'await new SignalClient("{start().url}").sessions("lobby")'
    program += ".catch(({ code, message }) => console.log(code, message));"
    command = ["node", "--experimental-websocket", "--input-type=module", "--eval", program]
    said = output(run_command(*command))
    assert said.startswith("invalid-origin Outside of browsers, set `origin` to that of the pages")


def test_the_tests_of_p2pt_pass(start, script, tmp_path):
    servers = [start("--shared-protocols", "tracker", data=name) for name in ("one", "other")]
    node, *flags, tests = script("node_modules/p2pt/test/node.js")
    trackers = " ".join(server.url.replace("http", "ws") for server in servers)
    with (tmp_path / "log").open("w") as log:  # Node.js exits before it has written everything to a pipe
        command = (node, *flags, "--import", tmp_path / "p2pt-tests.mjs", tests)
        passed = run_command(*command, stdout=log, env=os.environ | {"TRACKERS": trackers})
    text = (tmp_path / "log").read_text()
    assert passed.returncode == 0, text[-2000:]
    assert "not ok" not in text
    assert "ALL TESTS PASSED" in text
    assert text.count("PASS - ") == 8


def test_tokens_of_jose_are_accepted(start, script, tmp_path):
    keys = tmp_path / "keys"
    keys.mkdir()
    made = json.loads(output(run_command(*script("jose.mjs"))))
    for name, text, _ in made:
        (keys / name).write_text(text)
    server = start("--auth-keys", keys)

    for name, _, token in made:
        assert server.exchange("/lobby/sessions", token=token)[0] == 200, name
        assert server.exchange("/attic/sessions", token=token)[0] == 403, name
        assert server.exchange("/lobby/sessions", token=token[:-8] + "AAAAAAAA")[0] == 401, name
    assert len(made) == 4


def test_tokens_of_the_node_js_program_of_the_documentation_are_accepted(start, script, tmp_path):
    text = sections("authorization")["In five minutes"]
    program = textwrap.dedent(re.search(r"^ +```js\n(.*?)^ +```$", text, re.MULTILINE | re.DOTALL)[1])
    keys = write_secret(tmp_path / "keys")
    (tmp_path / "tokens.mjs").write_text(program + 'console.log(await makeToken("alice", "lobby"));\n')
    token = output(run_command(*script("tokens.mjs"), cwd=tmp_path)).strip()
    server = start("--auth-keys", keys)
    assert [server.exchange(f"/{topic}/sessions", token=token)[0] for topic in ("room~lobby", "lobby")] == [200, 403]
