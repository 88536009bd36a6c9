"""Cursors: positions with a tag of the session or topic that they belong to."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import InvalidParameter
from tornado_signal.service.cursors import format_cursor, parse_cursor
from tornado_signal.stores.position_text import format_numbers, parse_numbers

STORE = "0123456789ab"
POSITIONS = SimpleNamespace(format_position=lambda text: text)  # a store whose positions are strings
NUMBERS = st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
FORGED = ["", "zz", "-1", "+1", " 1", "1 ", "1_0", "0x1", "01", "F", "٣", "1" + "0" * 15, "f" * 40, "1\n"]


def format_tagged(scope, text):
    return format_cursor(POSITIONS, scope, text)


def make_cursor(scope, numbers):
    return format_tagged(scope, format_numbers(STORE, *numbers))


def parse(scope, cursor, store=STORE):
    return parse_cursor(lambda text: parse_numbers(store, text), scope, cursor, "since")


@given(st.binary(), NUMBERS)
def test_formatted_cursor_is_parsed_back(scope, numbers):
    assert parse(scope, make_cursor(scope, numbers)) == numbers


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
def test_malformed_numbers_with_a_valid_tag_are_refused(number):
    for numbers in ([number], [number, "1"], ["1", number], ["1", "1", number], ["1"], ["1", "1", "1"]):
        with pytest.raises(InvalidParameter):
            parse(b"about", format_tagged(b"about", ".".join([STORE, *numbers])))


@given(st.binary(), NUMBERS)
def test_cursor_of_another_store_has_no_position(scope, numbers):
    assert parse(scope, make_cursor(scope, numbers), "ba9876543210") is None


def test_cursor_with_a_malformed_store_identity_is_refused():
    for store in ("", "0123456789a", "0123456789AB", "0123456789abc", "0123456789a\n"):
        with pytest.raises(ValueError):
            parse_numbers(STORE, f"{store}.1.1")


def test_format_of_cursors_does_not_change():
    assert format_tagged(b"about", "0123456789ab.0") == "0123456789ab.0.aa75bf3d"
    assert make_cursor(b"about", (255, 1)) == "0123456789ab.ff.1.68257645"
