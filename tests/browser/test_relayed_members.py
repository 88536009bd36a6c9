"""Members whose networks let nothing through but a TURN server: Chromium, Firefox and Python, over UDP, TCP and TLS."""

import contextlib

import pytest
from support.browser_fixtures import serve_turn
from support.browsers import BOUND_MS, SELECTED, Firefox, launch_in, until
from support.certificates import make_pair, trust
from support.members import Program, forking
from support.networks import Lan, own_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.needs("root", "ip", "nft", "turnserver", "certutil", "aiortc"),
]

# The URL of the TURN server, and the only port and protocol that the firewalls let through to it.
TRANSPORTS = {
    "udp": ("turn:{}:{}?transport=udp", 0, "udp"),
    "tcp": ("turn:{}:{}?transport=tcp", 0, "tcp"),
    "tls": ("turns:{0}:{1}?transport=tcp,turns:turn.example:{1}?transport=tcp", 1, "tcp"),  # Firefox needs a name
}
ENTER = """import("/client.js").then(({ room }) => {
  window.heard = [];
  window.here = room("lobby", { info: "%s" });
  here.addEventListener("message", ({ data }) => heard.push(data));
})"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_members_behind_firewalls_connect_through_the_relay(
    transport, start, secret_file, lan, playwright, tmp_path, monkeypatch
):
    url, offset, protocol = TRANSPORTS[transport]
    authority = make_pair(tmp_path, "authority", addresses=())
    pair = make_pair(tmp_path, "turn.example", addresses=[lan.address], authority=authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with contextlib.ExitStack() as stack:
        port, _ = stack.enter_context(serve_turn(tmp_path, lan.address, tls=pair))
        turn = ("--turn-servers", url.format(lan.address, port + offset), "--turn-secret-file", secret_file)
        server = start("--address", lan.address, *pair.flags, "--stun-servers", "none", *turn)

        def make_machine():
            machine = lan.machine()
            machine.allow(f"tcp dport {server.port}", f"{protocol} dport {port + offset}")
            return machine

        trust(authority, tmp_path / ".pki" / "nssdb")
        browser = launch_in(playwright.chromium, make_machine().enter, tmp_path / "chromium")
        stack.callback(browser.close)
        chromium = browser.new_page()
        chromium.set_default_timeout(BOUND_MS)
        trust(authority, tmp_path / "firefox")
        (tmp_path / "firefox" / "prefs.js").write_text(f'user_pref("network.dns.forceResolve", "{Lan.address}");\n')
        with own_network(make_machine().pid):
            firefox = stack.enter_context(contextlib.closing(Firefox(tmp_path / "firefox")))
        pages = {"chromium": chromium, "firefox": firefox}
        for name, page in pages.items():
            page.goto(f"{server.url}/demo")
            page.evaluate(ENTER % name)
        template = stack.enter_context(forking(make_machine().enter))
        python = Program(template, [server.url], server.url, "python", tmp_path)
        stack.callback(python.end)
        python.evaluate("enter('lobby')")
        members = {**pages, "python": python}
        for name, each in members.items():
            others = sorted(members.keys() - {name})
            found = "others()" if each is python else "[...here.peers.values()].map(({ info }) => info).sort()"
            until(lambda each=each, found=found, others=others: each.evaluate(found) == others)
        for name, each in members.items():
            each.evaluate(f"{'room' if each is python else 'here'}.send('from {name}')")
        for name, each in members.items():
            texts = sorted(f"from {other}" for other in members if other != name)
            heard = "sorted(row[-1] for row in seen if row[0] == 'Message')" if each is python else "heard.sort()"
            until(lambda each=each, heard=heard, texts=texts: each.evaluate(heard) == texts)
        connections = "[...here.peers.values()].map(({ peerConnection }) => peerConnection)"
        for page in pages.values():
            assert [local for local, _ in page.evaluate(f"Promise.all({connections}.map({SELECTED}))")] == ["relay"] * 2
