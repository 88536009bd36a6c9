"""The browser module as applications take it: typed, bundled and minified."""

import gzip
import json
import subprocess

import pytest
from support import npm_package
from support.paths import ROOT, TESTS

BUILT = npm_package.WEB / "built"
MAX_BYTES = 6_500  # of SignalClient alone, minified and gzipped

# Every event has the type of its name. Mistakes are errors.
PROGRAM = """\
import { nearby, pair, publish, room, SignalClient, SignalError } from "tornado-signal";
import type { Connection, Peer, Room, SignalEvent } from "tornado-signal";

const lobby = room("lobby", { info: "alice", me: "Alice", channel: { ordered: false } });
lobby.addEventListener("join", ({ peer }) => lobby.send(peer.info.toUpperCase(), peer));
lobby.addEventListener("leave", ({ peer }) => lobby.send(new Uint8Array(1), peer.id));
lobby.addEventListener("message", ({ peer, data }) => {
  const text: string = data instanceof ArrayBuffer ? new TextDecoder().decode(data) : String(data);
  lobby.send({ text, at: [1, null] }, lobby.peers.get(peer.id));
});
lobby.addEventListener("file", async ({ peer, file }) => {
  file.addEventListener("progress", () => console.log(peer.info, file.received / file.size));
  const received: File = await file.accept();
  const onprogress = ({ peer, loaded, total }: { peer: Peer; loaded: number; total: number }) =>
    console.log(peer.id, loaded / total);
  await lobby.sendFile(received, { to: peer, onprogress });
});
lobby.addEventListener("stream", ({ peer, stream }) => lobby.send(`${peer.name} ${peer.streams.length} ${stream.id}`));
lobby.addEventListener("error", ({ error }) => console.error(error.code === "ice-failed", error.message));
lobby.addEventListener("close", async () => await lobby.leave());
const home: Room = await nearby({ info: "alice", password: "of the family" });
console.log(home.ignored);
const other: Connection = await pair("strangers", { info: "alice", channel: { ordered: false } });
other.peerConnection.addTransceiver("audio");
other.addEventListener("message", ({ data }) => other.send(data));
other.addEventListener("file", async ({ file }) => other.sendFile(await file.accept()));
other.send({ begins: other.initiator, to: other.info });
const all: Peer[] = [...lobby.peers.values()];
type Move = { x: number; y: number };
const board = room<Move>("board");
await board.ready;
for await (const { peer, data } of board.messages({ signal: AbortSignal.timeout(1000) })) {
  if (data.x > 0) await peer.send({ x: 1, y: data.y });
}
board.addEventListener("message", ({ peer, data: { x, y }, size }) => console.log(peer.info, x + y + size));
board.channel<Move>("cursor", { ordered: false }).addEventListener("message", ({ data }) => board.send(data));
for (const peer of board.peers.values()) peer.addEventListener("message", ({ data }) => console.log(data.x));
board.closed.catch((error) => error instanceof SignalError && error.retryable && console.log(error.code));
// @ts-expect-error
board.send({ x: 1 });
// @ts-expect-error
board.channel<Move>("cursor").send("text");
// @ts-expect-error
lobby.addEventListener("join", ({ data }) => data);
// @ts-expect-error
lobby.peers.clear();
// @ts-expect-error
lobby.addEventListener("error", ({ error }) => error.code === "no-such-code");
// @ts-expect-error
room("lobby", { onstep: () => {} });

const publication = publish("lobby", { RTCPeerConnection, channel: { ordered: false } });
const greet = ({ connection }: Event & { connection: { channel: RTCDataChannel } }) => connection.channel.send("hello");
publication.addEventListener("connection", greet);
publication.removeEventListener("connection", greet);
publication.addEventListener("error", ({ error }) => console.error(error.message));
publication.addEventListener("close", ({ type }) => console.log(type));
// @ts-expect-error
publication.addEventListener("connection", ({ peer }) => peer);
// @ts-expect-error
room("lobby", { RTCPeerConnection: class {} });

const client = new SignalClient("https://signal.example.com", { origin: "https://app.example.com" });
const events: SignalEvent[] = [];
for await (const event of client.events("lobby")) {
  events.push(event);
  if (event.type === "session") console.log(event.data.offerCandidates.length);
  else console.log(event.data.reason === "expired", event.data.code);
}
for await (const event of client.events({ code: "c", side: "offerer" })) {
  if (event.type === "answer") console.log(event.data.answer.length);
  if (event.type === "candidate") console.log(event.data.candidate.length);
  // @ts-expect-error
  if (event.type === "offer") console.log(event.data.answer);
  // @ts-expect-error
  if (event.type === "session") console.log(event.data);
}
export default all;
"""
# In a project without types of the DOM.
WITHOUT_DOM = """\
import { SignalClient, SignalError, type Session, type TokenSource } from "tornado-signal/signal-client";

const token: TokenSource = async () => "token";
const client = new SignalClient("https://signal.example.com", { origin: "https://app.example.com", token });
const codes = (await client.sessions("lobby", { wait: 10 })).sessions.map(({ code }: Session) => code);
for await (const event of client.events("lobby")) if (event.type === "session") codes.push(event.data.code);
const urls: string | string[] = (await client.iceServers()).iceServers[0].urls;
const status = (error: unknown) => (error instanceof SignalError && error.code === "not-found" ? error.status : 0);
// @ts-expect-error
await client.health({ signal: "stop" });
// @ts-expect-error
document.title = "types of the DOM";
export { codes, status, urls };
"""

pytestmark = [pytest.mark.slow, pytest.mark.needs("node")]


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    return npm_package.install(tmp_path_factory.mktemp("npm"))


@pytest.mark.parametrize(
    ("program", "libraries"), [(PROGRAM, {}), (WITHOUT_DOM, {"lib": ["es2022"], "types": []})], ids=["dom", "no dom"]
)
def test_strict_program_is_typed_and_mistakes_are_errors(program, libraries, application):
    (application / "package.json").write_text('{"type": "module"}')
    (application / "program.ts").write_text(program)
    options = {"strict": True, "noEmit": True, "target": "es2022", "module": "nodenext", "skipLibCheck": False}
    (application / "tsconfig.json").write_text(json.dumps({"compilerOptions": options | libraries}))
    npm_package.run("tsc", cwd=application)


def test_the_client_of_the_api_alone_is_small(application):
    parts = [f"--external:*/{path.name}" for path in BUILT.glob("*.js")]
    entry = application / "node_modules" / "tornado-signal" / "signal-client.js"
    minified = npm_package.run("esbuild", "--bundle", "--minify", "--format=esm", *parts, entry, cwd=application)
    assert "class extends Error" in minified
    assert len(gzip.compress(minified.encode(), 9)) < MAX_BYTES


def test_built_files_are_those_of_the_sources(tmp_path):
    npm_package.node_modules()
    subprocess.run([TESTS / "build-client", tmp_path], check=True)
    built, now = ({path.name: path for path in folder.iterdir()} for folder in (BUILT, tmp_path))
    assert {*built} == {*now}
    for name, path in now.items():
        # Versions of Node.js may compress differently, so these are compared by what they contain.
        same = name.endswith(".br") or path.read_bytes() == built[name].read_bytes()
        assert same, f"web/built/{name} is outdated: run tests/build-client"
    expand = "const [, ...paths] = process.argv; for (const path of paths) process.stdout.write(EXPAND(path))"
    expand = expand.replace("EXPAND(path)", "require('zlib').brotliDecompressSync(require('fs').readFileSync(path))")
    compressed = sorted(path for path in BUILT.glob("*.br"))
    done = subprocess.run(["node", "--eval", expand, *compressed], stdout=subprocess.PIPE, check=True)
    plain = b"".join(path.with_suffix("").read_bytes() for path in compressed)
    assert done.stdout == plain, "a compressed form in web/built is outdated: run tests/build-client"


def test_package_contains_only_the_module(application):
    installed = application / "node_modules" / "tornado-signal"
    names = {path.name for path in installed.iterdir()}
    entries = {"index.js", "client.d.ts", "signal-client.js", "signal-client.d.ts", "react.js", "react.d.ts"}
    assert names == {"client", "package.json", "README.md", "LICENSE", *entries}
    # Bundlers would put the path of the developer's files there. Hermes does not compile it.
    assert not [path for path in installed.rglob("*.js") if "import.meta" in path.read_text()]
    assert (installed / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    described = json.loads((installed / "package.json").read_text())
    forbidden = {name for name in described if "ependencies" in name or name == "scripts"}
    assert forbidden == {"peerDependencies", "peerDependenciesMeta"}
    assert described["peerDependenciesMeta"].keys() == described["peerDependencies"].keys() == {"react"}


def test_publint_and_attw_find_nothing(application):
    package = npm_package.pack(application)
    assert "All good!" in npm_package.run("publint", "run", "--strict", "--pack", "false", package, cwd=application)
    npm_package.run("attw", "--profile", "esm-only", package, cwd=application)
