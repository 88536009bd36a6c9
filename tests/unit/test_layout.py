"""The bytes on disk: fixed, ordered, reversible, and with separate key ranges. Their size is that of the files."""

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tornado_signal.errors import DatabaseError
from tornado_signal.session import Answer, Session, Side
from tornado_signal.stores.leveldb import files, layout

# Mostly awkward characters: the terminator, its escape, and both ends of every range.
awkward = st.sampled_from("\x00\x01ab/\x7f\x80\xff\u0100\ud7ff\ue000\uffff\U00010000\U0010ffff")
topics = st.text(st.one_of(awkward, st.characters(exclude_categories=["Cs"])), max_size=8)
origins = st.text(st.characters(max_codepoint=255), max_size=8)
components = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=6).map(bytes)
codes = st.binary(min_size=16, max_size=16) | st.sampled_from([bytes(16), b"\xff" * 16])
numbers = st.sampled_from([0, 1, 255, 256, 2**32, 2**53, 2**64 - 2]) | st.integers(0, 2**64 - 2)
hashes = st.just(b"") | st.binary(min_size=32, max_size=32)
sessions = st.builds(Session, codes, topics, topics, numbers, numbers, numbers, numbers, hashes)

SESSION = Session(bytes(range(16)), "tö\x00", "me", created_ms=1, expires_ms=258, timeout_ms=257, serial=3)
HASH = bytes(range(100, 132))
OWNED = SESSION._replace(secret_hash=HASH)
HEAD = bytes.fromhex("0000000000000001 0000000000000102 0000000000000101 0000000000000003 0004")
PACKED = b"https://o\x00\x00"
TOPIC = b"t\xc3\xb6\x00\xff\x00\x00"  # the packed topic of SESSION


@pytest.mark.parametrize(
    ("packed", "golden"),
    [
        (layout.FORMAT_KEY, b"F"),
        (layout.IDENTITY_KEY, b"I"),
        (layout.pack_number(layout.FORMAT), bytes(7) + b"\x02"),
        (layout.COUNTERS_KEY, b"M"),
        (layout.pack_counters(1, 259), bytes(7) + b"\x01" + bytes(6) + b"\x01\x03"),
        (layout.pack_session_prefix("https://o", SESSION.code), b"S" + PACKED + SESSION.code),
        (layout.pack_head(SESSION), HEAD + b"\x00" + b"t\xc3\xb6\x00" + b"me"),
        (layout.pack_head(OWNED), HEAD + b"\x20" + b"t\xc3\xb6\x00" + HASH + b"me"),
        (layout.pack_answer(Answer("ja\x00", 258)), bytes(6) + b"\x01\x02" + b"\x00" + b"ja\x00"),
        (layout.pack_answer(Answer("ja", 1, HASH)), bytes(7) + b"\x01" + b"\x20" + HASH + b"ja"),
        ([layout.HEAD, layout.OFFER, layout.OFFER_CANDIDATE, layout.ANSWER], [b"\0", b"\1", b"\2", b"\3"]),
        ([layout.ANSWER_CANDIDATE, layout.LEASES], [b"\4", b"\5"]),
        ([layout.BEFORE_ALL, layout.AFTER_ALL], [b"\0", b"\xff"]),
        (layout.pack_listing_prefix("https://o", "tö\x00"), b"L" + PACKED + TOPIC),
        (
            layout.pack_listing_key("https://o", "tö\x00", 1, 3),
            b"L" + PACKED + TOPIC + b"\xff" * 7 + b"\xfe" + b"\xff" * 7 + b"\xfc",
        ),
        (layout.pack_origin("\xff\x00"), b"\xff\x00\xff\x00\x00"),
    ],
)
def test_format_on_disk_does_not_change(packed, golden):
    assert packed == golden


@given(components, components, st.binary(max_size=3))
@example(b"", b"\x00", b"")
@example(b"a", b"a\x00", b"\xff")
def test_packed_components_keep_their_order_and_unpack(first, second, rest):
    packed, packed_second = layout.pack_string(first), layout.pack_string(second)
    assert (packed < packed_second) == (first < second)
    assert packed_second.startswith(packed) == (first == second)
    assert layout.unpack_string(b"x" + packed + rest, 1) == (first, 1 + len(packed))


@given(st.tuples(origins, topics, numbers, numbers), st.tuples(origins, topics, numbers, numbers))
@example(("o", "", 0, 1), ("o", "\x00", 0, 1))
@example(("o", "a", 2**64 - 2, 1), ("o", "a\x00", 0, 0))
def test_listing_keys_sort_by_origin_topic_and_newest_first(first, second):
    def key(origin, topic, created_ms, serial):
        return layout.pack_listing_key(origin, topic, created_ms, serial)

    def order(origin, topic, created_ms, serial):
        return origin.encode("latin-1"), topic.encode(), -created_ms, -serial

    assert (key(*first) < key(*second)) == (order(*first) < order(*second))
    assert layout.unpack_listing_key(key(*first)) == first
    prefix = layout.pack_listing_prefix(*second[:2])
    assert key(*first).startswith(prefix) == (first[:2] == second[:2])


@given(origins, codes, origins, codes, st.sampled_from(list(Side)), numbers)
def test_key_ranges_of_sessions_do_not_overlap(origin, code, other_origin, other_code, side, serial):
    prefix = layout.pack_session_prefix(origin, code)
    key = layout.pack_session_prefix(other_origin, other_code) + layout.CANDIDATE[side] + layout.pack_number(serial)
    same = (origin, code) == (other_origin, other_code)
    assert key.startswith(prefix) == same
    for other_side in Side:
        within = prefix + layout.DESCRIPTION[other_side] <= key < prefix + layout.AFTER_SIDE[other_side]
        assert within == (same and other_side is side)
    part = layout.CANDIDATE[side] + layout.pack_number(serial)
    assert layout.unpack_session_key(key) == (other_origin, other_code, part)


@given(sessions)
@example(Session(bytes(16), "\U0010ffff" * 256, "\U0010ffff" * 1024, 1, 2, 3, 4, HASH))  # the greatest length
def test_session_values_unpack(session):
    assert layout.unpack_head(session.code, layout.pack_head(session)) == session
    access = (session.created_ms, session.expires_ms, session.serial, session.secret_hash)
    assert layout.unpack_head_access(layout.pack_head(session)) == access


@given(st.tuples(numbers, numbers), st.builds(Answer, topics, numbers, hashes))
def test_counters_and_answers_unpack(counters, answer):
    for further in (b"", bytes(8)):  # the number of an earlier version
        assert layout.unpack_counters(layout.pack_counters(*counters) + further) == counters
    assert layout.unpack_counters(None) == (0, 0)
    assert layout.unpack_answer(layout.pack_answer(answer)) == answer


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "not tornado-signal's"),
        (
            layout.pack_number(layout.FORMAT + 1),
            f"format {layout.FORMAT + 1}, this version reads format {layout.FORMAT}",
        ),
        (layout.pack_number(0), "format 0"),
        (b"", "format 0"),
        (b"something longer than eight bytes", "this version reads"),
    ],
)
def test_only_this_format_and_the_one_before_are_read(value, message):
    with pytest.raises(DatabaseError, match=message) as refused:
        layout.check_format(value, "/some/where")
    assert "/some/where" in str(refused.value)
    assert "choose another --data-dir" in str(refused.value)
    for version in (1, 2):
        assert layout.check_format(layout.pack_number(version), "/some/where") == version


def test_size_is_the_sum_of_all_files_while_some_are_deleted(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b").write_bytes(bytes(11))
    stop = threading.Event()

    def create_and_delete():
        while not stop.is_set():
            (tmp_path / "c").touch()
            (tmp_path / "c").unlink()

    thread = threading.Thread(target=create_and_delete)
    thread.start()
    try:
        assert {files.size_bytes(tmp_path) for _ in range(500)} == {111}
    finally:
        stop.set()
        thread.join()
