"""JSON of the operations: bodies, codes, and HTTP events (docs/http-api.md#event-streams)."""

import contextlib
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_vectors import messages

from tornado_signal.errors import InvalidParameter, SessionNotFound
from tornado_signal.http.streams import encode
from tornado_signal.service import wire

encodable = st.text(st.characters(exclude_categories=["Cs"]))


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
    for body in (b"", b" ", b"null", b"[]", b'"text"', b"1", b'\xef\xbb\xbf\xef\xbb\xbf{"code": "x"}'):
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
