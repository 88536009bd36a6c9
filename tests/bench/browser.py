"""From a click to an open data channel: two browsers on this machine, and the server's part of the time."""

from .figures import Bench, median
from .rooms import chromiums

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
    if bench.given:
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
    bench.add("browser", "click to open data channel", median(took_ms), "ms", most=MOST_MS, note=note)
    note = "until the listing is there, and from the answer until the other browser has it"
    bench.add("browser", "the server's part of it", median(server_ms), "ms", most=MOST_SERVER_MS, note=note)
