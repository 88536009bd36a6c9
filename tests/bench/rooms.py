"""The time until two pages, or all pages of a room, are connected, in several Chromium processes on this machine."""

import os
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from ..support.browsers import FLAGS, Windowed, launch_in, open_connect, until
from ..support.command import Server
from ..support.needs import require
from ..support.networks import Lan, own_network
from .figures import Bench, median
from .processes import Target

MOST_CLICK_MS = 400
MOST_SERVER_MS = 20
MOST_TWO_MS = 400
MOST_TEN_MS = 3000
MOST_BESIDE_MS = 2000
MOST_BACK_MS = 3000
# A page that enters the room of its address when it is opened. It records when that was and when all others had joined.
ROOM = """
  const [topic, number] = new URLSearchParams(location.search).values();
  window.entered = new Promise(async (resolve) => {
    const {room} = await import("/client.js");
    const here = room(topic);
    here.addEventListener("join", () => {
      const {timeOrigin} = performance;
      if (here.peers.size === Number(number) - 1) resolve([timeOrigin, timeOrigin + performance.now()]);
    });
  });
"""
PUBLISH = """
  async () => {
    const {publish} = await import("/client.js");
    window.answered = [];  // when, since the epoch
    const onstep = (name) => name === "answered" && answered.push(performance.timeOrigin + performance.now());
    return new Promise((resolve) => {
      publish("bench", {onstep: (name) => { onstep(name); if (name === "published") resolve(); }});
    });
  }
"""
# In ms: the duration, the time until the listing arrived, and when the answer was sent (since the epoch).
JOIN = """
  async () => {
    const {join} = await import("/client.js");
    const at = {};
    const began = performance.now();
    const connection = await join("bench", {onstep: (name) => (at[name] = performance.now())});
    const took = performance.now() - began;
    await connection.close();
    return [took, at.peers - began, performance.timeOrigin + at.answer];
  }
"""


@contextmanager
def chromiums(pages: int) -> Iterator[tuple]:
    """Chromium with pages in two alternating processes."""
    require("playwright", "chromium")
    from playwright.sync_api import sync_playwright  # an optional dependency

    launch = {"executable_path": shutil.which("chromium"), "headless": True, "args": FLAGS}
    with sync_playwright() as playwright, ExitStack() as stack:
        browsers = [stack.enter_context(closing(playwright.chromium.launch(**launch))) for _ in range(2)]
        contexts = [browsers[number % 2].new_context(permissions=["microphone"]) for number in range(pages)]
        yield playwright.chromium, [context.new_page() for context in contexts]


def browser(bench: Bench) -> None:
    if bench.external:
        return
    took_ms, server_ms = [], []
    with bench.server("fsync") as server, chromiums(2) as (_, (publisher, joiner)):
        for page in (publisher, joiner):
            page.goto(f"{server.base}/demo")
        publisher.evaluate(PUBLISH)
        for number in range(max(3, bench.size.flows // 40)):
            whole_ms, listing_ms, sent_ms = joiner.evaluate(JOIN)
            answered_ms = publisher.evaluate("number => answered[number]", number)
            took_ms.append(whole_ms)
            server_ms.append(listing_ms + answered_ms - sent_ms)
    note = f"median of {len(took_ms)}, Chromium to Chromium"
    bench.add("browser", "click to open data channel", median(took_ms), "ms", most=MOST_CLICK_MS, note=note)
    note = "until the listing is there, and from the answer until the other browser has it"
    bench.add("browser", "the server's part of it", median(server_ms), "ms", most=MOST_SERVER_MS, note=note)


def rooms(bench: Bench) -> None:
    if bench.external:
        return
    count, away_s = bench.size.rooms, bench.size.away_s

    def add(name: str, found_ms: Sequence[float], most_ms: float, note: str) -> None:
        note = f"median of {len(found_ms)}, at most {max(found_ms):.0f} ms; {note}"
        bench.add("rooms", name, statistics.median(found_ms), "ms", most=most_ms, note=note)

    with bench.server("fsync") as server, chromiums(10) as (kind, pages):
        for page in pages:
            page.add_init_script(ROOM)
        for number, rounds, most_ms in ((2, 5 * count, MOST_TWO_MS), (10, count, MOST_TEN_MS)):
            found_ms = [_meet(server, pages[:number], f"{number}-{round_}") for round_ in range(rounds)]
            note = "from the first page to the last connection"
            add(f"{number} pages opened at once, all connected", found_ms, most_ms, note)
        found_ms = [_beside(kind, server, pages[:2], bench.directory()) for _ in range(max(1, count // 4))]
        note = "to the one that lives, from the opening of the page"
        add("connected beside a peer that was killed", found_ms, MOST_BESIDE_MS, note)
        if os.geteuid() != 0:
            return  # network namespaces are not permitted here
        found_ms = [_away(kind, bench.directory(), away_s) for _ in range(max(1, count // 4))]
        note = "until messages that were sent meanwhile are there, both ways"
        add(f"the network of a page was away for {away_s:g} s", found_ms, MOST_BACK_MS, note)


def _meet(server: Target, pages: Sequence, topic: str) -> float:
    for page in pages:
        page.goto(f"{server.base}/demo?room={topic}&number={len(pages)}", wait_until="commit")
    opened_ms, connected_ms = zip(*(page.evaluate("entered") for page in pages), strict=True)
    return max(connected_ms) - min(opened_ms)


def _beside(kind: object, server: Target, pages: Sequence, directory: Path) -> float:
    """Kill the browser of one of two pages in a room. Return the time until a new page is connected."""
    directory.mkdir()
    topic = directory.name
    windowed = Windowed(kind, directory / "profile")
    try:
        killed, lives = windowed.context.pages[0], pages[0]
        for page in (killed, lives):
            page.goto(f"{server.base}/demo?room={topic}&number=2")
        killed.evaluate(f"(() => {{ {ROOM} }})()")
        killed.evaluate("entered")
        lives.evaluate("entered")
    finally:
        windowed.kill()
    pages[1].goto(f"{server.base}/demo?room={topic}&number=2", wait_until="commit")
    opened_ms, connected_ms = pages[1].evaluate("entered")
    return connected_ms - opened_ms


def _away(kind: object, directory: Path, away_s: float) -> float:
    """Disconnect one of two pages for a while. Return the time from its return until all messages have arrived."""
    directory.mkdir()
    with own_network(), ExitStack() as stack:
        lan = stack.enter_context(closing(Lan()))
        server = Server("--address", lan.address, "--data-dir", directory / "data")
        stack.callback(server.end)
        machines = [lan.machine() for _ in range(2)]
        pages = []
        for number, machine in enumerate(machines):
            browser = launch_in(kind, machine.enter, directory / f"chromium{number}")
            pages.append(open_connect(stack.enter_context(closing(browser)), server, "http://app.example"))
        for page in pages:
            page.evaluate("enter('lobby')")
        for page in pages:
            until(lambda page=page: page.evaluate("here.peers.size") == 1)
        machines[0].unplug()
        time.sleep(away_s / 2)
        for page in pages:
            page.evaluate("here.send('sent meanwhile')")
        time.sleep(away_s / 2)
        machines[0].plug()
        back_ms = time.time() * 1000
        heard = "seen.filter(([name]) => name === 'message').map(([, , , at]) => at)"
        return max(until(lambda page=page: page.evaluate(heard))[0] for page in pages) - back_ms
