"""The demo page on desktops and phones: what is visible with eight people, and what axe-core reports."""

import pytest
from support.browsers import until
from support.demo import PHONE, connected, enter, receive, send_files, shows

NAMES = ("Alice", "Bob", "Carol", "Dave " * 12, "Erin", "Frank", "Grace", "Heidi")
SIZES = {
    "desktop": (1100, 740),
    "tablet": (834, 1112),
    "narrow": (770, 1024),
    "upright": (390, 844),
    "sideways": (844, 390),
    "small": (320, 568),
    "short": (568, 320),
}
# The elements of the room that cannot be clicked: outside of the window, or below another one.
COVERED = """
  () => [...document.querySelectorAll("#bar > *, .media > button, #log, #say > *")].filter((part) => {
    const {left, right, top, bottom, width, height} = part.getBoundingClientRect();
    const inside = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight && width && height;
    const corners = [[left + 6, top + 6], [right - 6, bottom - 6]];
    return !inside || !corners.every(([x, y]) => part.contains(document.elementFromPoint(x, y)));
  }).map(({outerHTML}) => outerHTML)
"""
# Whether a name can be seen.
VISIBLE = """
  (name) => {
    const {left, top, height} = name.getBoundingClientRect();
    return document.elementFromPoint(left + 6, top + height / 2) === name; // null outside of the window
  }
"""
# Text that is wider than its button.
CUT_OFF = """
  () => [...document.querySelectorAll("button")].filter((button) => {
    const range = document.createRange();
    range.selectNodeContents(button);
    return range.getBoundingClientRect().width > button.clientWidth;
  }).map(({textContent}) => textContent)
"""
# Names and a status that are higher than a line.
HIGH = """
  () => [...document.querySelectorAll("#status, #tiles .tile h2")].filter((part) =>
    part.getBoundingClientRect().height > 1.1 * parseFloat(getComputedStyle(part).lineHeight)
  ).map(({textContent}) => textContent)
"""
AT_END = "log.scrollTop > -2"
SCROLLS = "document.documentElement.scrollHeight > innerHeight || document.documentElement.scrollWidth > innerWidth"


def resize(page, size):
    page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))


def test_eight_people_on_every_screen(server, open_demo):
    pages = [open_demo(server, name, permissions=["microphone", "camera"]) for name in NAMES]
    alice, bob, *_ = pages
    enter(alice)
    for size in SIZES:
        resize(alice, size)
        assert alice.evaluate(COVERED) == [], size
        assert alice.get_by_text("Waiting for somebody").is_visible()
    enter(*pages[1:])
    shows(alice, "8 here, direct")
    assert f"{'Dave ' * 6}D…" in alice.locator("#status").get_attribute("title")
    for number in range(20):
        bob.get_by_label("Message").fill(f"message {number}")
        bob.keyboard.press("Enter")
    shows(alice, "message 19")
    assert alice.evaluate(AT_END)
    for page in (alice, bob):
        page.get_by_role("button", name="Camera").click()
    until(
        lambda: alice.evaluate("[...document.querySelectorAll('video')].filter((v) => v.videoWidth > 2).length === 2")
    )
    names = alice.locator("#tiles .tile h2")
    for size, (_, height) in SIZES.items():
        resize(alice, size)
        assert alice.evaluate(COVERED) == [], size
        alice.locator("#tiles").hover()
        for name, pixels in ((names.last, 3000), (names.first, -3000)):
            alice.mouse.wheel(pixels, pixels)
            until(lambda name=name: name.evaluate(VISIBLE), complaint=lambda size=size: size)
        assert alice.evaluate(CUT_OFF) == alice.evaluate(HIGH) == [], size
        assert alice.locator("#status").evaluate("(line) => line.scrollWidth === line.clientWidth"), size
        assert size == "desktop" or not alice.evaluate(SCROLLS), size
        assert alice.locator("#log").bounding_box()["height"] > height / 3, size
        # The newest message stays visible when the size changes.
        until(lambda: alice.evaluate(AT_END))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_findings(start, open_demo, findings, scheme):
    server = start("--stun-servers", "none")
    alice, bob = open_demo(server, "Alice", color_scheme=scheme), open_demo(server, "Bob", **PHONE)
    assert findings(alice) == []
    enter(alice)
    assert findings(alice) == []
    alice.get_by_role("button", name="Invite").click()
    assert findings(alice) == []
    alice.get_by_role("button", name="Close").click()
    enter(bob)
    connected(alice, "Bob")
    for page, text in ((alice, "Hello"), (bob, "Hello Alice " * 100)):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
        send_files(page, __file__)
    receive(alice, "test_demo_layout.py")
    shows(alice, "Save test_demo_layout.py")
    alice.get_by_role("button", name="Microphone").click()
    alice.get_by_role("button", name="Microphone", pressed=True).wait_for()
    for size in SIZES if scheme == "light" else ():  # the other one has the same places and other colors
        resize(alice, size)
        assert findings(alice) == [], size
    alice.get_by_role("button", name="Enlarge Bob").click()
    assert findings(alice) == []
    alice.get_by_role("button", name="Leave").click()
    assert findings(alice) == []
    alice.evaluate("location.hash = 'check'")
    shows(alice, "These do not work: ICE servers")
    for size in SIZES if scheme == "light" else ("upright",):
        resize(alice, size)
        assert findings(alice) == [], size
        assert alice.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
