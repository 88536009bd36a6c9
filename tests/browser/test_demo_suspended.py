"""The demo page comes back: from a suspended tab, and from a locked phone."""

import pytest
from support.browsers import until
from support.demo import connected, enter, meet, said, shows
from support.processes import family, stopped

RECORD = """
  () => {
    window.happened = [];
    for (const name of ["freeze", "resume"]) document.addEventListener(name, () => happened.push(name));
  }
"""


def open_tab(windowed, server):
    """Open the demo in a browser of its own. Return the page and the browser."""
    page, browser = windowed(server, f"{server.url}/demo#topic=lobby")
    page.get_by_label("Your name").fill("Alice")
    page.evaluate(RECORD)
    return page, browser


def say(page, text):
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def test_suspended_tab(server, start, windowed, open_demo):
    alice, browser = open_tab(windowed, server)
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
def test_locked_phone(server, windowed, open_demo):
    alice, browser = open_tab(windowed, server)
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
