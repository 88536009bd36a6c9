"""JSON of servers and peers: a program can print, store and send what it gets."""

import json
from pathlib import Path

import pytest

from tornado_signal_client.parsing import MAX_DEPTH, MAX_VALUES, parse_json, parse_object

VECTORS = json.loads((Path(__file__).parents[1] / "room-vectors.json").read_text())
NO_JSON = [
    *VECTORS["no json"],
    "1e400",
    "[" + "1," * MAX_VALUES + "1]",
    b'"\xed\xa0\xbd"',
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "[" * 10**5,
]


@pytest.mark.parametrize(("text", "value"), VECTORS["json"])
def test_half_of_a_surrogate_pair_is_replaced(text, value):
    assert parse_json(text) == parse_json(text.encode()) == value


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:10])
def test_value_that_could_not_be_sent_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_nested_value_can_be_encoded():
    assert json.dumps(parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)).count("[") == MAX_DEPTH


@pytest.mark.parametrize("text", ["[1]", "1", "no JSON"])
def test_text_that_is_no_object_has_no_fields(text):
    assert parse_object(text) == {}
