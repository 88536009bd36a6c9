"""The original clients of PeerJS, y-webrtc, WebTorrent, P2PT and trystero, unmodified, in Chromium."""

import pytest
from support import libraries
from support.proxies import CaddyPath, NginxPath
from support.waiting import end_all

pytest_plugins = ["support.browser_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

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


@pytest.fixture
def url(start):
    return start().url + "/"


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


def transfer_by_webtorrent(one, other, url):
    magnet = one.evaluate("([url, text]) => seed(url, 'file.txt', text)", [url, TEXT])
    assert other.evaluate("(magnet) => download(magnet)", magnet) == TEXT


def greet(one, other, function, *arguments):
    for page, message in ((one, f"{function} one"), (other, f"{function} other")):
        page.evaluate(f"(all) => {function}(...all)", [*arguments, message])
    heard(one, f"{function} other")
    heard(other, f"{function} one")


def test_peerjs_sends_data_and_media(open_page, url):
    one, other = open_page(), open_page()
    exchange_by_peerjs(one, other, url)
    other.evaluate("call('alice')")
    heard(one, "stream of audio")


def test_peerjs_without_an_id_gets_one_of_the_server(open_page, url):
    peer_id = open_page().evaluate("(url) => openPeer(url, undefined)", url)
    assert len(peer_id) == 36


def test_peerjs_reports_taken_and_absent_ids(open_page, url):
    one, other = open_page(), open_page()
    assert one.evaluate("(url) => openPeer(url, 'alice')", url) == "alice"
    assert other.evaluate("(url) => openPeer(url, 'alice')", url) == "unavailable-id"
    assert other.evaluate("(url) => openPeer(url, 'bob')", url) == "bob"
    failed = "connectTo('nobody', '').catch(({ message }) => message)"
    assert other.evaluate(failed) == "peer-unavailable"


def test_peerjs_keeps_its_id_when_it_reconnects(open_page, start):
    server = start("--hold-grace-ms", "60000")
    one, other = open_page(), open_page()
    exchange_by_peerjs(one, other, server.url + "/")
    one.evaluate("peer.disconnect()")
    assert one.evaluate("(peer.reconnect(), new Promise((resolve) => peer.once('open', resolve)))") == "alice"
    other.evaluate("heard.length = 0")
    other.evaluate("connectTo('alice', 'again')")
    heard(one, "again")


def test_peerjs_lists_ids_if_the_operator_allows_it(open_page, start):
    page = open_page()
    page.evaluate("(url) => openPeer(url, 'alice')", start("--peerjs-discovery").url + "/")
    assert page.evaluate("listPeers()") == ["alice"]


def test_peerjs_lists_no_ids_by_default(open_page, url):
    page = open_page()
    page.evaluate("(url) => openPeer(url, 'alice')", url)
    page.evaluate("void peer.listAllPeers()")
    heard(page, "error server-error")


@pytest.mark.parametrize("password", [None, "a password"])
def test_y_webrtc_pages_edit_one_document(password, open_page, url):
    edit_together([open_page() for _ in range(2)], url, password)


def test_five_pages_edit_one_document(open_page, url):
    edit_together([open_page() for _ in range(5)], url)


def test_y_webrtc_meets_again_after_a_restart(open_page, start):
    server = start()
    one = open_page()
    one.evaluate("(url) => edit(url, 'document')", server.url + "/")
    one.evaluate("write('before ')")
    server.stop()
    port = server.url.rpartition(":")[2]
    start("--port", port)
    other = open_page()
    other.evaluate("(url) => edit(url, 'document')", server.url + "/")
    other.wait_for_function("() => read() === 'before '")


def test_webtorrent_transfers_a_file_between_two_pages(open_page, url):
    transfer_by_webtorrent(open_page(), open_page(), url)


def test_p2pt_pages_meet(open_page, url):
    greet(open_page(), open_page(), "meetByP2PT", url, "a room")


@pytest.mark.parametrize("strategy", ["torrent", "ws-relay"])
def test_trystero_pages_meet(strategy, open_page, url):
    greet(open_page(), open_page(), "meetByTrystero", url, strategy, "a room")


def test_all_libraries_work_in_one_page(open_page, url):
    one, other = open_page(), open_page()
    exchange_by_peerjs(one, other, url)
    edit_together([one, other], url)
    transfer_by_webtorrent(one, other, url)
    greet(one, other, "meetByTrystero", url, "ws-relay", "a room")


@pytest.mark.parametrize("kind", [NginxPath, CaddyPath])
def test_all_protocols_work_under_a_sub_path_of_a_proxy(kind, open_page, start, tmp_path):
    server = start("--trusted-proxies", "127.0.0.0/8")
    with end_all(kind, kind.stop) as put:
        url = put(tmp_path, int(server.url.rpartition(":")[2])).url + "/signal/"
        one, other = open_page(), open_page()
        exchange_by_peerjs(one, other, url)
        edit_together([one, other], url)
        greet(one, other, "meetByP2PT", url, "a room")
