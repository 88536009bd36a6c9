"""The ICE servers of peers. A real coturn accepts their passwords, and no others."""

import re

from support.browsers import SELECTED, until
from support.browsers import TURN_SECRET as SECRET

TURN = ("turn:turn.example:3478?transport=udp", "turns:turn.example")


def test_secret_is_never_logged(secret_file, start):
    server = start("--turn-servers", TURN[0], "--turn-secret-file", secret_file)
    assert server.call("/ice-servers")[0] == 200
    with open(f"/proc/{server.process.pid}/cmdline") as file:
        assert SECRET not in file.read()
    server.stop()
    assert SECRET not in "".join(server.log)


RELAY = "{rtc: {iceTransportPolicy: 'relay'}, info: '%s'}"


def test_pages_connect_through_the_relay_only(coturn, start, connect_page, secret_file):
    server = start("--turn-servers", f"turn:127.0.0.1:{coturn[0]}", "--turn-secret-file", secret_file)
    alice, bob = connect_page(server), connect_page(server)
    alice.evaluate(f"listen('lobby', {RELAY % 'alice'})")
    assert bob.evaluate(f"call('lobby', {RELAY % 'bob'})") == ["alice", "alice: hello"]
    local, remote = until(lambda: bob.evaluate(f"({SELECTED})(connection.peerConnection)"))
    assert local == "relay"
    assert remote in ("relay", "prflx")  # the other page's relay, also if its check has come before its candidate
    assert "ALLOCATE processed, success" in coturn[1]()


def test_pages_report_their_connection_over_the_websocket_and_over_http(start, connect_page):
    server = start("--connection-reports", "--admin-port", 0, "--stun-servers", "none")
    alice, bob = connect_page(server), connect_page(server)
    alice.evaluate("listen('lobby', {info: 'alice'})")
    assert bob.evaluate("call('lobby', {info: 'bob', socket: false})") == ["alice", "alice: hello"]

    def reported():
        text = server.exchange("/metrics", base=server.admin_url, origin=None)[2].decode()
        return re.findall(
            r"^tornado_signal_report(?:ed_connections_total|s_ignored_total)(.*) (\d)", text, re.MULTILINE
        )

    # Of the reports of one address the first counts.
    until(lambda: sum(int(number) for _, number in reported()) == 2)
    ways = [labels for labels, number in reported() if labels and number != "0"]
    assert all(re.fullmatch(r'{kind="(host|prflx)",outcome="connected",transport="udp"}', each) for each in ways), ways
    assert ways
