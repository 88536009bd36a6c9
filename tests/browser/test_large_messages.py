"""Messages larger than a data channel takes: in parts, between Chromium and Firefox."""

import pytest
from support.browsers import until
from support.members import happened

from .test_messages import in_one_room

SIZE = 64 << 20
# The values that a page sends: values of many kinds, all in parts or after them.
MIXED = """[
  "before", "\\u{1f600}é".repeat(100_000), new Uint8Array(500_001).fill(7), "after", {x: ["x".repeat(400_000)]},
  new Blob(["y".repeat(300_000)]), new Uint8Array(0), "\\u001e\\u001e" + "z".repeat(300_000), "",
  "\\ufeff".repeat(100_000), "end",
]"""
WAIT_S = 500  # only ends a hang
RECEIVED = "seen.filter(([name]) => name === 'message').map(([, , data]) => data)"


def lengths(page):
    """The lengths of the received messages: of texts in characters, of bytes in bytes, of others as JSON."""
    return page.evaluate(f"{RECEIVED}.map((data) => data.byteLength ?? data.length ?? JSON.stringify(data).length)")


def arrive(sender, receiver, expected):
    """Send the values until they arrive. On a busy machine the connection can break, which both members see."""
    pages = (sender, receiver)

    def arrived():
        if any(happened(page, "leave") for page in pages):
            until(lambda: all(page.evaluate("here.peers.size === 1") for page in pages))
            for page in pages:
                page.evaluate("void (seen.length = 0)")
            sender.evaluate(send)
        return lengths(receiver) == expected

    send = f"{MIXED}.forEach((value) => here.send(value))"
    sender.evaluate(send)
    until(arrived, WAIT_S)


@pytest.mark.timeout(WAIT_S)
def test_large_messages_of_each_kind_arrive_in_order(server, alice, connect_firefox):
    firefox = connect_firefox(server)
    in_one_room(alice, firefox, files=False)
    expected = [6, 300_000, 500_001, 5, 400_010, 300_000, 0, 300_002, 0, 100_000, 3]
    for sender, receiver in ((alice, firefox), (firefox, alice)):
        arrive(sender, receiver, expected)
        same = f"""(async () => {{
          const comparable = (each) => each.arrayBuffer ? each.arrayBuffer().then(digest)
            : typeof each === "string" || !("byteLength" in each) ? each : digest(each.buffer ?? each);
          const all = async (values) => JSON.stringify(await Promise.all(values.map(comparable)));
          return await all({MIXED}) === await all({RECEIVED});
        }})()"""
        assert receiver.evaluate(same)
        sender.evaluate("here.send('last')")  # also after empty messages of Firefox
        until(lambda receiver=receiver: lengths(receiver)[-1] == 4)


LARGE = {
    "message": (f"here.send(new Uint8Array({SIZE}))", "[...here.peers.values()][0].channel.bufferedAmount"),
    "file": (f"here.sendFile(make({SIZE >> 1}), {{onprogress: (event) => loaded = event.loaded}})", "loaded"),
}


@pytest.mark.parametrize("large", LARGE)
def test_channels_that_are_opened_while_much_is_sent_lose_nothing(large, server, alice, connect_firefox):
    """Firefox loses a channel that is opened while the buffers of others are full, without an error."""
    send, sent = LARGE[large]
    firefox = connect_firefox(server)
    in_one_room(alice, firefox)
    for sender, receiver in ((firefox, alice), (alice, firefox)):
        receiver.evaluate("void (window.moves = [])")
        receiver.evaluate("here.channel('moves').addEventListener('message', ({data}) => moves.push(data))")
        sender.evaluate(f"void (window.loaded = 0, window.all = {send})")
        until(lambda sender=sender: sender.evaluate(sent) > 0)
        sender.evaluate("here.channel('moves').send(7)")
        assert sender.evaluate("outcome(here.sendFile(make(1000)))") == "sent"
        sender.evaluate("all")
        until(lambda receiver=receiver: receiver.evaluate("moves") == [7])


def test_unfinished_message_ends_with_its_sender(alice, bob):
    in_one_room(alice, bob, files=False)
    devtools = bob.context.new_cdp_session(bob)
    bob.evaluate("""
      () => {
        window.large = [];
        window.Uint8Array = class extends Uint8Array {
          constructor(...values) {
            super(...values);
            if (this.length > 1e6) large.push(new WeakRef(this));
          }
        };
      }
    """)

    def alive():
        devtools.send("HeapProfiler.collectGarbage")
        return bob.evaluate("large.filter((each) => each.deref()).length")

    alice.evaluate(f"""
      () => {{
        const [{{channel}}] = here.peers.values();
        channel.send('\\u001e\\u001e{{"size": {SIZE}, "text": false}}');
        for (let count = 0; count < 20; count += 1) channel.send(new Uint8Array(65_536));
      }}
    """)
    until(lambda: bob.evaluate("large.length") == 1)
    assert alive() == 1
    alice.evaluate("here.leave()")
    until(lambda: bob.evaluate("here.peers.size") == 0)
    until(lambda: alive() == 0)
