"""The page to try the server, as people use it: two browsers, a keyboard, a server that goes away."""

import hashlib
import random
import re
import subprocess
from urllib.parse import urlsplit

import pytest
from support.browsers import FLAGS, reach, until
from support.demo import FOCUSED, PHONE, connected, enter, meet, receive, said, send_files, shows
from support.documents import pages, sections
from support.needs import require

FILE_BYTES = 6_500_000
# Do not read the file of 100,000 bytes before it is released.
READ_SECOND_LATER = """
  () => {
    const {arrayBuffer} = Blob.prototype;
    const released = new Promise((resolve) => (window.release = resolve));
    Blob.prototype.arrayBuffer = async function () {
      if (this.size === 100_000) await released;
      return arrayBuffer.call(this);
    };
  }
"""
# Note the largest buffer of a channel, and the share that progress bars show.
WATCH_FILES = """
  window.most = 0;
  window.bars = [];
  const send = RTCDataChannel.prototype.send;
  RTCDataChannel.prototype.send = function (data) {
    send.call(this, data);
    most = Math.max(most, this.bufferedAmount);
  };
  new MutationObserver(() => {
    for (const bar of document.querySelectorAll("progress")) bars.push(bar.value / bar.max);
  }).observe(document.body, {subtree: true, childList: true, attributes: true});
"""
# As if this browser had no other way out than a relay.
ONLY_RELAY = """
  () => {
    const Real = RTCPeerConnection;
    window.RTCPeerConnection = class extends Real {
      constructor(configuration) {
        super({...configuration, iceTransportPolicy: "relay"});
      }
    };
  }
"""


def test_chat_and_files_both_ways(server, open_demo, tmp_path):
    asked, complaints = set(), []
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob", **PHONE)
    for page in (alice, bob):
        page.on("request", lambda request: asked.add(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.evaluate(WATCH_FILES)
    meet(Alice=alice, Bob=bob)
    shows(bob, "Direct")
    alice.get_by_label("Message").fill("Hello Bob <b>&amp;")
    alice.keyboard.press("Enter")
    said(bob, "Alice", "Hello Bob <b>&amp;")
    bob.get_by_label("Message").fill("Hello Alice")
    assert alice.title() == "lobby"
    alice.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})")
    alice.evaluate("window.away = true")
    bob.get_by_role("button", name="Send", exact=True).tap()
    said(alice, "Bob", "Hello Alice")
    bob.get_by_label("Message").fill("again")
    bob.get_by_role("button", name="Send", exact=True).tap()
    said(alice, "Bob", "again")
    assert alice.locator("#lines li[data-who]").count() == 1  # one name is over both lines
    assert alice.title() == "(2) lobby"
    alice.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    assert alice.title() == "lobby"

    data = random.Random(1).randbytes(FILE_BYTES)
    (tmp_path / "a photo.jpg").write_bytes(data)
    (tmp_path / "empty.txt").write_bytes(b"")
    send_files(bob, tmp_path / "a photo.jpg")
    receive(alice, "a photo.jpg (6.5 MB)")
    with alice.expect_download() as download:
        alice.get_by_role("link", name="Save a photo.jpg (6.5 MB)").click()
    got = download.value.path().read_bytes()
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    shows(bob, "sent a photo.jpg (6.5 MB)")
    assert 0 < bob.evaluate("most") <= 1024 * 1024 + 64 * 1024
    for page in (alice, bob):
        seen = page.evaluate("bars")
        assert seen == sorted(seen)
        assert any(0 < each < 1 for each in seen)
    send_files(bob, tmp_path / "empty.txt")
    receive(alice, "empty.txt")
    alice.get_by_role("link", name="Save empty.txt").wait_for()

    bob.get_by_role("button", name="Leave").tap()
    shows(alice, "Bob has left.")
    until(lambda: bob.evaluate(FOCUSED) == "enter")
    shows(alice, "Waiting for somebody")
    # Everything goes over the WebSocket, but for parts of the module, which load in the background.
    assert {urlsplit(each).scheme for each in asked if "/client/" not in each} <= {"blob"}
    assert complaints == []


def test_failed_files_are_reported(server, open_demo, tmp_path):
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    enter(alice)
    send_files(alice, __file__)
    shows(alice, "test_demo.py was not sent: no other page is here.")
    enter(bob)
    connected(bob, "Alice")
    connected(alice, "Bob")
    for name, size in (("first", 4_000_000), ("second", 100_000), ("third", 400_000_000), ("fourth", 400_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    alice.evaluate(READ_SECOND_LATER)
    send_files(alice, tmp_path / "first", tmp_path / "second")
    (tmp_path / "second").write_text("shorter")
    alice.evaluate("release()")
    receive(bob, "first", "second")
    said(bob, "Alice", "Save first (4.0 MB)")
    shows(alice, "second did not get to Bob. The file can no longer be read.")
    send_files(bob, tmp_path / "third")
    receive(alice, "third")
    said(alice, "Bob", "receiving third")
    send_files(alice, tmp_path / "fourth")
    receive(bob, "fourth")
    said(bob, "Alice", "receiving fourth")
    bob.get_by_role("button", name="Leave").click()
    said(alice, "Bob", "third (400.0 MB) did not arrive. The file transfer was interrupted.")
    shows(alice, "fourth did not get to Bob. The file transfer was interrupted.")
    assert alice.locator("progress").count() == 0


def test_camera_microphone_and_screen_are_shown_until_the_next_press(server, open_demo):
    names = ("Alice", "Bob", "Carol")
    alice, bob, carol = (open_demo(server, name, permissions=["microphone", "camera"]) for name in names)
    meet(Alice=alice, Bob=bob)
    for name in ("Camera", "Microphone"):
        alice.get_by_role("button", name=name).click()
    enter(carol)
    pictures = "[...document.querySelectorAll('video')].map((each) => each.videoWidth > 2 && !each.paused).sort()"
    for page in (bob, carol):
        until(lambda page=page: page.evaluate(pictures) == [False, True])  # the other one is heard only
        assert page.get_by_label("What Alice sends").count() == 2
    assert alice.evaluate("[...document.querySelectorAll('video')].every((each) => each.muted)")
    carol.get_by_role("button", name="Screen").click()
    shown = "(all) => all.some((each) => each.videoWidth > 2)"
    until(lambda: alice.get_by_label("What Carol sends").evaluate_all(shown))
    carol.get_by_role("button", name="Screen").click()
    alice.get_by_label("What Carol sends").wait_for(state="detached")
    alice.get_by_role("button", name="Camera").click()
    reach((bob, carol), pictures, [False])
    alice.get_by_role("button", name="Leave").click()
    reach((bob, carol), pictures, [])
    assert alice.get_by_role("button", name="Microphone", include_hidden=True).get_attribute("aria-pressed") == "false"


def test_guest_is_in_the_room_after_one_press(server, open_demo, profiles):
    """An invitation as a guest sees it: with the keyboard alone, on a phone, and without motion."""
    for topic in ("team-standup", "team-standup~2"):  # another room with this prefix
        enter(open_demo(server, "Alice", topic=topic))
    alice, bob = (profiles.open(f"{server.url}/demo#topic=team-standup", **each) for each in ({}, PHONE))
    for page, there in ((alice, "One person is"), (bob, "Two people are")):
        heading = page.get_by_role("heading", level=1)
        until(lambda: heading.inner_text() == f"You are invited to team-standup. {there} there.")  # noqa: B023
        assert page.evaluate(FOCUSED) == "name"
        buttons = page.get_by_role("button").all()
        seen = [each.inner_text() for each in buttons if each.bounding_box()["y"] < page.viewport_size["height"]]
        assert seen == ["Join"]
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="team-standup").wait_for()
        page.get_by_role("status").get_by_text("here, direct").wait_for()
    bob.emulate_media(reduced_motion="reduce")
    alice.keyboard.type("typed at once")
    alice.keyboard.press("Enter")
    shows(bob, "typed at once")
    moving = "document.getAnimations().length"
    assert bob.evaluate(moving) == 0
    box = bob.get_by_role("button", name="Invite").bounding_box()
    assert min(box["width"], box["height"]) >= 40


def test_files_wait_for_a_click_and_take_no_memory_afterwards(server, open_demo, tmp_path):
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    alice.evaluate("""() => {
        window.urls = 0;
        const {createObjectURL, revokeObjectURL} = URL;
        URL.createObjectURL = (file) => (urls++, createObjectURL(file));
        URL.revokeObjectURL = (href) => (urls--, revokeObjectURL(href));
    }""")
    meet(Alice=alice, Bob=bob)
    paths = [tmp_path / f"file {letter}" for letter in "abcd"]
    for path in paths:
        path.write_text("content")
    send_files(bob, *paths)
    until(lambda: alice.get_by_role("button", name="Receive").count() == 4)
    alice.get_by_role("button", name="Refuse").first.click()
    shows(bob, "file a did not get to Alice. The file transfer was refused.")
    receive(alice, "file b", "file c")
    until(lambda: alice.evaluate("urls") == 2)
    alice.get_by_role("button", name="Leave").click()
    until(lambda: alice.evaluate("urls") == 0)
    shows(bob, "file d did not get to Alice. The file transfer was")


def test_made_room_is_shared_by_its_link(server, open_demo):
    alice, bob = open_demo(server, "Alice", topic=""), open_demo(server, "Bob")
    alice.get_by_role("button", name="Start a room").click()
    link = until(lambda: "topic=" in (found := alice.locator("#link").text_content()) and found)
    bob.goto("about:blank")
    bob.goto(link)
    enter(bob)
    connected(alice, "Bob")
    alice.get_by_label("Conversation").focus()
    alice.keyboard.press("f")
    until(lambda: alice.get_by_role("button", name="Enlarge Bob", pressed=True).count() == 1)
    bob.get_by_role("button", name="Leave").click()
    shows(alice, "Waiting for somebody")
    enter(open_demo(server, "Carol", topic=link.partition("=")[2]))
    alice.get_by_role("button", name="Enlarge Carol", pressed=False).wait_for()


def test_windows_of_the_quickstart_are_in_one_room_after_one_press(server, profiles):
    """The steps of README.md and docs/quickstart.md, in their order. Bold words are buttons."""
    steps = (
        pages()["README"].partition("## Quick start")[2].partition("## ")[0] + sections("quickstart")["Start a server"]
    )
    pressed = ["Start a room", "Join", "Camera", "Start a room", "Join", "Camera", "Invite", "Enter a room by name"]
    assert re.findall(r"\*\*(.+?)\*\*", steps) == pressed
    one = profiles.open(f"{server.url}/", permissions=["camera"])
    one.get_by_role("button", name="Start a room", exact=True).click()
    with one.expect_popup() as opened:
        one.locator("#link").click()
    other = opened.value
    other.get_by_role("button", name="Join", exact=True).click()
    windows = (one, other)
    for page in windows:
        page.get_by_role("button", name="Camera", exact=True).click()
    pictures = "[...document.querySelectorAll('video')].filter((each) => each.videoWidth > 2).length"
    reach(windows, pictures, 2)
    link = one.locator("#link").text_content()
    third = profiles.open(f"{server.url}/demo#topic=another")
    third.evaluate("(link) => { location.href = link; }", link)  # the page is open already, at another room
    until(lambda: third.evaluate(FOCUSED) == "name")
    third.keyboard.press("Enter")
    until(lambda: one.get_by_role("heading", name="Guest").count() == 3)


def test_shown_code_connects_pages(server, open_demo, profiles, site):
    code = open_demo(server, "Alice").locator("#code").text_content()
    assert len(code.splitlines()) == 10
    pages = [profiles.open(f"{site.origin}/connect?{server.url}") for _ in range(2)]
    for page in pages:
        page.set_content(code)
    for page in pages:
        shows(page, "somebody is here")
        shows(page, "Hello")


def test_reload_comes_back_and_a_dead_server_is_reported(start, open_demo):
    server = start()
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    meet(Alice=alice, Bob=bob)
    alice.reload()
    shows(bob, "Alice has left.")
    connected(bob, "Alice")
    server.process.kill()
    server.wait()
    for page in (alice, bob):
        shows(page, f"No response from {server.url}")
    alice.get_by_label("Message").fill("without a server")
    alice.keyboard.press("Enter")
    said(bob, "Alice", "without a server")
    start(port=server.url.rpartition(":")[2])
    for page in (alice, bob):
        page.locator("#problem").wait_for(state="hidden")
    connected(bob, "Alice")
    bob.get_by_role("button", name="Leave").click()
    bob.get_by_role("button", name="Start a room").wait_for()
    bob.go_back()
    bob.get_by_role("button", name="Join").click()
    connected(bob, "Alice")


def test_refused_origin_is_explained(start, open_demo):
    server = start("--allowed-origins", "https://app.example")
    shows(open_demo(server, "Alice"), "The server does not allow this page's origin (--allowed-origins).")


def test_insecure_context_is_explained(server, profiles):
    page = profiles.open(f"{server.url.replace('127.0.0.1', 'demo.example')}/demo")
    shows(page, "Over plain HTTP a page at this address gets no camera")
    shows(page, "Open this page over HTTPS")
    for name in ("Start a room", "Devices near me", "Enter a room by name"):
        assert page.get_by_role("button", name=name).is_disabled()


def test_unreachable_peers_get_advice(server, open_demo):
    pages = [open_demo(server, name) for name in ("Alice", "Bob")]
    for page in pages:
        page.evaluate(ONLY_RELAY)  # and there is none
        page.clock.install()
    enter(*pages)
    for page in pages:
        help = page.get_by_text("a STUN or TURN server may be missing")
        until(lambda help=help: [each.clock.fast_forward(500) for each in pages] and help.count())


def test_relayed_connection_is_marked(coturn, start, open_demo, secret_file):
    port, _ = coturn
    server = start("--turn-servers", f"turn:127.0.0.1:{port}?transport=udp", "--turn-secret-file", secret_file)
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    for page in (alice, bob):
        page.evaluate(ONLY_RELAY)
    enter(alice, bob)
    for page in (alice, bob):
        shows(page, "Relayed")


def code_of(page, path):
    """Return the text that a QR code reader finds in the invitation."""
    require("zbarimg")
    page.get_by_role("button", name="Invite").click()
    page.wait_for_function("() => { const qr = document.getElementById('qr'); return qr.complete && qr.naturalWidth; }")
    page.locator("#invitation").screenshot(path=path)
    page.get_by_role("button", name="Close").click()
    read = subprocess.run(["zbarimg", "--quiet", "--raw", path], capture_output=True, text=True, check=True)
    return read.stdout.strip()


def test_qr_code_is_the_link_to_the_room(start, pair, open_demo, tmp_path):
    server, options = start(*pair.flags), {"ignore_https_errors": True}
    server.url = server.url.replace("127.0.0.1", "demo.example")  # a name that other devices could reach
    asked, complaints = [], []
    alice = open_demo(server, "Alice", topic="", color_scheme="dark", device_scale_factor=2, **options)
    alice.on("request", lambda request: asked.append(urlsplit(request.url).path))
    alice.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    alice.get_by_role("button", name="Enter a room by name").click()
    assert alice.evaluate(FOCUSED) == "topic"
    alice.keyboard.type("a/b ü")
    alice.keyboard.press("Enter")
    alice.get_by_role("heading", name="a/b ü").wait_for()  # Enter does that
    shows(alice, "Waiting for somebody")
    assert alice.locator("#qr").is_visible()
    link = until(lambda: "topic=a%2Fb" in (found := alice.locator("#link").text_content()) and found)
    assert code_of(alice, tmp_path / "qr.png") == link
    assert not alice.get_by_text("two different origins").is_visible()
    bob = open_demo(server, "Bob", **options)
    bob.goto("about:blank")
    bob.goto(link)
    enter(bob)
    connected(bob, "Alice")
    # The page itself has drawn it, which its policy allows.
    assert [path for path in asked if path.startswith("/demo")] == []
    assert complaints == []
    longest = 256 - len(f"{server.url}/demo#topic=")
    for length in (longest, longest + 1):
        alice.goto(f"{server.url}/demo#topic={'x' * length}")  # also enters it
        until(lambda length=length: alice.get_by_role("heading", name="x" * length).count())
        assert alice.locator("#qr").evaluate("(qr) => qr.hidden") == (length > longest)
        if length == longest:
            assert code_of(alice, tmp_path / "qr.png") == alice.url


def test_loopback_name_has_no_code(server, open_demo):
    server.url = server.url.replace("127.0.0.1", "localhost")
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    enter(alice)
    shows(alice, "“localhost” and “127.0.0.1” are two different origins.")
    alice.get_by_role("button", name="Invite").click()
    shows(alice, "A phone cannot open this page, because localhost is this device itself.")
    assert not alice.locator("#qr").is_visible()
    with alice.expect_popup() as window:
        alice.locator("#link").click()
    enter(window.value)
    alice.get_by_role("button", name="Close").click()
    enter(bob)
    shows(bob, "here, direct")
    assert not alice.get_by_text("two different origins").is_visible()


def test_open_rooms_are_entered_by_click(server, open_demo):
    alice, bob = open_demo(server, "Alice", topic="chess"), open_demo(server, "Bob", topic="")
    enter(alice)
    bob.get_by_role("button", name="Open rooms (1)").click()
    bob.get_by_role("button", name="chess (1)").click()
    connected(bob, "Alice")
    alice.get_by_role("button", name="Leave").click()
    shows(bob, "Alice has left.")
    shows(bob, "Waiting for somebody")
    assert bob.get_by_role("heading", level=1).inner_text() == "chess"
    enter(alice)
    assert alice.get_by_role("heading", level=1).inner_text() not in ("chess", "")
    alice.go_back()  # to the room that has been left
    connected(alice, "Bob")


def test_hostile_rooms_and_messages_do_not_stop_the_page(server, open_demo):
    alice, bob = open_demo(server, "Alice", topic=""), open_demo(server, "Bob")
    for topic in ("room~x~ffffffff~", "room~~110000~", "room~garden"):
        assert server.call(f"/{topic}/offer", {"info": "i", "offer": "o"}, origin=server.url)[0] == 200
    until(lambda: alice.locator("#elsewhere button").count() == 3)
    alice.get_by_role("button", name="Enter a room by name").click()
    alice.keyboard.type("lobby")
    alice.keyboard.press("Enter")
    bob.evaluate("import('/client.js').then(({room}) => { window.here = room('lobby', {info: 'Eve'}); })")
    bob.wait_for_function("() => window.here?.peers.size > 0")
    deep = "'\\u001e' + '['.repeat(20_000) + ']'.repeat(20_000)"
    bob.evaluate(f"() => [...here.peers.values()][0].channel.send({deep})")
    shows(alice, "(not a text)")
    bob.evaluate("here.send('x'.repeat(3_000_000))")
    line = alice.locator("#lines li", has_text="3,000,000 characters")
    line.wait_for()
    assert len(line.text_content()) < 11_000


def test_files_are_dropped_onto_the_page(server, open_demo, tmp_path):
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob")
    meet(Alice=alice, Bob=bob)
    devtools = alice.context.new_cdp_session(alice)

    def drop(target, size, entered="#log li >> nth=0"):
        path = tmp_path / f"{size} bytes"
        path.write_bytes(bytes(size))
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        # The element below the pointer changes just before the drop, as when a line is added there.
        for kind, below in {"dragEnter": entered, "drop": target}.items():
            box = alice.locator(below).bounding_box()
            at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
            devtools.send("Input.dispatchDragEvent", {"type": kind, "data": data, **at})

    sizes = {0: "0 KB", 1: "1 KB", 1000: "1 KB", 1001: "2 KB", 1_000_000: "1.0 MB"}
    for size in sizes:
        drop("#log" if size else "#tiles", size)
    for _ in sizes:
        bob.get_by_role("button", name="Receive").first.click()
    for size, shown in sizes.items():
        bob.get_by_role("link", name=f"Save {size} bytes ({shown})", exact=True).wait_for()
        shows(alice, f"sent {size} bytes ({shown})")
    alice.get_by_role("button", name="Leave").click()
    alice.get_by_role("button", name="Start a room").wait_for()
    drop("#start", 7, "#entry")  # not opened instead of the page
    assert alice.get_by_role("button", name="Start a room").is_enabled()


def test_focus_is_never_lost(server, open_demo):
    alice, bob = open_demo(server, "Alice"), open_demo(server, "Bob", permissions=["camera"])
    for page in (alice, bob):
        enter(page)
        assert page.evaluate(FOCUSED) == "message"
    connected(bob, "Alice")
    bob.get_by_label("Message").fill("Hello")
    bob.get_by_role("button", name="Send", exact=True).click()
    assert bob.evaluate(FOCUSED) == "message"
    bob.get_by_role("button", name="Camera").click()
    bob.get_by_role("button", name="Camera", pressed=True).wait_for()
    assert bob.evaluate(FOCUSED) == "camera"
    for close in (lambda: bob.keyboard.press("Escape"), bob.get_by_role("button", name="Close").click):
        bob.get_by_role("button", name="Invite").click()
        assert bob.evaluate("document.activeElement.closest('dialog').id") == "invitation"
        close()
        assert bob.evaluate(FOCUSED) == "invite"
    send_files(bob, __file__)
    assert bob.evaluate(FOCUSED) == "files"
    bob.get_by_role("button", name="Leave").click()
    until(lambda: bob.evaluate(FOCUSED) == "enter")
    bob.keyboard.press("Enter")
    shows(bob, "Waiting for somebody")
    assert bob.evaluate(FOCUSED) == "message"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([flag for flag in FLAGS if "fake-device" not in flag], "{} not found."),
        (
            [*FLAGS, "--use-fake-ui-for-media-stream=deny"],
            "{} not allowed. The browser's settings for this page can change that.",
        ),
    ],
    ids=["missing", "forbidden"],
)
def test_missing_and_forbidden_devices(server, launch, flags, text):
    page = launch(flags).new_page()
    page.goto(f"{server.url}/demo")
    enter(page)
    for name in ("Camera", "Microphone"):
        page.get_by_role("button", name=name).click()
        shows(page, text.format(name))
    page.evaluate("delete MediaDevices.prototype.getDisplayMedia")  # as on phones
    page.get_by_role("button", name="Screen").click()
    shows(page, "Screen not supported by this browser.")
