"""Helpers for tests of the demo page."""

import re

from .browsers import until

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"}
FOCUSED = "document.activeElement.id"
# The check.
VERDICT = "document.getElementById('verdict').textContent"
RESULTS = """
  [...document.querySelectorAll("#results li")].map((item) => [
    item.querySelector("h2").textContent,
    item.querySelector("strong").textContent,
    item.querySelector("p").textContent,
  ])
"""


def checked(page):
    """Wait for the last result of the check. Return the results and their details by name."""
    until(lambda: page.evaluate(VERDICT) not in ("", "Checking …"))
    return {name: (result, detail) for name, result, detail in page.evaluate(RESULTS)}


def enter(*pages):
    """Enter the room with each page, and wait until it is listed."""
    for page in pages:
        page.locator("#enter").click()
        page.get_by_role("status").filter(has_text=re.compile("^(1 here|[0-9]+ here, )")).wait_for()


def connected(page, *names):
    wanted = sorted(names)
    status = page.locator("#status")
    until(lambda: sorted((status.get_attribute("title") or "").split(", ")) == wanted)


def meet(**pages):
    """Enter the room with pages by their names, and wait until each is connected with all others."""
    enter(*pages.values())
    for name, page in pages.items():
        connected(page, *(pages.keys() - {name}))


def shows(page, text):
    page.get_by_text(text).first.wait_for()


def said(page, who, text):
    """Wait for a line of the conversation, below the name of who has said it."""
    line = page.locator("#lines li", has_text=text).last
    line.wait_for()
    name = "(li) => { while (li && !li.dataset.who) li = li.previousElementSibling; return li?.dataset.who; }"
    assert line.evaluate(name) == who


def send_files(page, *paths):
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Send files").click()
    chooser.value.set_files(paths)


def receive(page, *labels):
    for label in labels:
        page.get_by_role("listitem").filter(has_text=label).get_by_role("button", name="Receive").click()
