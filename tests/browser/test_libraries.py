"""The original clients of PeerJS, y-webrtc, WebTorrent, P2PT and trystero, unmodified, in Chromium and Firefox."""

import json
import re

import pytest
from support import libraries
from support.documents import pages
from support.paths import ROOT
from support.proxies import CaddyPath
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXAMPLES = ROOT / "examples"
ADDRESS = "http://127.0.0.1:3000"
# Of the lines in README.md: what they need, and whether the page has reached the server and the other page with each.
SURROUNDINGS = """
  import * as Y from "yjs";
  const used = (globalThis.used = []);
  const id = location.hash.slice(1);
  const doc = new Y.Doc();
  const client = new WebTorrent({dht: false, lsd: false});
  const files = [new File([id], `${id}.txt`)];
  let announced = false;
  client.on("torrent", (torrent) => torrent.once("trackerAnnounce", () => (announced = true)));
  globalThis.reached = () => {
    const [peer, provider, room] = used;
    return peer.open && provider.room?.webrtcConns.size === 1 && Object.keys(room.getPeers()).length === 1 && announced;
  };
"""
TEXT = "a file for everybody " * 5000


@pytest.fixture
def open_page(profiles, site):
    """A function that opens a page with all libraries."""
    site.pages |= {"/": libraries.HTML, "/libraries.js": libraries.bundle()}

    def opening():
        page = profiles.open(f"{site.origin}/")
        page.wait_for_function("() => window.ready")
        return page

    return opening


def heard(page, message):
    page.wait_for_function("(message) => heard.includes(message)", arg=message)


def exchange_by_peerjs(one, other, url):
    for page, peer_id in ((one, "alice"), (other, "bob")):
        assert page.evaluate("([url, id]) => openPeer(url, id)", [url, peer_id]) == peer_id
    one.evaluate("connectTo('bob', 'hello')")
    heard(other, "hello")
    heard(one, "answer")


def edit_together(pages, url, password=None):
    for number, page in enumerate(pages):
        page.evaluate("([url, password]) => edit(url, 'document', password)", [url, password])
        page.evaluate("(text) => write(text)", f"<{number}>")
    for page in pages:
        page.wait_for_function("(count) => editors() === count", arg=len(pages) - 1)
        page.wait_for_function(
            "(texts) => texts.every((text) => read().includes(text))",
            arg=[f"<{number}>" for number in range(len(pages))],
        )
    assert len({page.evaluate("read()") for page in pages}) == 1


def greet(one, other, function, *arguments):
    name = f"{function} {arguments[1]}"
    for page, message in ((one, f"{name} one"), (other, f"{name} other")):
        page.evaluate(f"(all) => {function}(...all)", [*arguments, message])
    heard(one, f"{name} other")
    heard(other, f"{name} one")


def test_lines_of_the_readme_as_they_stand(profiles, site, start, pair, tmp_path):
    port = start("--tls-certificate", pair.certificate, "--tls-key", pair.key).url.rpartition(":")[2]
    rows = re.findall(r"^\| \w\S* ([\d.]+) \| `(import .*?)` \| `(.*?)` \|", pages()["README"], re.MULTILINE)
    assert len(rows) == 4
    tested = json.loads((libraries.FOLDER / "package.json").read_text())["dependencies"]
    for version, line, _ in rows:
        assert tested[line.split('"')[1].partition("/dist")[0]] == version
    lines = "\n".join(f"used.push({line});" for _, _, line in rows)
    lines = lines.replace("wss://signal.example.com", f"wss://127.0.0.1:{port}")
    lines = lines.replace('"signal.example.com"', f'"127.0.0.1", port: {port}')
    imports = "\n".join(line for _, line, _ in rows)
    source = tmp_path / "page.js"
    source.write_text(f"{imports}\n{SURROUNDINGS}\n{lines}")
    site.pages |= {"/": libraries.HTML, "/libraries.js": libraries.bundle(source)}
    for page in [profiles.open(f"{site.origin}/#{name}", ignore_https_errors=True) for name in ("alice", "bob")]:
        page.wait_for_function("() => globalThis.used?.length === 4 && reached()")


def test_five_pages_edit_one_document_with_a_password(open_page, server):
    edit_together([open_page() for _ in range(5)], f"{server.url}/", "a password")


def test_y_webrtc_meets_again_after_a_restart(open_page, start):
    server = start()
    one = open_page()
    one.evaluate("(url) => edit(url, 'document')", server.url + "/")
    one.evaluate("write('before ')")
    server.stop()
    one.wait_for_function("() => !provider.signalingConns[0].connected")
    port = server.url.rpartition(":")[2]
    start("--port", port)
    one.wait_for_function("() => provider.signalingConns[0].connected")
    other = open_page()
    other.evaluate("(url) => edit(url, 'document')", server.url + "/")
    other.wait_for_function("() => read() === 'before '")


RXDB = f"""
  import * as core from "rxdb";
  import * as webrtc from "rxdb/plugins/replication-webrtc";
  import * as memory from "rxdb/plugins/storage-memory";
  import {{ replicate }} from "{libraries.FOLDER}/rxdb-database.mjs";
  const [url, name] = decodeURIComponent(location.hash.slice(1)).split(" ");
  globalThis.process = {{ nextTick: (call, ...values) => queueMicrotask(() => call(...values)) }}; // for RxDB
  const rxdb = {{ ...core, ...webrtc, ...memory }};
  globalThis.heard = [];
  globalThis.names = replicate(rxdb, url, name, {{ config: {{ iceServers: [] }} }}, (other) => heard.push(other));
"""


def test_databases_of_rxdb_replicate_across_a_reload(profiles, site, start, tmp_path):
    source = tmp_path / "page.js"
    source.write_text(RXDB)
    site.pages |= {"/": libraries.HTML, "/libraries.js": libraries.bundle(source)}
    url = start().url.replace("http", "ws") + "/rxdb"
    one, two = (profiles.open(f"{site.origin}/#{url}%20{name}") for name in ("one", "two"))
    heard(one, "two")
    heard(two, "one")
    one.reload()
    heard(one, "two")
    for page, other, name in ((one, two, "three"), (two, one, "four")):
        page.evaluate(f"names.then((names) => names.insert({{ id: '{name}' }})).then(() => true)")
        heard(other, name)


def test_default_import_of_trystero_connects_chromium_and_firefox(open_page, site, server, firefox):
    chromium = open_page()
    firefox.goto(f"{site.origin}/")
    until(lambda: firefox.evaluate("window.ready"))
    for page, message in ((chromium, "from Chromium"), (firefox, "from Firefox")):
        page.evaluate(f"meetByTrystero('{server.url}/', 'nostr', 'a room', '{message}')")
    heard(chromium, "from Firefox")
    until(lambda: "from Chromium" in firefox.evaluate("heard"))


def test_all_libraries_work_in_one_page_and_under_a_sub_path_of_a_proxy(open_page, start, start_proxy):
    server = start("--trusted-proxies", "127.0.0.0/8")
    url = start_proxy(CaddyPath, server.port).url + "/signal/"
    one, other = open_page(), open_page()
    exchange_by_peerjs(one, other, url)
    edit_together([one, other], url)
    magnet = one.evaluate("([url, text]) => seed(url, 'file.txt', text)", [url, TEXT])
    assert other.evaluate("(magnet) => download(magnet)", magnet) == TEXT
    greet(one, other, "meetByP2PT", url, "a room")
    for strategy in ("nostr", "torrent", "ws-relay"):
        greet(one, other, "meetByTrystero", url, strategy, "a room")


@pytest.fixture
def open_example(profiles, site, server):
    """A function that opens a page of an example, which uses the address of the test's server."""

    def opening(name, fragment="", **files):
        page = (EXAMPLES / name / "index.html").read_text()
        sources = {f"/{name}/": page, **{f"/{name}/{path}": text for path, text in files.items()}}
        site.pages |= {path: text.replace(ADDRESS, server.url) for path, text in sources.items()}
        return profiles.open(f"{site.origin}/{name}/{fragment}")

    return opening


def test_example_with_peerjs(open_example):
    path = "node_modules/peerjs/dist/peerjs.min.js"
    files = {path: (libraries.node_modules().parent / path).read_text()}
    one, other = (open_example("peerjs", **files) for _ in range(2))
    for page in (one, other):
        page.get_by_role("status").filter(has_text="Your id").wait_for()
    one.get_by_role("textbox").fill(other.get_by_role("status").inner_text().removeprefix("Your id: "))
    one.get_by_role("button").click()
    for page in (one, other):
        page.get_by_role("log").filter(has_text="Hello from").wait_for()


def test_example_with_webtorrent(open_example, tmp_path):
    path = "node_modules/webtorrent/dist/webtorrent.min.js"
    files = {path: (libraries.node_modules().parent / path).read_text()}
    (tmp_path / "file.txt").write_text(TEXT)
    one = open_example("webtorrent", **files)
    one.get_by_label("File to share").set_input_files(tmp_path / "file.txt")
    fragment = one.get_by_role("link").get_attribute("href")
    other = open_example("webtorrent", fragment, **files)
    with other.expect_download() as download:
        other.get_by_role("link").click()
    assert download.value.path().read_text() == TEXT


def test_example_with_y_webrtc(open_example):
    files = {"main.js": libraries.bundle(EXAMPLES / "y-webrtc" / "main.js")}
    one, other = (open_example("y-webrtc", **files) for _ in range(2))
    one.get_by_role("textbox").fill("Hello from one")
    other.wait_for_function("() => document.querySelector('textarea').value === 'Hello from one'")
    other.get_by_role("textbox").fill("Hello from the other one")
    one.wait_for_function("() => document.querySelector('textarea').value === 'Hello from the other one'")
