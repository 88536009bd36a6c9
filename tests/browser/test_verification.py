"""The number of a connection: equal for both people, unless a server in between has replaced the fingerprints."""

import re

from support.browsers import until
from support.demo import PHONE, meet
from support.members import enter_together, messages

NUMBER = "async () => { const [peer] = here.peers.values(); return JSON.stringify(await peer.verification()); }"
FINGERPRINT = "(side) => [...here.peers.values()][0].peerConnection[side].sdp.match(/a=fingerprint:(.*)/)[1].trim()"


def test_a_server_in_between_shows_in_the_number(start, connect_page):
    """It poses as the other person to each side, with fingerprints of its own, and reads all messages."""
    to_alice, to_bob = start(data="alice"), start(data="bob")
    alice, bob = connect_page(to_alice), connect_page(to_bob)
    as_bob, as_alice = connect_page(to_alice), connect_page(to_bob)
    enter_together({"Alice": alice, "Bob": as_bob})
    enter_together({"Bob": bob, "Alice": as_alice})
    alice.evaluate("here.send('a secret')")
    until(lambda: messages(as_bob) == ["a secret"])
    as_alice.evaluate(f"here.send('{messages(as_bob)[0]}')")
    until(lambda: messages(bob) == ["a secret"])
    assert [alice.evaluate("others()"), bob.evaluate("others()")] == [["Bob"], ["Alice"]]
    sent, received = alice.evaluate(FINGERPRINT, "localDescription"), bob.evaluate(FINGERPRINT, "remoteDescription")
    assert sent != received
    assert alice.evaluate(NUMBER) != bob.evaluate(NUMBER)


def test_demo_shows_the_number_in_a_call(start, open_demo, findings):
    """Two pages show the same, on a phone and on a desktop, and members with others show another one."""
    server = start()
    names = {"Alice": {}, "Bob": PHONE, "Carol": {}}
    pages = {name: open_demo(server, name, **options) for name, options in names.items()}
    meet(**pages)

    def number(page, other):
        page.locator(".tile", has_text=other).locator(".way").click()
        dialog = page.get_by_role("dialog", name="Safety number")
        dialog.get_by_text(f"Is this really {other}?").wait_for()
        assert findings(page) == []
        shown = [dialog.locator(part).inner_text() for part in (".emoji", ".digits")]
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        return shown

    seen = {(one, other): number(pages[one], other) for one in names for other in names if one != other}
    assert all(re.fullmatch(r"\d{4} \d{4} \d{4}", digits) for _, digits in seen.values())
    assert all(seen[one, other] == seen[other, one] for one, other in seen)
    assert len({*map(tuple, seen.values())}) == 3
    alice, bob = pages["Alice"], pages["Bob"]
    alice.locator(".tile", has_text="Bob").locator(".way").focus()
    alice.keyboard.press("Enter")
    alice.get_by_role("dialog").wait_for()
    bob.get_by_role("button", name="Leave").click()
    alice.get_by_role("dialog").wait_for(state="detached")  # another connection would have another number
