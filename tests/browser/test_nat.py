"""Two browsers behind the routers of two homes: STUN connects them, and only TURN if a NAT is symmetric."""

import contextlib

import pytest
from support.browser_fixtures import serve_turn
from support.browsers import SELECTED, launch_in, open_connect, reach, until
from support.members import messages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.needs("root", "ip", "nft", "turnserver")]

# Of each pair of homes: whether their NATs are symmetric, the ICE servers, and types of candidates that connect them.
HOMES = [
    ((False, False), "stun", {"srflx", "prflx"}),
    ((True, True), "turn", {"relay"}),
    ((True, False), "turn", {"relay"}),
    ((False, False), "none", None),
    ((True, False), "stun", None),
]
ERRORS = "seen.filter(([name]) => name === 'error').map(([, message]) => message)"


def connects(pages):
    """Wait until two pages are connected and a message arrives each way. Return the types of their candidates."""
    reach(pages, "here.peers.size", 1)
    for number, page in enumerate(pages):
        page.evaluate(f"here.send('from {number}')")
    for number, page in enumerate(pages):
        until(
            lambda page=page, number=number: f"from {1 - number}" in messages(page),
            complaint=lambda: [page.evaluate("seen") for page in pages],
        )
    return {
        kind for page in pages for kind in page.evaluate(f"({SELECTED})([...here.peers.values()][0].peerConnection)")
    }


def test_stun_connects_homes_and_only_turn_those_behind_symmetric_nats(chromium, start, secret_file, lan, tmp_path):
    with contextlib.ExitStack() as stack:
        port, _ = stack.enter_context(serve_turn(tmp_path, lan.address))
        stun = ("--stun-servers", f"stun:{lan.address}:{port}")
        turn = (*stun, "--turn-servers", f"turn:{lan.address}:{port}", "--turn-secret-file", secret_file)
        servers, homes, rows = {}, {False: [], True: []}, []
        for name, flags in {"none": (), "stun": stun, "turn": turn}.items():
            servers[name] = start("--address", lan.address, *flags, data=name)
        for number in range(4):
            enter = lan.home(symmetric=number > 1)
            browser = launch_in(chromium(0).browser_type, enter, tmp_path / f"chromium{number}")
            stack.callback(browser.close)
            homes[number > 1].append(browser)
        for row, (symmetric, ice, _) in enumerate(HOMES):
            contexts = [homes[each][number].new_context() for number, each in enumerate(symmetric)]
            rows.append([open_connect(context, servers[ice], "http://app.example") for context in contexts])
            for number, page in enumerate(rows[row]):
                page.evaluate(f"enter('room {row}', {{info: '{number}'}})")
        for pages, (_, _, types) in zip(rows, HOMES, strict=True):
            if types:
                kinds = connects(pages)
                assert "relay" in kinds if types == {"relay"} else kinds <= types
        advice = "STUN or TURN server may be missing"
        for pages, (_, _, types) in zip(rows, HOMES, strict=True):
            for page in pages * (types is None):
                until(lambda page=page: any(advice in each for each in page.evaluate(ERRORS)))
                assert page.evaluate("here.peers.size") == 0
