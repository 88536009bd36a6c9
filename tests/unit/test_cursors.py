"""Cursors: positions with a tag of the session or topic that they belong to."""

import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import InvalidParameter
from tornado_signal.service.cursors import format_cursor, parse_cursor, parse_session_cursor
from tornado_signal.session import Position, SessionPosition

STORE = SimpleNamespace(identity="0123456789ab", knows=lambda identity: identity in ("0123456789ab", "cdef01234567"))
OTHER = SimpleNamespace(identity="ba9876543210", knows=lambda identity: identity == "ba9876543210")
NUMBERS = st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
FORGED = ["", "zz", "-1", "+1", " 1", "1 ", "1_0", "0x1", "01", "F", "٣", "1" + "0" * 15, "f" * 40, "1\n"]


def tagged(scope, text):
    return f"{text}.{zlib.crc32(text.encode(), zlib.crc32(scope)):08x}"


def make_cursor(scope, numbers):
    return format_cursor(STORE, scope, SessionPosition(*numbers))


def parse(scope, cursor, store=STORE):
    return parse_session_cursor(store, scope, cursor, "since")


@given(st.binary(), NUMBERS)
def test_formatted_cursor_is_parsed_back_and_has_no_position_in_another_store(scope, numbers):
    assert parse(scope, make_cursor(scope, numbers)) == SessionPosition(*numbers)
    assert parse(scope, make_cursor(scope, numbers), OTHER) is None
    for identity in (STORE.identity, "cdef01234567"):
        position = Position(identity, *numbers)
        cursor = format_cursor(STORE, scope, position)
        assert [parse_cursor(store, scope, cursor, "since") for store in (STORE, OTHER)] == [position, None]


@given(st.binary(), st.binary(), NUMBERS)
def test_cursor_of_another_session_or_topic_is_refused(scope, other, numbers):
    if scope == other:
        other += b"x"
    with pytest.raises(InvalidParameter, match="since"):
        parse(other, make_cursor(scope, numbers))


@given(st.binary(), NUMBERS, st.text())
def test_damaged_cursor_is_refused(scope, numbers, text):
    valid = make_cursor(scope, numbers)
    for damaged in (text, valid + text, text + valid, valid[: len(text)], valid.upper(), valid.replace(".", "..")):
        if damaged != valid:
            with pytest.raises(InvalidParameter):
                parse(scope, damaged)


@pytest.mark.parametrize("number", FORGED)
def test_malformed_numbers_and_identities_with_a_valid_tag_are_refused(number):
    numbers = ([number], [number, "1"], ["1", number], ["1", "1", number], ["1"], ["1", "1", "1"])
    stores = ("", "0123456789a", "0123456789AB", "0123456789abc", "0123456789a\n")
    for parts in (*([STORE.identity, *each] for each in numbers), *([store, "1", "1"] for store in stores)):
        with pytest.raises(InvalidParameter):
            parse(b"about", tagged(b"about", ".".join(parts)))


def test_format_of_cursors_does_not_change():
    assert make_cursor(b"about", (255, 1)) == "0123456789ab.ff.1.68257645"
