"""Messages and files of the browser module: JSON values, size limits, transfers and their failures."""

import json

from support.browsers import until
from support.members import enter_together, messages

VALUES = [
    {"x": 1, "name": "Ada", "nested": [1, None, {"y": 0.5}]},
    ["a", 1],
    3,
    False,
    None,
    "text",
    '{"x": 1}',
    "",
    "\x1etext that begins like JSON",
    '\x1e{"x": 1}',
    "\x1e",
]


def in_one_room(*pages, files=True):
    """Make pages members of one room whose `info` is their place, and wait until all are connected."""
    enter_together({str(place): page for place, page in enumerate(pages)})
    for page in pages if files else ():
        page.evaluate("receive(here)")


def connected(one, other):
    """Make two pages a pair, in that order: the first one is the initiator."""
    for page, info in ((one, "alice"), (other, "bob")):
        page.evaluate(
            f"void (window.paired = pair('files', {{info: '{info}'}}).then((connection) => {{"
            " window.heard = [];"
            " connection.addEventListener('message', ({data}) => heard.push(data));"
            " receive(connection);"
            " window.connection = connection; }))"
        )
        if page is one:
            until(lambda: one.evaluate("(async () => (await new SignalClient().topics()).topics.length)()") == 1)
    for page in (one, other):
        page.evaluate("paired")


def test_firefox_and_chromium_exchange_values_and_files(server, alice, connect_firefox):
    firefox = connect_firefox(server)
    in_one_room(alice, firefox)
    for sender, receiver in ((alice, firefox), (firefox, alice)):
        sender.evaluate(f"{json.dumps(VALUES)}.forEach((value) => here.send(value))")
        until(lambda receiver=receiver: messages(receiver) == VALUES)
        assert sender.evaluate("outcome(here.sendFile(make(3_000_001)))") == "sent"
        digest = sender.evaluate("make(3_000_001).arrayBuffer().then(digest)")
        until(lambda receiver=receiver: receiver.evaluate("files.length"))
        assert receiver.evaluate("files") == [["a.bin", "video/x-test", 3_000_001, digest]]


def test_pair_exchanges_values_files_and_infos(alice, bob):
    connected(alice, bob)
    facts = "[connection.info, connection.initiator]"
    assert [page.evaluate(facts) for page in (alice, bob)] == [["bob", True], ["alice", False]]
    for sender, receiver in ((alice, bob), (bob, alice)):
        for value in VALUES:
            sender.evaluate("(value) => connection.send(value)", value)
        until(lambda receiver=receiver: receiver.evaluate("heard") == VALUES)
        assert sender.evaluate("outcome(connection.sendFile(make(200_000)))") == "sent"
        until(lambda receiver=receiver: [file[2] for file in receiver.evaluate("files")] == [200_000])
        sender.evaluate("void connection.send('x'.repeat(1_000_000)), connection.send('end'), 0")
        until(
            lambda receiver=receiver: receiver.evaluate("heard.slice(-2).map(({length}) => length)") == [1_000_000, 3]
        )
    alice.evaluate("void connection.send(new Uint8Array(5_000_000)), connection.close()")
    bob.evaluate("connection.closed")
    assert bob.evaluate("heard.at(-1).byteLength") == 5_000_000
    assert bob.evaluate("outcome(connection.send('x'))") == "connection-lost"
    assert bob.evaluate("outcome(connection.sendFile(make(1)))") == "file-interrupted"


def test_files_of_any_size_and_many_at_once_arrive(alice, bob):
    in_one_room(alice, bob)
    for size in (0, 1, 65_536, 1_048_577):
        bob.evaluate("files.length = progress.length = 0")
        shares = alice.evaluate(
            f"(async () => {{ const shares = []; const file = make({size});"
            " const onprogress = ({peer, loaded, total}) => shares.push([peer.info, loaded, total]);"
            " await here.sendFile(file, {onprogress}); return shares; })()"
        )
        until(lambda size=size: [file[2] for file in bob.evaluate("files")] == [size])
        assert shares == sorted(shares)
        assert [share[2] for share in shares] == [size] * len(shares)
        assert [share[1] for share in shares][-1:] == [size] * bool(size)
        assert bob.evaluate("progress").count(size) == bool(size)
    assert alice.evaluate("outcome(here.sendFile(new Blob(['abc'], {type: 'text/plain'})))") == "sent"
    until(lambda: bob.evaluate("files")[1:] and bob.evaluate("files")[1][:3] == ["", "text/plain", 3])
    send = "Promise.all(Array.from({length: 20}, async (_, place) => here.sendFile(make(200_000 + place))))"
    for page in (alice, bob):
        page.evaluate("files.length = 0")
        page.evaluate(f"void (window.all = outcome({send}))")
    for page in (alice, bob):
        assert page.evaluate("all") == "sent"
    for page in (alice, bob):
        until(lambda page=page: len(page.evaluate("files")) == 20)
        assert sorted(file[2] for file in page.evaluate("files")) == [200_000 + place for place in range(20)]
