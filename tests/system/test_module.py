"""The browser module as applications take it: typed, bundled and minified."""

import gzip
import subprocess

import pytest
from bench import npm
from support.paths import ROOT, TESTS

WEB = ROOT / "tornado_signal" / "web"
MAX_BYTES = 12_288
# Every event has the type that belongs to its name; what is wrong is an error.
PROGRAM = """\
import { pair, room, type Connection, type Peer } from "./client.js";

const lobby = room("lobby", { info: "alice", me: "Alice", channel: { ordered: false } });
lobby.addEventListener("join", ({ peer }) => lobby.send(peer.info.toUpperCase(), peer));
lobby.addEventListener("leave", ({ peer }) => lobby.send(new Uint8Array(1), peer.id));
lobby.addEventListener("message", ({ peer, data }) => {
  const text: string = typeof data === "string" ? data : new TextDecoder().decode(data);
  lobby.send(text, lobby.peers.get(peer.id));
});
lobby.addEventListener("stream", ({ peer, stream }) => lobby.send(`${peer.name} ${peer.streams.length} ${stream.id}`));
lobby.addEventListener("error", ({ error }) => console.error(error.message));
lobby.addEventListener("close", async () => await lobby.leave());
const other: Connection = await pair("strangers", { info: "alice", channel: { ordered: false } });
other.peerConnection.addTransceiver("audio");
const all: Peer[] = [...lobby.peers.values()];
// @ts-expect-error
lobby.addEventListener("join", ({ data }) => data);
// @ts-expect-error
lobby.peers.clear();
// @ts-expect-error
room("lobby", { onstep: () => {} });
export default all;
"""

pytestmark = [pytest.mark.network, pytest.mark.slow]


@pytest.fixture(scope="module")
def node_modules():
    """The packages of package-lock.json."""
    return npm.node_modules(TESTS / "generated")


def test_its_types(node_modules, tmp_path):
    """A strict TypeScript program that uses a room is sound, and one with mistakes is not."""
    (tmp_path / "client.d.ts").write_text((WEB / "client.d.ts").read_text())
    (tmp_path / "program.ts").write_text(PROGRAM)
    flags = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext"]
    command = ["node", node_modules / "typescript/bin/tsc", *flags, "program.ts"]
    (tmp_path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_its_size(node_modules):
    """Minified and gzipped it stays under 12 KB."""
    command = [node_modules / ".bin/esbuild", "--minify", "--format=esm", WEB / "client.js"]
    minified = subprocess.run(command, capture_output=True, check=True).stdout
    assert b"RTCPeerConnection" in minified
    assert len(gzip.compress(minified, 9)) < MAX_BYTES
