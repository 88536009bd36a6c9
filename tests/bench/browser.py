"""From a click to an open data channel: two browsers on this machine, and the server's part of the time; and rooms."""

import shutil

from playwright.sync_api import Page, sync_playwright

from .figures import Bench, median
from .processes import Server

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
FLAGS += ["--allow-loopback-in-peer-connection", "--disable-features=WebRtcHideLocalIpsWithMdns"]
MOST_MS = 400
MOST_SERVER_MS = 20
MOST_TWO_MS = 400
MOST_TEN_MS = 3000

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
# How long it took, how long until the listing was there, and when the answer was sent (since the epoch); all in ms.
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
# A page that enters the room of its address as soon as it is opened: when that was, and when all others were there.
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


def browser(bench: Bench) -> None:
    """Join a peer again and again; open the pages of rooms at once."""
    if bench.given:
        return
    with bench.server("fsync") as server, sync_playwright() as playwright:
        launch = {"executable_path": shutil.which("chromium"), "headless": True, "args": FLAGS}
        browsers = [playwright.chromium.launch(**launch) for _ in range(2)]
        publisher, joiner = (each.new_context(permissions=["microphone"]).new_page() for each in browsers)
        for page in (publisher, joiner):
            page.goto(f"{server.base}/demo")
        publisher.evaluate(PUBLISH)
        found = [_join(publisher, joiner, number) for number in range(max(3, bench.size.flows // 40))]
        pages = [browsers[number % 2].new_context(permissions=["microphone"]).new_page() for number in range(10)]
        for page in pages:
            page.add_init_script(ROOM)
        two_ms = [_meet(server, pages[:2], f"two-{round_}") for round_ in range(max(3, bench.size.flows // 8))]
        ten_ms = [_meet(server, pages, f"ten-{round_}") for round_ in range(max(2, bench.size.flows // 40))]
        for each in browsers:
            each.close()
    took_ms, server_ms = (median([each[place] for each in found]) for place in (0, 1))
    assert took_ms is not None
    assert server_ms is not None
    note = f"median of {len(found)}, Chromium to Chromium"
    bench.add("browser", "click to open data channel", took_ms, "ms", target=f"< {MOST_MS} ms",
              reached=took_ms < MOST_MS, note=note)  # fmt: skip
    bench.add("browser", "the server's part of it", server_ms, "ms", target=f"< {MOST_SERVER_MS} ms",
              reached=server_ms < MOST_SERVER_MS,
              note="until the listing is there, and from the answer until the other browser has it")  # fmt: skip
    for number, found_ms, most_ms in ((2, two_ms, MOST_TWO_MS), (10, ten_ms, MOST_TEN_MS)):
        room_ms = median(found_ms)
        assert room_ms is not None
        note = f"median of {len(found_ms)}, at most {max(found_ms):.0f} ms, from the first page to the last connection"
        bench.add("browser", f"a room of {number} pages opened at once", room_ms, "ms", target=f"< {most_ms} ms",
                  reached=room_ms < most_ms, note=note)  # fmt: skip


def _join(publisher: Page, joiner: Page, number: int) -> tuple[float, float]:
    """One connection: how long it took, and how much of that the server."""
    took_ms, listing_ms, sent_ms = joiner.evaluate(JOIN)
    answered_ms = publisher.evaluate("number => answered[number]", number)
    return took_ms, listing_ms + answered_ms - sent_ms


def _meet(server: Server, pages: list[Page], topic: str) -> float:
    """Open pages at once, which enter a room; how long until all are connected to all."""
    for page in pages:
        page.goto(f"{server.base}/demo?room={topic}&number={len(pages)}", wait_until="commit")
    opened_ms, connected_ms = zip(*(page.evaluate("entered") for page in pages), strict=True)
    return max(connected_ms) - min(opened_ms)
