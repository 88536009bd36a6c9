"""JSON of the operations: bodies into fields, results into bodies."""

import contextlib
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.api import wire
from tornado_signal.errors import InvalidParameter, SessionNotFound
from tornado_signal.session import ListedSession, News, Reason, Session, Side

encodable = st.text(st.characters(exclude_categories=["Cs"]))


def outcome(parse, *arguments):
    """What parsing comes to: a value, or the refusal."""
    try:
        return parse(*arguments)
    except InvalidParameter as error:
        return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"nonsense",
        b"{",
        b"{}x",
        b"{} {}",
        b"null",
        b"[]",
        b'"text"',
        b"1",
        b'\xef\xbb\xbf\xef\xbb\xbf{"code": "x"}',  # one byte order mark is ignored (RFC 8259, 8.1)
        '{"code": "x"}'.encode("utf-16"),
        b'{"code": "\xff"}',
        b'{"code": "\xed\xa0\x80"}',  # a surrogate in what would be UTF-8
        b'{"code": "\xc0\x80"}',  # an overlong NUL
        b'{"code": NaN}',
        b'{"code": -Infinity, "x": "\\ud800"}',
        b"{'code': 'x'}",
        b'{"code": "x",}',
        b'{"code": "a\nb"}',
        b'{"code": "\\x"}',
        b'{"code": 01}',
        b"[" * 100_000,
        b'{"code": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"code": ' + b"1" * 10_000 + b', "x": "\\ud800"}',
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_are_no_json_object(body):
    """What is not one JSON object in UTF-8 is refused as a body, and nothing of it breaks the parser."""
    assert str(outcome(wire.parse_body, body)) == str(InvalidParameter("body"))


@given(st.dictionaries(encodable, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | encodable))
def test_objects_are_understood(fields):
    """Any JSON object is read as what it says, escaped or not, and what is encoded reads the same."""
    for ascii_only in (True, False):
        assert wire.parse_body(json.dumps(fields, ensure_ascii=ascii_only).encode()) == fields
    assert json.loads(wire.encode(fields)) == fields


@given(st.binary(max_size=60) | st.text('[]{}":,\\u d8NaInfity0123.e-').map(str.encode))
def test_any_bytes_are_read_or_refused(body):
    """Whatever comes, it is an object or a refusal that names the body, and Python's own parser agrees."""
    result = outcome(wire.parse_body, body)
    if isinstance(result, InvalidParameter):
        assert result.parameter == "body"
    else:
        assert json.loads(body) == result


def test_the_last_of_two_fields_counts():
    """Of a name that comes twice the last value is taken, also where another parser has to help."""
    assert wire.parse_body(b'{"a": "1", "a": "2"}') == {"a": "2"}
    assert wire.parse_body(b'{"a": "1", "a": "2", "b": "\\ud800"}')["a"] == "2"


@given(st.uuids())
def test_codes_are_uuids_in_lower_case(code):
    """A code reads as any UUID, in capitals too, and is written as UUIDs are."""
    assert wire.format_code(code.bytes) == str(code)
    assert wire.parse_code(str(code)) == wire.parse_code(str(code).upper()) == code.bytes


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "0" * 32,
        "0" * 36,
        "{00000000-0000-4000-8000-000000000000}",
        "urn:uuid:00000000-0000-4000-8000-000000000000",
        "00000000-0000-4000-8000-00000000000g",
        "00000000-0000-4000-8000-0000000000 0",
        "00000000-0000-4000-8000--00000000000",
        "0000000-00000-4000-8000-000000000000",
        " 0000000-0000-4000-8000-000000000000",
        "00000000-0000-4000-8000-00000000000\n",
        "０0000000-0000-4000-8000-000000000000",
        "00000000-0000-4000-8000-00000000000٠",
    ],
)
def test_what_is_no_uuid_is_no_code(text):
    """Only the plain form of 36 characters names a session."""
    with pytest.raises(SessionNotFound):
        wire.parse_code(text)


def test_nothing_long_is_kept_of_a_code():
    """What comes as a code may be as long as a body: none of it stays in memory."""
    kept = wire._parse_uuid.cache_info()
    for length in (0, 35, 37, 100_000):
        with pytest.raises(SessionNotFound):
            wire.parse_code("a" * length)
    assert wire._parse_uuid.cache_info() == kept


@given(st.text() | st.text("0123456789abcdefABCDEF-", min_size=30, max_size=40))
def test_any_text_is_a_code_or_none(text):
    """Whatever text comes as a code, it is a UUID as Python's own reader sees it, or none."""
    with contextlib.suppress(SessionNotFound):
        code = wire.parse_code(text)
        assert uuid.UUID(text).bytes == code


@given(page=st.integers(1, 9), limit=st.integers(1, 5), total=st.integers(0, 20))
def test_pagination(page, limit, total):
    """A page says where it is and whether another one follows."""
    topics = [(str(number), number + 1) for number in range(total)][(page - 1) * limit : page * limit]
    body = wire.topics_page(page, limit, topics, total)
    assert body == {
        "topics": [{"topic": topic, "count": count} for topic, count in topics],
        "pagination": {"page": page, "limit": limit, "total": total, "hasMore": bool(range(total)[page * limit :])},
    }


def test_a_listed_session_has_the_fields_of_the_specification():
    """Exactly the six fields of GET /:topic/sessions, in the specification's spelling."""
    session = Session(bytes(16), "topic", "info", created_ms=1, expires_ms=3, timeout_ms=2, serial=9)
    assert wire.listed_session(ListedSession(session, "offer", ["a", "b"])) == {
        "code": "00000000-0000-0000-0000-000000000000",
        "info": "info",
        "offer": "offer",
        "offerCandidates": ["a", "b"],
        "createdAt": 1,
        "expiresAt": 3,
    }


def test_news_have_the_fields_of_the_side_that_polls():
    """The offerer reads the answer, the answerer the offer."""
    candidates = [(2, "c"), (7, "d")]
    assert wire.news(Side.OFFERER, News(None, 0, [], 5)) == {"answer": None, "answerCandidates": []}
    assert wire.news(Side.OFFERER, News("a", 3, candidates, 5)) == {"answer": "a", "answerCandidates": ["c", "d"]}
    assert wire.news(Side.ANSWERER, News("o", 1, candidates, 5)) == {"offer": "o", "offerCandidates": ["c", "d"]}


@pytest.mark.parametrize("reason", Reason)
def test_gone(reason):
    """Who has gone is told with one of the three reasons (C3)."""
    said = wire.gone(bytes(16), reason)
    assert said == {"code": "00000000-0000-0000-0000-000000000000", "reason": reason.name.lower()}
    assert said["reason"] in ("answered", "expired", "withdrawn")
