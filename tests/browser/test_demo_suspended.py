"""The demo page comes back: from a suspended tab, from a locked phone, and from a time without a network."""

import pytest
from support.browsers import Windowed, until
from support.demo import connected, enter, meet, said, shows
from support.processes import family, stopped

RECORD = """
  () => {
    window.happened = [];
    for (const name of ["freeze", "resume"]) document.addEventListener(name, () => happened.push(name));
  }
"""


@pytest.fixture
def tab(chromium, tmp_path):
    """Return a function that opens the demo in a browser of its own, and returns the page and the browser."""
    browser = Windowed(chromium(0).browser_type, tmp_path / "profile")

    def opening(server, name):
        page = browser.context.pages[0]
        page.goto(f"{server.url}/demo#topic=lobby")
        page.get_by_label("Your name").fill(name)
        page.evaluate(RECORD)
        return page, browser

    yield opening
    browser.close()


def say(page, text):
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def test_suspended_tab(start, open_demo, tab):
    server = start()
    alice, browser = tab(server, "Alice")
    bob, carol = open_demo(server, "Bob"), open_demo(server, "Carol")
    meet(Alice=alice, Bob=bob)
    browser.context.new_page().bring_to_front()
    until(lambda: alice.evaluate("document.visibilityState") == "hidden")
    devtools = browser.context.new_cdp_session(alice)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    until(lambda: alice.evaluate("happened") == ["freeze"])
    say(bob, "while you were away")
    server.process.kill()  # the page loses its WebSocket and, after a while, its place in the listing
    server.wait()
    start(port=server.url.rpartition(":")[2])
    enter(carol)
    connected(carol, "Bob")
    assert alice.evaluate("log.textContent") == "Bob is here."
    devtools.send("Page.setWebLifecycleState", {"state": "active"})
    connected(alice, "Bob", "Carol")
    said(alice, "Bob", "while you were away")
    assert alice.evaluate("happened") == ["freeze", "resume"]
    assert not bob.get_by_text("has left").count()


@pytest.mark.slow
def test_locked_phone(start, open_demo, tab):
    server = start()
    alice, browser = tab(server, "Alice")
    bob = open_demo(server, "Bob")
    meet(Alice=alice, Bob=bob)
    with stopped(family(browser.process.pid)):
        shows(bob, "Alice has left.")
        say(bob, "this is not read")
        shows(bob, "No other page is here to read it.")
    connected(bob, "Alice")
    connected(alice, "Bob")
    say(bob, "welcome back")
    said(alice, "Bob", "welcome back")
    say(alice, "thanks")
    said(bob, "Alice", "thanks")


@pytest.mark.slow
def test_time_without_a_network(server, open_demo):
    alice, bob, carol = (open_demo(server, name) for name in ("Alice", "Bob", "Carol"))
    meet(Alice=alice, Bob=bob)
    alice.context.set_offline(True)
    shows(alice, f"No response from {server.url}")
    say(bob, "still connected")
    said(alice, "Bob", "still connected")
    alice.context.set_offline(False)
    alice.locator("#problem").wait_for(state="hidden")
    enter(carol)
    connected(alice, "Bob", "Carol")
