"""The recipes of the documentation in Chromium and Firefox."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.browsers import listed, reach, until
from support.documents import ADDRESS, blocks, sections

TEXT = "document.body.innerText"


@pytest.fixture
def open_recipe(server, site, profiles, firefox):
    """A function that opens a recipe in two Chromiums and in Firefox, or in fewer of them."""

    def opening(heading, count=3):
        (text,) = blocks("recipes", heading, "html")
        assert ADDRESS in text
        site.pages["/"] = text.replace(ADDRESS, server.url)
        pages = [profiles.open(site.origin, permissions=["camera", "microphone"]) for _ in range(count - 1)]
        firefox.goto(f"{site.origin}/")
        return [*pages, firefox]

    return opening


def shows(page, text):
    until(lambda: text in page.evaluate(TEXT))


def test_all_recipes_are_tried():
    recipes = [heading for heading, text in sections("recipes").items() if heading != "Recipes" and "```html" in text]
    assert recipes == re.findall(r'open_recipe\("(.+?)"', Path(__file__).read_text())


def test_cursors_are_shared(open_recipe):
    pages = open_recipe("Shared cursors")
    cursors = "Array.from(document.querySelectorAll('.cursor'), ({style}) => style.left).sort()"
    reach(pages, f"{cursors}.length", 2)
    for share, page in enumerate(pages, 1):
        event = f"new PointerEvent('pointermove', {{clientX: innerWidth * {share} / 4, clientY: 0}})"
        page.evaluate(f"void document.dispatchEvent({event})")
    for own, page in enumerate(pages, 1):
        expected = [f"{25 * share}vw" for share in (1, 2, 3) if share != own]
        until(lambda page=page, expected=expected: page.evaluate(cursors) == expected)
    pages[0].close()
    reach(pages[1:], f"{cursors}.length", 1)


# Noise in all pixels, which no PNG compresses: the picture has 2.4 MB.
FILL = """
  (() => {
    const context = document.querySelector("canvas").getContext("2d");
    const noise = new ImageData(1000, 600);
    for (let at = 0; at < noise.data.length; at += 65_536) crypto.getRandomValues(noise.data.subarray(at, at + 65_536));
    for (let at = 3; at < noise.data.length; at += 4) noise.data[at] = 255;
    context.putImageData(noise, 0, 0);
  })()
"""
PIXELS = """
  crypto.subtle.digest("SHA-256", document.querySelector("canvas").getContext("2d").getImageData(0, 0, 1000, 600).data)
    .then((bytes) => String(new Uint8Array(bytes)))
"""
MOVE = """
  document.querySelector("canvas").dispatchEvent(new PointerEvent("pointermove",
    {buttons: 1, clientX: 50, clientY: 50, movementX: 20, movementY: 20}))
"""


@pytest.mark.needs("aiortc")
def test_whiteboard_gives_late_comers_the_picture(server, site, open_recipe, profiles, tmp_path):
    chromium, firefox = open_recipe("Whiteboard", 2)
    blank = chromium.evaluate(PIXELS)
    chromium.evaluate(FILL)
    chromium.evaluate(MOVE)
    until(lambda: firefox.evaluate(PIXELS) != blank)  # the line has arrived
    late = profiles.open(site.origin)
    until(lambda: late.evaluate(PIXELS) == chromium.evaluate(PIXELS))
    (program,) = blocks("recipes", "Whiteboard", "python")
    program = program.replace(ADDRESS, server.url).replace("http://127.0.0.1:8000", site.origin)
    # All members are on loopback here, which aiortc does not use itself.
    loopback = "import aioice.ice\naioice.ice.get_host_addresses = lambda **options: ['127.0.0.1']\n"
    with subprocess.Popen([sys.executable, "-c", loopback + program], cwd=tmp_path) as process:
        try:
            until(lambda: (tmp_path / "whiteboard.png").exists())
            late.close()
            firefox.goto("about:blank")
            # The program has the picture of the page that comes last; the others' is blank or the same.
            chromium.reload()
            until(lambda: chromium.evaluate(PIXELS) != blank)
        finally:
            process.terminate()


def test_files_are_dropped(open_recipe):
    pages = open_recipe("File drop")
    for page in pages:
        shows(page, "Other pages: 2")
    content = "Uint8Array.from({length: 300_000}, (_, place) => place)"
    choose = (
        "(() => { const transfer = new DataTransfer();"
        f" transfer.items.add(new File([{content}], '%s')); const input = document.querySelector('input');"
        " input.files = transfer.files; input.dispatchEvent(new Event('change')); })()"
    )
    links = "Array.from(document.querySelectorAll('a'), ({textContent}) => textContent).sort()"
    first = (
        "fetch(document.querySelector('a').href).then((response) => response.arrayBuffer())"
        ".then((bytes) => { const all = new Uint8Array(bytes);"
        " return all.length === 300_000 && all.every((byte, place) => byte === place % 256); })"
    )
    for number, page in enumerate(pages):
        page.evaluate(choose % f"file {number}")
        shows(page, f"Sent file {number}")
    for own, page in enumerate(pages):
        expected = [f"file {number}" for number in range(3) if number != own]
        until(lambda page=page, expected=expected: page.evaluate(links) == expected)
        assert page.evaluate(first) is True


def test_call_of_three(open_recipe):
    pages = open_recipe("Call")
    for page in pages:
        page.evaluate("document.querySelector('button').click()")
    videos = "[...document.querySelectorAll('video')]"
    playing = f"{videos}.filter(({{videoWidth, paused}}) => videoWidth > 2 && !paused).length"
    reach(pages, playing, 3, 180)
    pages[0].close()
    reach(pages[1:], f"{videos}.length", 2)


def test_game_is_played_to_the_end_and_reports_a_player_that_leaves(open_recipe, site):
    pages = open_recipe("Game for two", 2)
    for page in pages:
        shows(page, "turn")
    x, o = sorted(pages, key=lambda page: "Your turn" not in page.evaluate(TEXT))
    board = "Array.from(document.querySelectorAll('button'), ({textContent}) => textContent).join()"
    o.evaluate("document.querySelectorAll('button')[8].click()")  # it is not its turn
    for player, place in ((x, 0), (o, 3), (x, 1), (o, 0), (o, 4), (x, 2)):  # one field is taken
        player.evaluate(f"document.querySelectorAll('button')[{place}].click()")
        until(lambda: x.evaluate(board) == o.evaluate(board))
    for page in pages:
        shows(page, "X has won")
    assert x.evaluate(board) == "X,X,X,O,O,,,,"
    for page in pages:  # it is for one game
        page.goto(f"{site.origin}/")
    for page in pages:  # a page that is closed before its pair is complete reports that
        shows(page, "turn")
    pages[0].close()
    shows(pages[1], "The other player has left")


def test_race_survives_a_reload(open_recipe):
    pages = open_recipe("Race for two", 3)
    until(lambda: sorted("You: 0" in page.evaluate(TEXT) for page in pages) == [False, True, True])
    (waiting,) = [page for page in pages if "You: 0" not in page.evaluate(TEXT)]
    shows(waiting, "Two others play")
    one, another = [page for page in pages if page is not waiting]
    waiting.goto("about:blank")
    for page in (one, one, another):
        page.evaluate("document.querySelector('button').click()")
    shows(another, "You: 1, the other: 2")
    one.evaluate("location.reload()")
    shows(another, "Waiting")
    shows(one, "You: 2, the other: 1")
    shows(another, "You: 1, the other: 2")


def test_players_of_the_nearest_level_are_matched(server, site, open_recipe):
    low, high, player = open_recipe("Matchmaking")
    level = "[document.querySelector('input').value = {}, document.querySelectorAll('button')[{}].click()]"
    low.evaluate(level.format(1, 0))
    high.evaluate(level.format(50, 0))
    until(lambda: len(listed(server, site.origin, "matches")) == 2)
    player.evaluate(level.format(40, 1))
    shows(player, "Playing with level 50")
    shows(high, "Playing with level 40")
    assert "Playing" not in low.evaluate(TEXT)


def test_lobby_shows_tables_and_enters_them(open_recipe):
    pages = open_recipe("Lobby")
    fill = "document.querySelector('input').value = 'chess/1'; document.querySelector('button').click()"
    pages[0].evaluate(f"(() => {{ {fill} }})()")
    for page in pages[1:]:
        shows(page, "table chess/1 (1)")
    pages[1].evaluate("document.querySelector('li').click()")
    for page in pages:
        shows(page, "table chess/1 (2)")
    pages[1].evaluate(f"(() => {{ {fill.replace('chess/1', 'go')} }})()")  # leaves the first table
    for page in pages:
        shows(page, "table chess/1 (1)")
        shows(page, "table go (1)")
    pages[0].close()
    pages[1].close()
    until(lambda: pages[2].evaluate("document.querySelectorAll('li').length") == 0)


def test_private_chat_is_for_those_with_the_password(open_recipe):
    pages = open_recipe("Private chat")
    enter = "(() => { document.querySelector('input').value = '%s'; document.querySelector('button').click(); })()"
    for page, password in zip(pages, ("right", "wrong", "right"), strict=True):
        page.evaluate(enter % password)
    shows(pages[0], "Others with this password: 1")
    shows(pages[2], "Others with this password: 1")
    shows(pages[1], "Others with this password: 0")
    say = "document.querySelector('body > input')"
    pages[0].evaluate(f"(() => {{ {say}.value = 'psst'; {say}.dispatchEvent(new Event('change')); }})()")
    shows(pages[2], "psst")
    pages[1].evaluate(enter % "right")
    shows(pages[0], "Others with this password: 2")
    assert "psst" not in pages[1].evaluate(TEXT)


def test_devices_nearby_greet_each_other(open_recipe):
    pages = open_recipe("Devices nearby")
    items = "document.querySelectorAll('li')"
    reach(pages, f"{items}.length", 2)
    names = [page.evaluate("document.querySelector('p').textContent").removeprefix("This is ") for page in pages]
    pages[0].evaluate(f"[...{items}].find((each) => each.textContent === {names[2]!r}).click()")
    shows(pages[2], f"{names[0]}: Hello")
    shows(pages[1], f"This is {names[1]}")
    pages[0].close()
    until(lambda: pages[2].evaluate(f"{items}.length") == 1)
