"""Helpers for tests of the demo page."""

from .browsers import until

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}
FOCUSED = "document.activeElement.id"


def enter(*pages):
    """Enter the room with each page, and wait until it is listed."""
    for page in pages:
        page.get_by_role("button", name="Enter").click()
        page.get_by_text("No other page is here yet.").or_(page.get_by_text("Connected with")).wait_for()


def connected(page, *names):
    """Wait until a page reports that it is connected with exactly these members."""
    wanted = sorted(names)
    status = page.locator("#status")
    until(lambda: sorted((status.get_attribute("title") or "").split(", ")) == wanted)


def told(page, text):
    page.get_by_text(text).first.wait_for()


def send_files(page, *paths):
    """Choose files with the button."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Send files").click()
    chooser.value.set_files(paths)


def receive(page, *labels):
    """Accept the files that others offer."""
    for label in labels:
        page.get_by_role("listitem").filter(has_text=label).get_by_role("button", name="Receive").click()
