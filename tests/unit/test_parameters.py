"""JSON, parameters and cursors of the operations. Invalid parameters are those of test_refusals."""

import contextlib
import json
import urllib.parse
import uuid
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_vectors import messages

from tornado_signal.errors import InvalidParameter, SessionNotFound
from tornado_signal.http.fields import decode_segment, query_fields
from tornado_signal.http.streams import encode
from tornado_signal.service import parameters, schemas, wire
from tornado_signal.service.cursors import format_cursor, parse_cursor, parse_session_cursor
from tornado_signal.session import Position, SessionPosition
from tornado_signal.settings.settings import Settings

encodable = st.text(st.characters(exclude_categories=["Cs"]))
ASTRAL = "\U0001f600"
CALL = SimpleNamespace(service=SimpleNamespace(settings=Settings(session_timeout_ms=300_000)))
PAGE = parameters.integer("page", schemas.positive(), 7)
WAIT = parameters.WAIT


def check(parameter, fields):
    return parameter.check(fields, CALL)


def from_query(parameter, *texts):
    query = {parameter.name: [text.encode() for text in texts]} if texts else {}
    return query_fields(query, [parameter])


@given(encodable.filter(lambda text: 0 < len(text) <= 256))
def test_every_topic_can_be_written_in_a_path(topic):
    data = topic.encode()
    assert decode_segment(urllib.parse.quote(topic, safe="")) == topic
    assert decode_segment("".join(f"%{byte:02x}" for byte in data)) == topic
    assert decode_segment(data.replace(b"%", b"%25").decode("latin-1")) == topic


def test_topics_are_decoded_exactly_once():
    topics = {"a+b": "a+b", "a%2Bb": "a+b", "a%2fb": "a/b", "%00": "\x00", "%2525": "%25", "%F0%9F%98%80": ASTRAL}
    assert {segment: decode_segment(segment) for segment in topics} == topics


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


def outcome(parse, *arguments):
    try:
        return parse(*arguments)
    except InvalidParameter as error:
        return error


@pytest.mark.parametrize("unusual", [False, True])
def test_body_must_be_a_json_object(unusual):
    for body, value in messages(b'{"x":%b}', unusual=unusual):
        result = outcome(wire.parse_body, body)
        if value:  # numbers compare as doubles, as in JavaScript
            assert json.loads(json.dumps(result["x"]), parse_int=float) == json.loads(value, parse_int=float), body[:99]
        else:
            assert str(result) == str(InvalidParameter("body")), body[:99]
    # One byte order mark is ignored (RFC 8259, 8.1).
    many_digits = b'{"a": "\\ud800", "b": %b}' % (b"9" * 5000)
    for body in (b"", b" ", b"null", b"[]", b'"text"', b"1", b'\xef\xbb\xbf\xef\xbb\xbf{"code": "x"}', many_digits):
        assert str(outcome(wire.parse_body, body)) == str(InvalidParameter("body"))
    assert wire.parse_body(b'\xef\xbb\xbf{"code": "x"}') == {"code": "x"}


def test_malformed_codes_are_not_cached():
    cache_info = wire._parse_uuid.cache_info()
    for length in (0, 35, 37, 100_000):
        with pytest.raises(SessionNotFound):
            wire.parse_code("a" * length)
    assert wire._parse_uuid.cache_info() == cache_info


@given(st.text() | st.text("0123456789abcdefABCDEF-", min_size=30, max_size=40))
def test_any_text_is_a_uuid_or_not_found(text):
    with contextlib.suppress(SessionNotFound):
        code = wire.parse_code(text)
        assert uuid.UUID(text).bytes == code


@given(st.dictionaries(st.sampled_from(["code", "offer", "a\nb"]), encodable))
def test_event_is_three_lines_and_an_empty_one(fields):
    lines = encode("session", wire.encode(fields), "1.2.ab").split(b"\n")
    assert lines[:2] == [b"event: session", b"id: 1.2.ab"]
    assert lines[2].startswith(b"data: ")
    assert json.loads(lines[2].removeprefix(b"data: ")) == fields
    assert (lines[3:], b"\r" in lines[2]) == ([b"", b""], False)


STORE = SimpleNamespace(identity="0123456789ab", knows=lambda identity: identity in ("0123456789ab", "cdef01234567"))
OTHER = SimpleNamespace(identity="ba9876543210", knows=lambda identity: identity == "ba9876543210")
NUMBERS = st.tuples(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
FORGED = ["", "zz", "-1", "+1", " 1", "1 ", "1_0", "0x1", "01", "F", "٣", "1" + "0" * 15, "f" * 40, "1\n"]


def make_cursor(scope, numbers):
    return format_cursor(STORE, scope, SessionPosition(*numbers))


def parse(scope, cursor, store=STORE):
    return parse_session_cursor(store, scope, cursor, "since")


@given(st.binary(), st.binary(), NUMBERS)
def test_formatted_cursor_is_parsed_back_and_means_nothing_in_another_scope_or_store(scope, other, numbers):
    assert parse(scope, make_cursor(scope, numbers)) == SessionPosition(*numbers)
    assert parse(scope, make_cursor(scope, numbers), OTHER) is None
    for identity in (STORE.identity, "cdef01234567"):
        position = Position(identity, *numbers)
        cursor = format_cursor(STORE, scope, position)
        assert [parse_cursor(store, scope, cursor, "since") for store in (STORE, OTHER)] == [position, None]
    with pytest.raises(InvalidParameter, match="since"):
        parse(other if other != scope else other + b"x", make_cursor(scope, numbers))


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
        text = ".".join(parts)
        with pytest.raises(InvalidParameter):
            parse(b"about", f"{text}.{zlib.crc32(text.encode(), zlib.crc32(b'about')):08x}")


def test_format_of_cursors_does_not_change():
    assert make_cursor(b"about", (255, 1)) == "0123456789ab.ff.1.68257645"
