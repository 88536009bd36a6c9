"""Cursors: sequence numbers that know what they are about."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import InvalidParameter
from tornado_signal.stores.cursors import _tag, format_cursor, parse_cursor

STORE = "0123456789ab"
NUMBERS = st.lists(st.integers(0, 2**60 - 1), min_size=1, max_size=3)
FORGED = ["", "zz", "-1", "+1", " 1", "1 ", "1_0", "0x1", "01", "F", "٣", "1" + "0" * 15, "f" * 40, "1\n"]


@given(st.binary(), NUMBERS)
def test_round_trip(about, numbers):
    """What was formatted is what is parsed."""
    assert list(parse_cursor(STORE, about, format_cursor(STORE, about, *numbers), "since", len(numbers))) == numbers


@given(st.binary(), st.binary(), NUMBERS)
def test_of_something_else(about, other, numbers):
    """A cursor of another session or topic is refused."""
    if about == other:
        other += b"x"
    with pytest.raises(InvalidParameter, match="since"):
        parse_cursor(STORE, other, format_cursor(STORE, about, *numbers), "since", len(numbers))


@given(st.binary(), NUMBERS, st.integers(1, 3), st.text())
def test_damaged(about, numbers, count, text):
    """A cursor that is not as it was made is refused, whatever has become of it."""
    good = format_cursor(STORE, about, *numbers)
    for damaged in (text, good + text, text + good, good[: len(text)], good.upper(), good.replace(".", "..")):
        if damaged != good:
            with pytest.raises(InvalidParameter):
                parse_cursor(STORE, about, damaged, "since", count)


@pytest.mark.parametrize("number", FORGED)
def test_forged(number):
    """The tag is no secret: what only looks like a number is refused with the right tag, too."""
    for numbers in ([number], [number, "1"], ["1", number]):
        text = ".".join([STORE, *numbers])
        with pytest.raises(InvalidParameter):
            parse_cursor(STORE, b"about", f"{text}.{_tag(b'about', text)}", "since", len(numbers))


@given(st.binary(), NUMBERS)
def test_of_another_store(about, numbers):
    """What another store has counted means nothing here; it is no mistake of the client's."""
    assert parse_cursor("ba9876543210", about, format_cursor(STORE, about, *numbers), "since", len(numbers)) is None


@pytest.mark.parametrize("store", ["", "0123456789a", "0123456789AB", "0123456789abc", "0123456789a\n"])
def test_of_no_store(store):
    """A cursor says which store has counted."""
    text = f"{store}.1"
    with pytest.raises(InvalidParameter):
        parse_cursor(STORE, b"about", f"{text}.{_tag(b'about', text)}", "since", 1)


def test_golden():
    """Clients keep cursors over a restart, so their form does not change by accident."""
    assert format_cursor(STORE, b"about", 0) == "0123456789ab.0.aa75bf3d"
    assert format_cursor(STORE, b"about", 255, 1) == "0123456789ab.ff.1.68257645"
