"""Objects of the browser module that a page no longer needs: the browser frees them while others continue."""

from support.browsers import reach, until

# Each kind is counted by weak references. `kept` shows that the count sees what is referenced. `lasting` is the signal
# of all calls, as in an application that has one signal for its life.
TRACK = """
  (() => {
    const all = {};
    window.track = (kind, ...objects) => (all[kind] ??= []).push(...objects.map((each) => new WeakRef(each)));
    window.alive = () => Object.entries(all).map(([kind, refs]) => [kind, refs.filter((each) => each.deref()).length]);
    window.lasting = new AbortController().signal;
    window.kept = {};
    track("kept", kept);
    window.watch = (topic) => {
      const room = client.room(topic, {signal: lasting});
      room.addEventListener("join", ({peer}) => track("peer", peer, peer.peerConnection, peer.channel));
      room.addEventListener("message", ({data}) => track("message", data));
      room.addEventListener("file", async ({file}) => {
        track("incoming", file);
        if (file.name === "refused") return file.cancel();
        file.addEventListener("progress", () => file.name === "cancelled" && file.cancel());
        await file.accept().then((whole) => track("received", whole), () => {});
      });
      return room;
    };
    window.api = new SignalClient(location.search.slice(1));
    window.follow = async (topic) => {
      window.received = 0;
      for await (const {data} of api.events(topic, {signal: lasting})) {
        track("event", data);
        received += 1;
      }
    };
  })()
"""
FILES = """
  (async () => {
    for (const name of ["whole", "whole", "whole", "refused", "cancelled"]) {
      const file = make(300_000, name);
      track("sent", file);
      await outcome(here.sendFile(file, {signal: lasting}));
      here.send(new Uint8Array(100_000));
    }
  })()
"""
ROOM = """
  (async () => {
    const room = watch("lobby");
    track("room", room);
    await new Promise((resolve) => room.addEventListener("join", () => room.peers.size === 2 && resolve()));
    await room.leave();
  })()
"""
PUBLICATION = """
  (async () => {
    const publication = client.publish("single", {info: "one", signal: lasting});
    const published = new Promise((resolve) => publication.addEventListener("connection", resolve));
    const joined = await client.join("single", {info: "other", signal: lasting});
    const {connection} = await published;
    publication.close();
    track("connection", joined, joined.peerConnection, joined.channel, connection, connection.peerConnection);
    await joined.close();
    await connection.closed;
  })()
"""
PAIR = """
  (async () => {
    const pairs = await Promise.all(["a", "b"].map((info) => client.pair("strangers", {info, signal: lasting})));
    for (const each of pairs) track("pair", each, each.peerConnection, each.channel);
    await pairs[0].close();
    await pairs[1].closed;
  })()
"""
FREED = {"message", "incoming", "received", "sent", "room", "connection", "pair"}


def left_over(page):
    """Collect the garbage of a page. Return the number of living objects of each kind."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("HeapProfiler.collectGarbage")
    devtools.detach()
    return {kind: number for kind, number in page.evaluate("alive()") if number}


def test_ended_objects_are_freed_while_the_page_continues(server, site, connect_page):
    alice, bob = pages = [connect_page(server) for _ in range(2)]
    for page in pages:
        page.evaluate(TRACK)
        page.evaluate("void follow('news')")
        page.evaluate("(() => { window.here = watch('lobby'); })()")
    reach(pages, "here.peers.size", 1)
    for number in range(3):
        fields = {"info": "i", "offer": str(number)}
        assert server.call("/news/offer", fields, origin=site.origin)[0] == 200
    alice.evaluate(FILES)
    for script in (ROOM, PUBLICATION, PAIR):
        for _ in range(2):
            bob.evaluate(script)
    reach(pages, "[received, here.peers.size]", [3, 1])
    kinds = {kind for page in pages for kind, _ in page.evaluate("alive()")}
    assert kinds == {"kept", "peer", "event", *FREED}
    # Three objects belong to the peer that is still in the room. The last event belongs to the loop. Publications are
    # not counted: a browser keeps one that was closed while it made its next offer.
    for page in pages:
        until(
            lambda page=page: left_over(page) == {"kept": 1, "peer": 3, "event": 1},
            complaint=lambda: [left_over(each) for each in pages],
        )
