"""The pictures of the documentation, taken from real pages. `PICTURES=docs/pictures` updates them."""

import base64
import os
import struct
from pathlib import Path

import pytest
from support.browsers import reach
from support.documents import DOCS
from support.traffic import hammer

CAMERAS = {"permissions": ["microphone", "camera"]}
DESK = {"viewport": {"width": 1200, "height": 900}, **CAMERAS}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", **CAMERAS}
SCHEMES = [each | {"color_scheme": scheme} for each in (DESK, PHONE) for scheme in ("light", "dark")]
# The windows next to each other, as one page.
BESIDE = """
<body style="margin: 0; padding: 24px; display: inline-flex; gap: 24px; background: #e8eaf0">
%s
</body>
"""
FRAME = '<img style="height: 560px; border-radius: 8px; box-shadow: 0 2px 12px #0004" src="data:image/png;base64,%s">'


def size(png):
    return struct.unpack(">II", png[16:24])


@pytest.fixture
def folder(tmp_path):
    return Path(os.environ.get("PICTURES", tmp_path)).resolve()


def test_picture_of_the_demo(server, profiles, folder):
    windows = []
    for name, options in (("Alice", DESK), ("Bob", PHONE), ("Carol", CAMERAS)):
        page = profiles.open(f"{server.url}/demo#topic=lobby", **options)
        page.get_by_label("Your name").fill(name)
        page.get_by_role("button", name="Join").click()
        windows.append(page)
    alice, bob, carol = windows
    reach(windows, "document.querySelectorAll('.tile').length", 3)
    for page, text in (
        (carol, "Hello Alice and Bob"),
        (bob, "Hello, I can see you"),
        (alice, "And no server carries this"),
    ):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
        for other in windows:
            other.get_by_text(text).wait_for()
    for page in (alice, bob):
        page.get_by_role("button", name="Camera").click()
    shown = "[...document.querySelectorAll('video')].filter((each) => each.videoWidth > 2).length === 2"
    reach(windows, shown)
    save(profiles, folder, "demo.png", [page.screenshot() for page in (alice, bob)])


def save(profiles, folder, name, shots):
    """Save windows next to each other, and compare the size with that of the picture in the documentation."""
    windows = "".join(FRAME % base64.b64encode(shot).decode() for shot in shots)
    both = profiles.open("about:blank", device_scale_factor=1)
    both.set_content(BESIDE % windows)
    picture = both.locator("body").screenshot(path=folder / name)
    assert size(picture) == size((DOCS / "pictures" / name).read_bytes())


def test_picture_of_the_operators_page(start, profiles, folder, tmp_path):
    (tmp_path / "token").write_text("a token of the operator")
    server = start("--admin-port", "0", "--admin-token-file", tmp_path / "token", "--trusted-proxies", "127.0.0.1")
    for number in range(12):
        server.offer(f"room-{number % 5}")
    hammer(server, "192.0.2.7", 300)
    for number in range(6):
        hammer(server, f"198.51.100.{number}", number + 1)
    shots = []
    for options in SCHEMES:
        page = profiles.open(f"{server.admin_url}/", **options)
        page.get_by_label("Admin token").fill("a token of the operator")
        page.keyboard.press("Enter")
        page.get_by_role("cell", name="192.0.2.7", exact=True).wait_for()
        assert page.locator("#columns").bounding_box()["y"] < page.viewport_size["height"] / 2
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shots.append(page.screenshot())
    save(profiles, folder, "operator.png", [shots[0], shots[3]])


def test_screens_of_the_demo_fit(server, profiles, folder):
    for number, options in enumerate(SCHEMES):
        for fragment in ("", f"#topic=team-standup-{number}"):
            page = profiles.open(f"{server.url}/demo{fragment}", **options)
            page.locator("#enter:enabled").wait_for()
            box = page.locator("#enter").bounding_box()
            assert box["y"] + box["height"] < page.viewport_size["height"] / 2
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.keyboard.press("Enter")
        page.get_by_text("Waiting for somebody").wait_for()
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
