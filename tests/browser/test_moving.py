"""The examples of the pages for users of PeerJS and trystero, and what docs/security.md says of topics."""

import pytest
from support.browsers import until
from support.documents import ADDRESS, blocks

TEXT = "document.querySelector('pre').innerText"


@pytest.fixture
def show(server, site):
    """A function that serves the example of a page. It returns the address."""

    def showing(page):
        (text,) = blocks(page, "Before and after", "html")
        assert ADDRESS in text
        site.pages["/"] = text.replace(ADDRESS, server.url)
        return site.origin

    return showing


def test_example_for_peerjs(show, profiles):
    origin = show("from-peerjs")
    publishing, joining = profiles.open(origin), profiles.open(f"{origin}/#join")
    until(lambda: publishing.evaluate(TEXT) == "the joining page\n")
    until(lambda: joining.evaluate(TEXT) == "hello\n")


def test_example_for_trystero(show, profiles, server):
    origin = show("from-trystero")
    pages = [profiles.open(origin) for _ in range(3)]
    for page in pages:
        until(lambda page=page: page.evaluate(TEXT).count(": welcome\n") == 2)
    listed = server.call("/topics", origin=origin)[1]["topics"]
    assert listed == [{"topic": "room~lobby", "count": 3}]
