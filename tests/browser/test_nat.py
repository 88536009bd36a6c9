"""Two browsers behind the routers of two homes: STUN connects them, and only TURN if a NAT is symmetric."""

import contextlib

import pytest
from support.browser_fixtures import serve_turn
from support.browsers import launch_in, open_connect, until
from support.networks import Lan, own_network

pytest_plugins = ["support.browser_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.needs("root", "ip", "nft", "turnserver")]

# The types of the selected candidates of the only peer: this side's and the other side's.
SELECTED = """
  (async () => {
    const [{peerConnection}] = here.peers.values();
    const stats = new Map(await peerConnection.getStats());
    const {selectedCandidatePairId} = [...stats.values()].find(({type}) => type === "transport");
    const {localCandidateId, remoteCandidateId} = stats.get(selectedCandidatePairId);
    return [localCandidateId, remoteCandidateId].map((id) => stats.get(id).candidateType);
  })()
"""


@pytest.fixture
def lan():
    with own_network():
        lan = Lan()
        yield lan
        lan.close()


@pytest.fixture
def open_homes(lan, chromium, start, tmp_path, secret_file):
    """A function that starts a server with these ICE servers, and two pages behind routers that enter one room."""
    with contextlib.ExitStack() as stack:

        def opening(*symmetric, stun=False, turn=False):
            port, _ = stack.enter_context(serve_turn(tmp_path, lan.address))
            options = ["--stun-servers", f"stun:{lan.address}:{port}" if stun else "none"]
            if turn:
                options += ["--turn-servers", f"turn:{lan.address}:{port}", "--turn-secret-file", secret_file]
            server = start("--address", lan.address, *options)
            pages = []
            for number, is_symmetric in enumerate(symmetric):
                enter = lan.home(symmetric=is_symmetric)
                browser = launch_in(chromium(0).browser_type, enter, tmp_path / f"chromium{number}")
                stack.callback(browser.close)
                pages.append(open_connect(browser, server, "http://app.example"))
                pages[-1].evaluate(f"enter('lobby', {{info: '{number}'}})")
            return pages

        yield opening


def connects(pages):
    """Wait until two pages are connected and a message arrives each way. Return the types of their candidates."""
    for page in pages:
        until(lambda page=page: page.evaluate("here.peers.size") == 1)
    for number, page in enumerate(pages):
        page.evaluate(f"here.send('from {number}')")
    for number, page in enumerate(pages):
        until(
            lambda page=page, number=number: ["message", f"from {1 - number}"] in heard(page),
            complaint=lambda: [page.evaluate("seen") for page in pages],
        )
    return {kind for page in pages for kind in page.evaluate(SELECTED)}


def heard(page):
    return page.evaluate("seen.filter(([name]) => name === 'message').map(([name, , data]) => [name, data])")


def test_stun_connects_two_homes(open_homes):
    kinds = connects(open_homes(False, False, stun=True))
    assert kinds <= {"srflx", "prflx"}


@pytest.mark.parametrize("symmetric", [(True, True), (True, False)])
def test_turn_connects_homes_behind_symmetric_nats(open_homes, symmetric):
    kinds = connects(open_homes(*symmetric, stun=True, turn=True))
    assert "relay" in kinds


@pytest.mark.parametrize(("symmetric", "stun"), [((False, False), False), ((True, False), True)])
def test_homes_that_cannot_connect_get_an_error_about_ice(open_homes, symmetric, stun):
    pages = open_homes(*symmetric, stun=stun)
    errors = "seen.filter(([name]) => name === 'error').map(([, message]) => message)"
    for page in pages:
        until(lambda page=page: any("a STUN or TURN server may be missing" in each for each in page.evaluate(errors)))
        assert page.evaluate("here.peers.size") == 0
