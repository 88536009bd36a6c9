"""What each event in a session's life writes and deletes, applied to a plain dict."""

from dataclasses import replace

import pytest

from tornado_signal import changes, layout
from tornado_signal.session import Session, Side

ORIGIN = "https://one.example"
SESSION = Session(bytes(range(16)), "topic", "info", created_ms=10, expires_ms=20, timeout_ms=10, serial=3)
KEY = layout.pack_session_prefix(ORIGIN, SESSION.code)
LISTING = layout.pack_listing_key(ORIGIN, SESSION)


def applied(*events):
    """What a database holds after some changes: deletes first, then puts."""
    held = {}
    for change in events:
        for key in change.deletes:
            held.pop(key, None)
        held.update(change.puts)
    return held


CREATED = changes.created(ORIGIN, SESSION, "offer")


def test_created():
    """A new session has a head and an offer, is listed, will expire, and moves the mark."""
    assert applied(CREATED) == {
        KEY + layout.HEAD: layout.pack_head(SESSION),
        KEY + layout.OFFER: b"offer",
        LISTING: layout.pack_listing_value(SESSION),
        layout.pack_expiry_key(ORIGIN, SESSION): b"",
        layout.MARK_KEY: layout.pack_mark(10, 3),
    }


def test_answered():
    """An answer is added and the listing entry goes; nothing else is touched."""
    before = applied(CREATED)
    after = applied(CREATED, changes.answered(ORIGIN, SESSION, "ånswer"))
    del before[LISTING]
    assert after == before | {KEY + layout.ANSWER: "ånswer".encode()}


@pytest.mark.parametrize(
    ("side", "part"), [(Side.OFFERER, layout.OFFER_CANDIDATE), (Side.ANSWERER, layout.ANSWER_CANDIDATE)]
)
def test_candidates_are_appended(side, part):
    """Each candidate gets a key of its own; nothing that was there is written again."""
    change = changes.candidates_added(KEY, side, [(4, "a"), (5, "b")])
    assert change == ([(KEY + part + layout.pack_number(4), b"a"), (KEY + part + layout.pack_number(5), b"b")], [])


@pytest.mark.parametrize("expires_ms", [20, 25])
def test_refreshed(expires_ms):
    """A refreshed session expires once, at the new time, also if that is the old one, and keeps its place."""
    after = replace(SESSION, expires_ms=expires_ms)
    assert applied(CREATED, changes.refreshed(ORIGIN, SESSION, after)) == applied(
        changes.created(ORIGIN, after, "offer")
    )


def test_removed():
    """Nothing of a removed session is left but the mark, answered or not."""
    events = [CREATED, changes.candidates_added(KEY, Side.OFFERER, [(4, "a")])]
    for more in ([], [changes.answered(ORIGIN, SESSION, "answer")]):
        parts = [key for key in applied(*events, *more) if key.startswith(KEY)]
        left = applied(*events, *more, changes.removed(ORIGIN, SESSION, parts))
        assert left == dict([changes.mark(10, 3)])
