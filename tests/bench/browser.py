"""From a click to an open data channel: two browsers on this machine, and the server's part of the time."""

import shutil

from playwright.sync_api import Page, sync_playwright

from ..support.browsers import FLAGS
from .figures import Bench, median

MOST_MS = 400
MOST_SERVER_MS = 20

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


def browser(bench: Bench) -> None:
    """Join a peer again and again."""
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


def _join(publisher: Page, joiner: Page, number: int) -> tuple[float, float]:
    """One connection: how long it took, and how much of that the server."""
    took_ms, listing_ms, sent_ms = joiner.evaluate(JOIN)
    answered_ms = publisher.evaluate("number => answered[number]", number)
    return took_ms, listing_ms + answered_ms - sent_ms
