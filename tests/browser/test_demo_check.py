"""The check of the demo page in Chromium and Firefox, with coturn and with servers that do not respond."""

import re
import socket

import pytest
from support.browsers import TURN_SECRET, until
from support.demo import VERDICT, checked

REPORT = "document.getElementById('report').textContent"


@pytest.fixture(params=["chromium", "firefox"])
def check(request, profiles):
    """Return a function that opens the check of a server, and returns the page and the results."""
    page = request.getfixturevalue("firefox") if request.param == "firefox" else profiles.open("about:blank")

    def checking(server):
        page.goto(f"{server.url}/demo#check")
        return page, checked(page)

    return checking


def reports_errors(page):
    """Return whether the browser reports errors of ICE servers. Firefox does so since version 150."""
    return page.evaluate("'onicecandidateerror' in RTCPeerConnection.prototype")


def test_working_servers(check, start, coturn, secret_file):
    stun, turn = f"stun:127.0.0.1:{coturn[0]}", f"turn:127.0.0.1:{coturn[0]}"
    server = start("--stun-servers", stun, "--turn-servers", turn, "--turn-secret-file", secret_file)
    page, results = check(server)
    assert page.evaluate(VERDICT) == "Everything works.", results
    assert results.keys() == {"HTTP", "Signaling", "WebSocket", "ICE servers", stun, turn}
    assert {result for name, (result, _) in results.items() if name != stun} == {"ok"}
    assert results[stun][0] == "ok" or not reports_errors(page)
    assert re.search(r"public address|own address of this device", results[stun][1])
    assert re.fullmatch(r"a message passed the relay: 127\.0\.0\.1:\d+", results[turn][1])
    assert "CREATE_PERMISSION processed, success" in coturn[1]()
    report = page.evaluate(REPORT)
    version = server.call("/", origin=server.url)[1]["version"]
    for text in (f"Origin: {server.url}", "Mozilla/5.0", version, stun, turn, "ok"):
        assert text in report
    credentials = server.call("/ice-servers", origin=server.url)[1]["iceServers"][1]
    assert not re.search(rf"{re.escape(credentials['username'][-16:])}|\d{{10}}:|{TURN_SECRET}", report)
    assert not re.search(r"127\.0\.0\.1:\d+", report.replace(server.url, "").replace(stun, "").replace(turn, ""))


def test_servers_without_a_response(check, start, secret_file):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        stun, turn = (f"{kind}:127.0.0.1:{silent.getsockname()[1]}" for kind in ("stun", "turn"))
        page, results = check(start("--stun-servers", stun, "--turn-servers", turn, "--turn-secret-file", secret_file))
    verdict = page.evaluate(VERDICT)
    if reports_errors(page):
        assert verdict == f"These do not work: {stun}, {turn}"
        assert results[stun][0] == "failed"
        assert results[stun][1].startswith("no response; check the name, the port and the firewall (UDP)")
    else:
        assert (verdict, results[stun][0]) == (f"These do not work: {turn}", "not checked")
    assert results[turn][0] == "failed"
    advice = "no relay; check the name, the port, the firewall and the secret of both servers"
    assert results[turn][1].startswith(advice)


def test_unknown_name_and_wrong_secret(check, start, coturn, tmp_path):
    (tmp_path / "other").write_text("another secret of thirty characters")
    stun, turn = "stun:nowhere.invalid", f"turn:127.0.0.1:{coturn[0]}"
    flags = ("--stun-servers", stun, "--turn-servers", turn, "--turn-secret-file", tmp_path / "other")
    page, results = check(start(*flags))
    assert results[turn][1].startswith("no relay; ")
    if reports_errors(page):
        assert "error 701" in results[stun][1]
        assert "error 401" in results[turn][1]
    else:
        assert results[stun][0] == "not checked"


def test_no_ice_servers_and_no_websocket(start, blocking, profiles):
    server = start("--stun-servers", "none")
    page = profiles.open(f"{blocking(server).url}/demo")
    page.get_by_role("link", name="Check my connection").click()
    page.get_by_text("These do not work: WebSocket, ICE servers").wait_for()
    results = checked(page)
    assert results["HTTP"][0] == results["Signaling"][0] == "ok"
    assert "requests use HTTP" in results["WebSocket"][1]
    assert "--stun-servers" in results["ICE servers"][1]


def test_check_is_a_view_with_a_way_back(start, coturn, profiles):
    server = start("--stun-servers", f"stun:127.0.0.1:{coturn[0]}")
    page = profiles.open(f"{server.url}/demo#topic=chess", permissions=["clipboard-read", "clipboard-write"])
    for _ in range(2):
        page.get_by_role("button", name="Join").click()
        page.get_by_text("Waiting for somebody").wait_for()
        page.evaluate("location.hash = 'check'")
        page.get_by_text("Everything works.").wait_for()
        assert page.evaluate("document.activeElement.id") == "check-title"
        assert checked(page)["TURN"][0] == "not checked"
        page.go_back()
        page.get_by_role("heading", name="You are invited to chess").wait_for()
        until(lambda: page.evaluate("document.activeElement.id") == "name")
    page.go_forward()
    page.get_by_text("Everything works.").wait_for()
    page.get_by_role("button", name="Copy the text").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.evaluate(REPORT)
    page.evaluate(f"() => {{ {REPORT} = 'before'; }}")  # the check can be over before the emptied text is seen
    page.get_by_role("button", name="Check again").click()
    until(lambda: page.evaluate(REPORT) not in ("", "before"))
    page.get_by_role("link", name="Back to the rooms").click()
    page.get_by_role("button", name="Start a room").wait_for()
    assert server.call("/topics", origin=server.url)[1]["topics"] == []
