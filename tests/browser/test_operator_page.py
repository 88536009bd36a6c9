"""The page of the admin listener on a server with traffic: verdict, figures, tables, token, small screens, axe-core."""

import contextlib
import re

import pytest
from support.browsers import until
from support.command import call
from support.traffic import hammer

DESK = {"viewport": {"width": 1200, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
TOKEN = "a token of the operator"
UNFOLD = "for (const part of document.querySelectorAll('details')) part.open = true"


def wait_for_figures(page):
    page.get_by_text("serving for").wait_for()
    page.evaluate(UNFOLD)
    return page


def open_operator(profiles, server, token="", **options):
    """Open the page of a server, and wait for its figures."""
    page = profiles.open(f"{server.admin_url}/", **options)
    if token:
        page.get_by_label("Admin token").fill(token)
        page.get_by_role("button", name="Show").click()
    return wait_for_figures(page)


@pytest.fixture
def guarded(start, tmp_path):
    """A function that starts a server with an admin listener and its token."""
    (tmp_path / "token").write_text(TOKEN)
    return lambda *flags: start("--admin-port", "0", "--admin-token-file", tmp_path / "token", *flags)


def rows(page, heading):
    table = page.get_by_role("region", name=heading).get_by_role("row")
    return [row.get_by_role("cell").all_inner_texts() for row in table.all()[1:]]


def ticks(figure):
    return figure.locator(".events").get_attribute("d").count("M")


def test_page_shows_the_state_of_the_server_and_follows_it(start, profiles, findings):
    server, fields = start("--admin-port", "0"), {"info": "from a peer", "offer": "from a peer"}
    for number in range(5):
        server.call(f"/topic-{number}/offer", fields, origin="https://one.example")
    server.call("/lobby/offer", fields, origin="https://two.example")
    server.call("/nowhere")
    page = open_operator(profiles, server)
    assert findings(page) == []
    assert page.get_by_role("heading", level=1).inner_text() == "Well"
    assert page.get_by_role("status").get_by_text("No trouble in the last 60 minutes.").is_visible()
    assert rows(page, "Refused requests") == [["path not found (404)", "1", "1"]]
    origins = rows(page, "Origins")
    expected = [["https://one.example", "5", "5", "5"], ["https://two.example", "1", "1", "1"]]
    assert [row[:4] for row in origins[:2]] == expected
    assert page.get_by_text("Topics can be private").is_visible()
    assert rows(page, "Warnings") == [["None."]]
    assert [row[2] for row in rows(page, "Log")] == ["event"]
    settings = rows(page, "Settings")
    assert ["--admin-port", "0", "flag"] in settings
    assert ["--max-connections", "100000", "default"] in settings
    assert [row[2] for row in settings] == sorted((row[2] for row in settings), key="default".__eq__)
    assert "from a peer" not in page.content()
    assert "topic-" not in page.content()
    assert page.get_by_text("They need --admin-token-file").is_visible()
    assert page.get_by_role("button", name="Disconnect").count() == 0
    figure = page.get_by_role("listitem").filter(has_text="Room")
    figure.get_by_text("6", exact=True).wait_for()
    server.offer()
    figure.get_by_text("7", exact=True).wait_for()
    traffic = page.get_by_role("listitem").filter(has_text="Traffic")
    until(lambda: traffic.locator("strong").first.inner_text() != "0")
    assert traffic.locator(".line").get_attribute("d").count(",") >= 1


def test_charts_have_thresholds_and_events(share, profiles):
    server = share()
    page = open_operator(profiles, server)
    figure = page.get_by_role("listitem").filter(has_text="Trouble")
    assert figure.locator("svg .limit").count() == 1
    assert figure.locator("svg").bounding_box()["height"] >= 50
    other = share()
    until(lambda: ticks(figure) == 2)
    done = call("admin", "block", "--address", "192.0.2.1", "--for", "1m", "--admin-url", server.admin_url)
    assert done.returncode == 0
    other.stop()
    page.get_by_role("cell", name="has ended").wait_for()
    events = [message for _, _, level, message in rows(page, "Log") if level == "event"]
    for part, number in (("has started, version", 2), ("block", 1), ("has ended", 1)):
        assert sum(part in event for event in events) >= number
    assert ticks(figure) == len(events)
    server.stop()


def test_operator_at_night_learns_cause_time_and_address_and_blocks_it(guarded, profiles, findings):
    server = guarded("--trusted-proxies", "127.0.0.1")
    hammer(server, "192.0.2.7", 300)
    for number in range(4):
        hammer(server, f"2001:db8:1:{number}::7", 10)
    for options in (DESK, DESK | {"color_scheme": "dark"}, PHONE):
        page = open_operator(profiles, server, TOKEN, **options)
        for _ in range(2):  # the same after a reload
            word = page.get_by_role("heading", level=1).inner_text()
            assert re.fullmatch(r"Strained since \d\d:\d\d \(\d+ min\)", word)
            cause = page.get_by_role("status").get_by_text("of the requests are refused").inner_text()
            assert re.fullmatch(r"\d+ % of the .* 340 in 5 minutes: invalid page; 88 % from 192.0.2.7\.", cause)
            assert page.title() == f"{word.split()[0]}: tornado-signal"
            page.reload()
            wait_for_figures(page)
        assert page.get_by_role("heading", level=1).inner_text()[:20] == word[:20]
        found = rows(page, "Clients")
        assert [found[0][0], *found[0][2:]] == ["192.0.2.7", "300", "0", "300", "–"]
        assert [found[1][0], *found[1][2:5]] == ["2001:db8:1::/48", "40", "0", "40"]
        table = page.get_by_role("region", name="Clients")
        assert table.locator(".most").get_by_role("cell").first.inner_text() == "192.0.2.7"
        assert rows(page, "Origins")[0][0] == "https://broken.example"
        block = table.get_by_role("button", name="Block 192.0.2.7 for an hour")
        box = block.bounding_box()
        assert box["x"] + box["width"] <= options["viewport"]["width"]
        assert not page.evaluate(SCROLLS)
        assert findings(page) == []
        places = [page.get_by_text(text, exact=True).bounding_box()["y"] for text in ("Why", "Who", "Traffic")]
        assert (places == sorted(places)) == (options is PHONE)
    with answered(page, "Block 192.0.2.7 for an hour?"):
        block.click()
    page.get_by_role("button", name="Unblock 192.0.2.7").wait_for()


def test_reports_of_connections_are_in_the_band_and_refused_origins_are_named(start, profiles):
    server = start("--admin-port", "0", "--connection-reports", "--allowed-origins", "https://app.example")
    hammer(server, "192.0.2.7", 3)
    for kind, outcome, number in (("host", "connected", 89), ("relay", "connected", 8), ("host", "failed", 3)):
        for _ in range(number):
            server.exchange("/report", {"outcome": outcome, "local": kind, "ms": 380}, origin="https://app.example")
    page = open_operator(profiles, server)
    assert page.get_by_text("97 % of 100 connections, 8 % by relay, median 0.4 s").is_visible()
    assert page.get_by_role("heading", level=1).inner_text() == "Well"
    assert page.get_by_text("Refused origins: https://broken.example (3)").is_visible()
    warnings = page.get_by_role("region", name="Warnings")
    assert warnings.get_by_text("pages of https://broken.example are refused").count() == 1


def test_token_is_asked_for_with_the_keyboard(guarded, profiles, findings):
    server = guarded()
    page = profiles.open(f"{server.admin_url}/")
    page.get_by_role("status").get_by_text("asks for its admin token").wait_for()
    assert findings(page) == []
    page.get_by_label("Admin token").press_sequentially("another")
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("This is not the admin token").wait_for()
    page.get_by_label("Admin token").press_sequentially(TOKEN)
    page.keyboard.press("Enter")
    wait_for_figures(page)
    assert not page.get_by_label("Admin token").is_visible()
    page.reload()
    wait_for_figures(page)
    assert TOKEN not in page.url


@contextlib.contextmanager
def answered(page, question, answer="accept"):
    """Answer the question that follows."""
    asked = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), getattr(dialog, answer)()))
    yield
    assert asked == [question]


def test_actions_are_confirmed_and_shown(guarded, profiles, findings):
    server = guarded("--admin-topics", "true")
    for topic in ("lobby", "attic"):
        server.offer(topic)
    page = open_operator(profiles, server, TOKEN)
    page.get_by_role("button", name="Withdraw the sessions of lobby").focus()
    with answered(page, "Withdraw the sessions of lobby?", "dismiss"):
        page.keyboard.press("Enter")
    assert len(server.codes()) == 1
    with answered(page, "Withdraw the sessions of lobby?"):
        page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("sessions: 1").wait_for()
    assert server.codes() == []
    assert len(server.codes("attic")) == 1

    field = page.get_by_role("textbox", name="Address, network, origin")
    form = page.locator("#actions")
    for text, kind, offered in (
        ("192.0.2.1", "is an address", ["Block", "Disconnect"]),
        ("192.0.2.0/24", "is a network", ["Block", "Disconnect"]),
        ("https://app.example", "is an origin", ["Disconnect"]),
        ("sub:alice", "is a subject of tokens", ["Disconnect"]),
        ("everybody", "is a session code", ["Disconnect", "Withdraw"]),
    ):
        field.fill(text)
        assert form.get_by_text(kind).is_visible()
        assert form.get_by_role("button").all_inner_texts() == [*offered, "Drain and stop this server"]
    page.get_by_role("combobox", name="of origin").fill("https://app.example")
    with answered(page, "Disconnect everybody?"):
        form.get_by_role("button", name="Disconnect").click()
    page.get_by_role("status").get_by_text("Disconnect everybody").wait_for()

    field.fill("192.0.2.0/24")
    page.get_by_role("combobox", name="for").select_option("1 day")
    with answered(page, "Block 192.0.2.0/24?"):
        form.get_by_role("button", name="Block").click()
    page.get_by_role("button", name="Unblock 192.0.2.0/24").wait_for()
    assert findings(page) == []
    with answered(page, "Unblock 192.0.2.0/24?"):
        page.get_by_role("button", name="Unblock 192.0.2.0/24").click()
    page.get_by_role("cell", name="No address is blocked.").wait_for()

    field.fill("1.2.3.4.5")
    with answered(page, "Block 1.2.3.4.5?"):
        form.get_by_role("button", name="Block").click()
    page.get_by_role("status").get_by_text("failed: address must be an IP address").wait_for()

    with answered(page, "Drain and stop this server?"):
        form.get_by_role("button", name="Drain and stop this server").click()
    assert server.wait() == 0
    page.get_by_role("status").get_by_text("does not respond").wait_for()
    guarded("--admin-port", server.admin_url.rpartition(":")[2])
    wait_for_figures(page)


def test_page_shows_all_servers_and_workers_and_names_a_missing_one(share, profiles):
    server = share("--workers", "2")
    for _ in range(5):
        server.offer()
    page = open_operator(profiles, server)
    figure = page.get_by_role("listitem").filter(has_text="Room")
    figure.get_by_text("5", exact=True).wait_for()
    other = share()
    until(lambda: len(rows(page, "Servers")) == 3)
    names = [row[0].rpartition(":")[2] for row in rows(page, "Servers")]
    ports = [each.url.rpartition(":")[2] for each in (server, other)]
    assert sorted(names) == sorted([f"{ports[0]}/1", f"{ports[0]}/2", ports[1]])
    assert page.get_by_text("servers 3 of 3").is_visible()
    other.process.kill()
    page.get_by_role("heading", name="Failing").wait_for()
    page.get_by_role("status").get_by_text("No response from").wait_for()
    server.stop()
