"""The entries that each event of a session writes and deletes, applied to a plain dict."""

import pytest

from tornado_signal.session import Answer, Reason, Session, Side
from tornado_signal.stores.leveldb import changes, layout
from tornado_signal.stores.leveldb.changes import Change, Removal

ORIGIN = "https://one.example"
SESSION = Session(bytes(range(16)), "topic", "info", created_ms=10, expires_ms=20, timeout_ms=10, serial=3)
KEY = layout.pack_session_prefix(ORIGIN, SESSION.code)
LISTING = layout.pack_listing_key(ORIGIN, SESSION)
REMOVAL = Removal(7, Reason.ANSWERED, 99)
ANSWER = Answer("ånswer", 4, bytes(32))


def apply(*events):
    """Return the entries of a database after some changes. Deletes of a change precede its puts."""
    entries = {}
    for change in events:
        for key in change.deletes:
            entries.pop(key, None)
        entries.update(change.puts)
    return entries


def removal_entries(reason):
    key = layout.pack_removal_prefix(ORIGIN, "topic", layout.KIND[reason]) + layout.pack_number(7)
    return {key: layout.pack_removal_value(SESSION, reason), layout.pack_expiry_key(99, key): b""}


CREATED = changes.created(ORIGIN, SESSION, "offer")


def test_created_session_is_listed_and_has_an_expiry():
    assert apply(CREATED) == {
        KEY + layout.HEAD: layout.pack_head(SESSION),
        KEY + layout.OFFER: b"offer",
        LISTING: layout.pack_listing_value(SESSION),
        layout.pack_expiry_key(20, KEY): b"",
    }


def test_answer_removes_the_session_from_the_listing():
    before = apply(CREATED)
    after = apply(CREATED, changes.answered(ORIGIN, SESSION, ANSWER, REMOVAL))
    del before[LISTING]
    assert after == before | {KEY + layout.ANSWER: layout.pack_answer(ANSWER)} | removal_entries(Reason.ANSWERED)


@pytest.mark.parametrize(
    ("side", "part"), [(Side.OFFERER, layout.OFFER_CANDIDATE), (Side.ANSWERER, layout.ANSWER_CANDIDATE)]
)
def test_candidates_are_appended(side, part):
    change = changes.candidates_added(KEY, side, [(4, "a"), (5, "ö")])
    puts = [(KEY + part + layout.pack_number(4), b"a"), (KEY + part + layout.pack_number(5), "ö".encode())]
    assert change == (puts, [], 0)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize("expires_ms", [20, 25])
def test_refreshed_session_has_one_expiry_and_keeps_its_place(expires_ms, answered):
    def initial_changes(session):
        return [
            changes.created(ORIGIN, session, "offer"),
            *[changes.answered(ORIGIN, session, ANSWER, REMOVAL)] * answered,
        ]

    after = SESSION._replace(expires_ms=expires_ms)
    refreshed = changes.refreshed(ORIGIN, SESSION, after, listed=not answered)
    assert apply(*initial_changes(SESSION), refreshed) == apply(*initial_changes(after))
    told = changes.refreshed(ORIGIN, SESSION, after, listed=not answered, event=REMOVAL._replace(reason=None))
    assert apply(told) == apply(refreshed) | removal_entries(None)


@pytest.mark.parametrize("reason", [Reason.EXPIRED, Reason.WITHDRAWN])
def test_delisted_session_leaves_a_removal_with_its_reason(reason):
    before = apply(CREATED)
    del before[LISTING]
    assert apply(
        CREATED, changes.delisted(ORIGIN, SESSION, REMOVAL._replace(reason=reason))
    ) == before | removal_entries(reason)


@pytest.mark.parametrize(
    "removal", [changes.delisted(ORIGIN, SESSION, REMOVAL), changes.answered(ORIGIN, SESSION, ANSWER, REMOVAL)]
)
def test_removed_session_leaves_only_its_removal(removal):
    events = [CREATED, changes.candidates_added(KEY, Side.OFFERER, [(4, "a")]), removal]
    parts = [key for key in apply(*events) if key.startswith(KEY)]
    assert apply(*events, changes.removed(KEY, SESSION, parts)) == removal_entries(Reason.ANSWERED)


@pytest.mark.parametrize(
    ("change", "listed"),
    [
        (CREATED, 1),
        (changes.answered(ORIGIN, SESSION, ANSWER, REMOVAL), -1),
        (changes.delisted(ORIGIN, SESSION, REMOVAL), -1),
        (changes.refreshed(ORIGIN, SESSION, SESSION, listed=True), 0),
        (changes.refreshed(ORIGIN, SESSION, SESSION, listed=False), 0),
        (changes.removed(KEY, SESSION, []), 0),
        (changes.merge(CREATED, changes.delisted(ORIGIN, SESSION, REMOVAL), CREATED), 1),
    ],
)
def test_each_change_counts_listed_sessions(change, listed):
    assert change.listed == listed


def test_combined_changes_keep_their_order():
    changed = changes.merge(Change([(b"a", b"1")], [b"x"], 1), Change([], []), Change([(b"b", b"2")], [b"y"], -3))
    assert changed == Change([(b"a", b"1"), (b"b", b"2")], [b"x", b"y"], -2)
