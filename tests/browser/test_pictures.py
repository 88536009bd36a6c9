"""The pictures of the documentation, taken from real pages. `PICTURES=docs/pictures` updates them."""

import base64
import os
import struct
from pathlib import Path

import pytest
from support.browsers import until
from support.documents import DOCS

CAMERAS = {"permissions": ["microphone", "camera"]}
DESK = {"viewport": {"width": 1100, "height": 740}, "device_scale_factor": 1.5, **CAMERAS}
PHONE = {"viewport": {"width": 390, "height": 740}, "device_scale_factor": 1.5, "color_scheme": "dark", **CAMERAS}
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
        page.get_by_role("button", name="Enter").click()
        windows.append(page)
    alice, bob, carol = windows
    for page in windows:
        until(lambda page=page: page.locator(".tile").count() == 3)
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
    for page in windows:
        until(lambda page=page: page.evaluate(shown))
    shots = [base64.b64encode(page.screenshot()).decode() for page in (alice, bob)]
    both = profiles.open("about:blank", device_scale_factor=1)
    both.set_content(BESIDE % "".join(FRAME % shot for shot in shots))
    picture = both.locator("body").screenshot(path=folder / "demo.png")
    assert size(picture) == size((DOCS / "pictures" / "demo.png").read_bytes())
