"""A directory of the last release, which had format 1.

Each line of the file is a key and its value in hexadecimal.
"""

from pathlib import Path

import pytest
from support.stores import BEGIN_MS

from tornado_signal.errors import SessionNotFound
from tornado_signal.session import Side
from tornado_signal.stores.leveldb import directory, layout
from tornado_signal.stores.leveldb.binding import plyvel

LINES = Path(__file__).with_name("format-1.txt").read_text().splitlines()
ENTRIES = [(bytes.fromhex(key), bytes.fromhex(value)) for key, _, value in (line.partition(" ") for line in LINES)]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_store_of_format_1_is_rewritten_with_all_its_sessions(
    interrupted, opened, restarted, under, tmp_path, clock
):
    with plyvel.DB(str(tmp_path / "data"), create_if_missing=True) as db:
        for key, value in ENTRIES:
            db.put(key, value)
        if interrupted:
            directory._upgrade(db)
            db.put(layout.FORMAT_KEY, layout.pack_number(1))
    clock.ms = BEGIN_MS
    store, one = await opened(session_timeout_ms=300_000)
    assert clock.ms == BEGIN_MS + 20  # the time of the last change
    assert {key[:1] for key in store.database.snapshot.iterator(include_value=False)} == {b"F", b"I", b"L", b"M", b"S"}
    assert await one.topics() == ([("topic", 1), ("tö\0", 1)], 2)
    assert [(each.offer, each.session.info) for each in await one.sessions("tö\0")] == [("listed", "other")]
    (held,) = await one.codes()
    assert await one.renew(held, b"of the past.") == clock.ms + 300_000
    with pytest.raises(SessionNotFound):
        await one.renew(held, b"another one.")
    answered = bytes.fromhex("efbdd7e86f844b9d9663f95bb3f39ab7")
    for side, news in [
        (Side.OFFERER, ("answered", 1, [(2, "a"), (3, "b")])),
        (Side.ANSWERER, ("answer", 1, [(2, "c")])),
    ]:
        secret_hash = bytes(32) if side is Side.ANSWERER else b"a" * 32  # of the reader
        assert (await one.read(answered, side, secret_hash=secret_hash))[:3] == news
    (elsewhere,) = await under(store, "null").sessions()
    assert (elsewhere.session.created_ms, elsewhere.session.expires_ms) == (BEGIN_MS + 20, BEGIN_MS + 400_020)
    store, _ = await restarted(store)
    assert (await store.counts())[0] == 3
