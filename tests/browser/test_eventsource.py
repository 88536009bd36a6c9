"""`EventSource` in a real Chromium, on a page of another origin, while the server is killed and started again."""

import signal
from pathlib import Path


def open_page(profiles, site, stream):
    site.pages["/page"] = Path(__file__).with_name("eventsource.html").read_text()
    page = profiles.context().new_page()
    page.goto(f"{site.origin}/page")
    page.evaluate("stream => listen(stream)", stream)
    page.wait_for_function("() => opened === 1")
    return page


class Peers:
    """Actions of other pages of the same origin, and the events that listeners must get."""

    def __init__(self, server, origin):
        self.server, self.origin, self.expected = server, origin, []

    def call(self, path, body=None):
        status, found = self.server.call(path, body, origin=self.origin)
        assert status == 200, found
        return found

    def come(self):
        code = self.server.offer(origin=self.origin)
        self.expected.append(f"session {code}")
        return code

    def answer(self, code):
        self.call("/answer", {"code": code, "side": "answerer", "answer": "a"})
        self.expected.append(f"gone {code} answered")

    def withdraw(self, code):
        self.call("/withdraw", {"code": code, "side": "offerer"})
        self.expected.append(f"gone {code} withdrawn")

    def see(self, page):
        """Wait until the page knows the sessions that are listed, from events that do not repeat what it knows."""
        page.wait_for_function("last => received.includes(last)", arg=self.expected[-1])
        assert applied(page.evaluate("received")) == applied(self.expected)


def applied(events):
    """Return the codes that a reader of events knows."""
    known = set()
    for name, *code in map(str.split, events):
        if name == "reset":  # the listing follows
            known.clear()
        else:
            assert (name == "gone") == (code[0] in known)
            known ^= {code[0]}
    return known


def test_topic_events_arrive_across_restarts(start, site, profiles):
    peers = Peers(start(), site.origin)
    codes = [peers.come() for _ in range(3)]
    page = open_page(profiles, site, f"{peers.server.url}/lobby/events")
    for opened, number in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
        codes += [peers.come() for _ in range(3)]
        peers.answer(codes.pop(0))
        peers.withdraw(codes.pop(1))
        if number == signal.SIGTERM:
            peers.see(page)  # the other time it ends with events on their way
        peers.server.stop(number)
        peers.server = start(port=peers.server.port)
        # Before the page is back, or as it comes: this one must not be lost.
        codes.append(peers.come())
        peers.withdraw(codes.pop(0))
        page.wait_for_function("number => opened === number", arg=opened)
        codes.append(peers.come())
        peers.answer(codes.pop())
        peers.come()
        peers.see(page)
    assert page.evaluate("lost.size") == 2
