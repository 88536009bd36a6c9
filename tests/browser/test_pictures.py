"""The pictures of the documentation, taken of what they show; `PICTURES=docs/pictures` keeps them there."""

import base64
import os
import struct
from pathlib import Path

import pytest
from support.documents import DOCS

pytest_plugins = ["support.http_fixtures", "support.browser_fixtures"]

WINDOW = {"viewport": {"width": 520, "height": 640}, "device_scale_factor": 2}
# The windows beside each other, as one page.
BESIDE = """
<body style="margin: 0; padding: 24px; display: inline-flex; gap: 24px; background: #e8eaf0">
%s
</body>
"""
FRAME = '<img style="width: 520px; border-radius: 8px; box-shadow: 0 2px 12px #0004" src="data:image/png;base64,%s">'


def size(png):
    """Width and height of a picture, in pixels."""
    return struct.unpack(">II", png[16:24])


@pytest.fixture
def folder(tmp_path):
    """Where pictures go."""
    return Path(os.environ.get("PICTURES", tmp_path)).resolve()


def test_the_demo(server, profiles, folder):
    """Two pages of the demo that have met and talk; the picture in docs/ is of the same pages."""
    windows = []
    for name in ("Alice", "Bob"):
        page = profiles.open(f"{server.url}/demo#topic=lobby", **WINDOW)
        page.get_by_label("Your name").fill(name)
        page.get_by_label("Your name").press("Tab")
        windows.append(page)
    alice, bob = windows
    alice.get_by_role("button", name="Be found").click()
    alice.get_by_text("You are listed in").wait_for()
    bob.get_by_role("button", name="Join Alice").click()
    for page, other, text in ((bob, alice, "Hello Alice"), (alice, bob, "Hello Bob, no server carries this")):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
        other.get_by_text(text).wait_for()
    for page in windows:
        page.get_by_label("Message").scroll_into_view_if_needed()
    shots = [base64.b64encode(page.screenshot()).decode() for page in windows]
    both = profiles.open("about:blank", device_scale_factor=1)
    both.set_content(BESIDE % "".join(FRAME % shot for shot in shots))
    picture = both.locator("body").screenshot(path=folder / "demo.png")
    assert size(picture) == size((DOCS / "pictures" / "demo.png").read_bytes())
