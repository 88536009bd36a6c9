"""JSON of the operations: parsing bodies, encoding results, and HTTP events (docs/http-api.md#event-streams)."""

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
from tornado_signal.service.event_batches import FeedEvent
from tornado_signal.session import ListedSession, Reason, Session, SessionUpdate, Side

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


@given(st.dictionaries(encodable, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | encodable))
def test_any_json_object_round_trips(fields):
    for ascii_only in (True, False):
        assert wire.parse_body(json.dumps(fields, ensure_ascii=ascii_only).encode()) == fields
    assert json.loads(wire.encode(fields)) == fields


@given(st.binary(max_size=60) | st.text('[]{}":,\\u d8NaInfity0123.e-').map(str.encode))
def test_any_bytes_are_a_json_object_or_refused(body):
    result = outcome(wire.parse_body, body)
    if isinstance(result, InvalidParameter):
        assert result.parameter == "body"
    else:
        assert json.loads(body) == result


def test_last_of_repeated_fields_is_used():
    assert wire.parse_body(b'{"a": "1", "a": "2"}') == {"a": "2"}
    assert wire.parse_body(b'{"a": "1", "a": "2", "b": "\\ud800"}')["a"] == "2"


@given(st.uuids())
def test_codes_are_lower_case_uuids(code):
    assert wire.format_code(code.bytes) == str(code)
    assert wire.parse_code(str(code)) == wire.parse_code(str(code).upper()) == code.bytes


CODE = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    "text",
    [
        *["x", "0" * 32, "0" * 36, f"{{{CODE}}}", f"urn:uuid:{CODE}", f"０{CODE[1:]}", f"{CODE[:-1]}٠"],
        *[f"{CODE[:-1]}g", f"{CODE[:-2]} 0", f"{CODE[:-12]}-{CODE[-11:]}", f" {CODE[1:]}", f"{CODE[:-1]}\n"],
        "0000000-00000-4000-8000-000000000000",
    ],
)
def test_malformed_codes_are_not_found(text):
    with pytest.raises(SessionNotFound):
        wire.parse_code(text)


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


@given(page=st.integers(1, 9), limit=st.integers(1, 5), total=st.integers(0, 20))
def test_pages_of_topics_have_more_if_topics_follow(page, limit, total):
    topics = [(str(number), number + 1) for number in range(total)][(page - 1) * limit : page * limit]
    body = wire.topics_page(page, limit, topics, total)
    assert body == {
        "topics": [{"topic": topic, "count": count} for topic, count in topics],
        "pagination": {"page": page, "limit": limit, "total": total, "hasMore": bool(range(total)[page * limit :])},
    }


def test_listed_session_has_the_documented_fields():
    session = Session(bytes(16), "topic", "info", created_ms=1, expires_ms=3, timeout_ms=2, serial=9)
    assert wire.listed_session(ListedSession(session, "offer", ["a", "b"])) == {
        "code": "00000000-0000-0000-0000-000000000000",
        "info": "info",
        "offer": "offer",
        "offerCandidates": ["a", "b"],
        "createdAt": 1,
        "expiresAt": 3,
    }


def test_news_has_the_fields_of_the_polling_side():
    candidates = [(2, "c"), (7, "d")]
    assert wire.poll_result(Side.OFFERER, SessionUpdate(None, 0, [], 5)) == {"answer": None, "answerCandidates": []}
    assert wire.poll_result(Side.OFFERER, SessionUpdate("a", 3, candidates, 5)) == {
        "answer": "a",
        "answerCandidates": ["c", "d"],
    }
    assert wire.poll_result(Side.ANSWERER, SessionUpdate("o", 1, candidates, 5)) == {
        "offer": "o",
        "offerCandidates": ["c", "d"],
    }


@pytest.mark.parametrize("reason", Reason)
def test_gone_event_has_its_reason(reason):
    event = wire.gone(bytes(16), reason)
    assert event == {"code": "00000000-0000-0000-0000-000000000000", "reason": reason.name.lower()}
    assert event["reason"] in ("answered", "expired", "withdrawn")


@given(st.dictionaries(st.sampled_from(["code", "offer", "a\nb"]), encodable))
def test_event_is_three_lines_and_an_empty_one(fields):
    lines = encode(FeedEvent("session", wire.encode(fields), "1.2.ab")).split(b"\n")
    assert lines[:2] == [b"event: session", b"id: 1.2.ab"]
    assert lines[2].startswith(b"data: ")
    assert json.loads(lines[2].removeprefix(b"data: ")) == fields
    assert (lines[3:], b"\r" in lines[2]) == ([b"", b""], False)


def test_event_without_data_is_only_an_id():
    assert encode(FeedEvent("", b"", "1.2.ab")) == b"id: 1.2.ab\n\n"
