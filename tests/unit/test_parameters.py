"""Parameters of operations: valid values in JSON bodies, paths and queries. Invalid ones are those of test_refusals."""

import urllib.parse
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.http.fields import query_fields, topic_of
from tornado_signal.service import parameters, schemas
from tornado_signal.settings.settings import Settings

encodable = st.text(st.characters(exclude_categories=["Cs"]))
ASTRAL = "\U0001f600"
CALL = SimpleNamespace(service=SimpleNamespace(settings=Settings(session_timeout_ms=300_000)))
PAGE = parameters.number("page", 7, schemas.positive())
WAIT = parameters.WAIT


def check(parameter, fields):
    return parameter.check(fields, CALL)


def from_query(parameter, *texts):
    query = {parameter.name: [text.encode() for text in texts]} if texts else {}
    return query_fields(query, [parameter])


@given(encodable.filter(lambda text: 0 < len(text) <= 256))
def test_every_topic_can_be_written_in_a_path(topic):
    data = topic.encode()
    assert topic_of(urllib.parse.quote(topic, safe="")) == topic
    assert topic_of("".join(f"%{byte:02x}" for byte in data)) == topic
    assert topic_of(data.replace(b"%", b"%25").decode("latin-1")) == topic


@pytest.mark.parametrize(
    ("segment", "topic"),
    [("a+b", "a+b"), ("a%2Bb", "a+b"), ("a%2fb", "a/b"), ("%00", "\x00"), ("%2525", "%25"), ("%F0%9F%98%80", ASTRAL)],
)
def test_topics_are_decoded_exactly_once(segment, topic):
    assert topic_of(segment) == topic


def test_whole_numbers_in_a_query_and_in_a_body():
    for values, number in [([], 7), (["1"], 1), (["1000"], 1000), (["0012"], 12), ([str(2**53)], 2**53)]:
        assert check(PAGE, from_query(PAGE, *values)) == number
    for value in (3, 3.0):  # as in JSON Schema
        number = check(PAGE, {"page": value})
        assert (number, type(number)) == (3, int)


def test_valid_waits_in_a_body_and_in_a_query():
    for value in (0, 60, 0.0, 59.999, -0.0):
        wait = check(WAIT, {"wait": value})
        assert (wait, type(wait)) == (value, float)
    for text in ("0", "60", "60.0", "007.50", "0.000000001", "5e-324", "1E-7", "6e+1", "-0"):
        assert check(WAIT, from_query(WAIT, text)) == float(text)
    assert check(WAIT, {}) is check(WAIT, from_query(WAIT)) is None
