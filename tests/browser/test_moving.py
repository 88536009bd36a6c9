"""The examples of the pages for users of PeerJS and trystero, and what docs/security.md says of topics."""

from support.browsers import until
from support.documents import ADDRESS, blocks

TEXT = "document.querySelector('pre').innerText"


def show(page, server, site):
    """Serve the example of a page. Return the address."""
    (text,) = blocks(page, "Before and after", "html")
    assert ADDRESS in text
    site.pages["/"] = text.replace(ADDRESS, server.url)
    return site.origin


def test_example_for_peerjs(server, site, profiles):
    origin = show("from-peerjs", server, site)
    publishing, joining = profiles.open(origin), profiles.open(f"{origin}/#join")
    until(lambda: publishing.evaluate(TEXT) == "the joining page\n")
    until(lambda: joining.evaluate(TEXT) == "hello\n")


def test_example_for_trystero(server, site, profiles):
    origin = show("from-trystero", server, site)
    pages = [profiles.open(origin) for _ in range(3)]
    for page in pages:
        until(lambda page=page: page.evaluate(TEXT).count(": welcome\n") == 2)
    listed = server.call("/topics", origin=origin)[1]["topics"]
    assert listed == [{"topic": "room~lobby", "count": 3}]
