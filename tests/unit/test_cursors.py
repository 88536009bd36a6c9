"""Cursors: sequence numbers that know what they are about."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import InvalidParameter
from tornado_signal.service.cursors import format_cursor, parse_cursor
from tornado_signal.stores.position_text import format_numbers, parse_numbers

STORE = "0123456789ab"
POSITIONS = SimpleNamespace(format_position=lambda text: text)  # a store whose positions are texts
NUMBERS = st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
FORGED = ["", "zz", "-1", "+1", " 1", "1 ", "1_0", "0x1", "01", "F", "٣", "1" + "0" * 15, "f" * 40, "1\n"]


def tagged(scope, text):
    return format_cursor(POSITIONS, scope, text)


def made(scope, numbers):
    return tagged(scope, format_numbers(STORE, *numbers))


def read(scope, cursor, store=STORE):
    return parse_cursor(lambda text: parse_numbers(store, text), scope, cursor, "since")


@given(st.binary(), NUMBERS)
def test_a_formatted_cursor_is_parsed(about, numbers):
    assert read(about, made(about, numbers)) == numbers


@given(st.binary(), st.binary(), NUMBERS)
def test_a_cursor_of_another_session_or_topic_is_refused(about, other, numbers):
    if about == other:
        other += b"x"
    with pytest.raises(InvalidParameter, match="since"):
        read(other, made(about, numbers))


@given(st.binary(), NUMBERS, st.text())
def test_a_damaged_cursor_is_refused(about, numbers, text):
    good = made(about, numbers)
    for damaged in (text, good + text, text + good, good[: len(text)], good.upper(), good.replace(".", "..")):
        if damaged != good:
            with pytest.raises(InvalidParameter):
                read(about, damaged)


@pytest.mark.parametrize("number", FORGED)
def test_malformed_numbers_with_the_right_tag_are_refused(number):
    for numbers in ([number], [number, "1"], ["1", number], ["1", "1", number], ["1"], ["1", "1", "1"]):
        with pytest.raises(InvalidParameter):
            read(b"about", tagged(b"about", ".".join([STORE, *numbers])))


@given(st.binary(), NUMBERS)
def test_a_cursor_of_another_store_means_nothing(about, numbers):
    assert read(about, made(about, numbers), "ba9876543210") is None


def test_a_cursor_names_its_store():
    for store in ("", "0123456789a", "0123456789AB", "0123456789abc", "0123456789a\n"):
        with pytest.raises(ValueError):
            parse_numbers(STORE, f"{store}.1.1")


def test_golden_bytes_do_not_change():
    assert tagged(b"about", "0123456789ab.0") == "0123456789ab.0.aa75bf3d"
    assert made(b"about", (255, 1)) == "0123456789ab.ff.1.68257645"
