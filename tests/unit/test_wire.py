"""JSON and HTTP words into arguments and back."""

import json
import urllib.parse
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.api import wire
from tornado_signal.errors import InvalidParameter
from tornado_signal.session import ListedSession, News, Reason, Session, Side, hash_secret

encodable = st.text(st.characters(exclude_categories=["Cs"]))
ASTRAL = "\U0001f600"


def outcome(parse, *arguments):
    """What parsing comes to: a value, or the refusal."""
    try:
        return parse(*arguments)
    except InvalidParameter as error:
        return error


def names(parameter, parse, *arguments):
    """Whether parsing is refused in the specification's words under this parameter's name."""
    refusal = outcome(parse, *arguments)
    return isinstance(refusal, InvalidParameter) and str(refusal) == str(InvalidParameter(parameter))


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
    assert names("body", wire.parse_body, body)


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


def test_a_lone_surrogate_is_the_fault_of_its_parameter():
    """A string that is no text is refused by name; one that nobody asked for disturbs nobody."""
    fields = wire.parse_body(b'{"info": "\\ud800", "offer": "fine", "pair": "\\ud83d\\ude00"}')
    assert names("info", wire.parse_string, fields, "info")
    assert wire.parse_string(fields, "offer") == "fine"
    assert wire.parse_string(fields, "pair") == ASTRAL


@pytest.mark.parametrize("value", [None, "", 0, 1, True, False, 1.5, [], ["x"], {}, "\ud800", "a\udfffb"])
def test_strings_that_are_none(value):
    """Null, empty, another type or not encodable: all of them are as good as absent."""
    assert names("info", wire.parse_string, {"info": value}, "info")
    assert names("info", wire.parse_string, {}, "info")


@pytest.mark.parametrize("character", ["a", "é", "\uffff", ASTRAL, "\x00", "e\u0301"[1]])
def test_lengths_are_in_code_points(character):
    """What counts is code points, not bytes, nor UTF-16 units; exactly the limit is allowed."""
    assert wire.parse_string({"info": character * 1024}, "info", wire.MAX_INFO) == character * 1024
    assert names("info", wire.parse_string, {"info": character * 1025}, "info", wire.MAX_INFO)
    segment = urllib.parse.quote(character * 256, safe="")
    assert wire.parse_topic(segment) == character * 256
    assert names("topic", wire.parse_topic, segment + "a")


def test_limits_are_those_of_the_specification():
    """Topic 256, info 1024, a page of 100, at most 1000."""
    assert (wire.MAX_TOPIC, wire.MAX_INFO, wire.DEFAULT_LIMIT, wire.MAX_LIMIT) == (256, 1024, 100, 1000)
    assert (wire.MAX_ORIGIN, wire.MAX_NUMBER) == (512, 2**53)


@pytest.mark.parametrize("value", ["Offerer", "offerer ", "", "both", None, 1, True, [], {}, ["offerer"], "\ud800"])
def test_sides_that_are_none(value):
    """Only the two words of the specification are sides."""
    assert names("side", wire.parse_side, {"side": value})
    assert names("side", wire.parse_side, {})
    assert [wire.parse_side({"side": side.value}) for side in Side] == list(Side)


@given(encodable.filter(lambda text: 0 < len(text) <= 256))
def test_every_topic_has_a_path(topic):
    """Any topic comes back from its percent-encoding, whole or only where it must be, and as the browser sends it."""
    data = topic.encode()
    assert wire.parse_topic(urllib.parse.quote(topic, safe="")) == topic
    assert wire.parse_topic("".join(f"%{byte:02x}" for byte in data)) == topic
    assert wire.parse_topic(data.replace(b"%", b"%25").decode("latin-1")) == topic


@pytest.mark.parametrize(
    ("segment", "topic"),
    [("a+b", "a+b"), ("a%2Bb", "a+b"), ("a%2fb", "a/b"), ("%00", "\x00"), ("%2525", "%25"), ("%F0%9F%98%80", ASTRAL)],
)
def test_topics_are_decoded_once(segment, topic):
    """Percent-encoding is undone exactly once, and a plus is a plus."""
    assert wire.parse_topic(segment) == topic


@pytest.mark.parametrize(
    "segment", ["", "%", "a%2", "%zz", "%+1", "%ff", "%C3", "%ED%A0%80", "%C0%80", "\xff", "Ā", "%F4%90%80%80", "% 1"]
)
def test_segments_that_are_no_topic(segment):
    """What does not decode to text, or to none, is refused."""
    assert names("topic", wire.parse_topic, segment)


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
    assert wire.parse_code(text) is None


def test_nothing_long_is_kept_of_a_code():
    """What comes as a code may be as long as a body: none of it stays in memory."""
    kept = wire._parse_uuid.cache_info()
    for length in (0, 35, 37, 100_000):
        assert wire.parse_code("a" * length) is None
    assert wire._parse_uuid.cache_info() == kept


@given(st.text() | st.text("0123456789abcdefABCDEF-", min_size=30, max_size=40))
def test_any_text_is_a_code_or_none(text):
    """Whatever text comes as a code, it is a UUID as Python's own reader sees it, or none."""
    code = wire.parse_code(text)
    if code is not None:
        assert uuid.UUID(text).bytes == code


@pytest.mark.parametrize(
    ("values", "number"),
    [(None, 7), ([], 7), (["1"], 1), (["1000"], 1000), (["0012"], 12), ([str(2**53)], 2**53)],
)
def test_whole_numbers(values, number):
    """Absence is the default; digits are a number up to 2^53."""
    assert wire.parse_whole(values, "page", 7) == number


@pytest.mark.parametrize(
    "values",
    [
        [text]
        for text in ("", "0", "00", "-1", "+1", "1.0", "1e3", " 1", "1 ", "1_0", "0x1", "१", "²", "１", "NaN", "1" * 40)
    ]
    + [[str(2**53 + 1)], ["9" * 5000], ["1", "1"], ["1", ""]],
    ids=lambda values: repr(values)[:20],
)
def test_what_is_no_whole_number(values):
    """Anything else, and anything that comes twice, is refused by name."""
    assert names("page", wire.parse_whole, values, "page", 7)


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


# Contract C.


@pytest.mark.parametrize("name", ["since", "cursor"])
def test_what_may_be_absent(name):
    """Absent or null is none; whatever is there must be a string that could be required."""
    for fields in ({}, {name: None}, {"other": "x"}):
        assert wire.parse_optional(fields, name) is None
    assert wire.parse_optional({name: "x"}, name) == "x"
    for value in ("", 0, False, [], {}, "\ud800"):
        assert names(name, wire.parse_optional, {name: value}, name)


@pytest.mark.parametrize("character", ["a", "ö", ASTRAL, "\x00"])
def test_secrets(character):
    """A secret has 16 to 256 code points; what goes on from here is its hash, and nothing for none (C5)."""
    for length in (16, 17, 256):
        assert wire.parse_secret({"secret": character * length}) == hash_secret(character * length)
    for length in (0, 1, 15, 257, 10_000):
        assert names("secret", wire.parse_secret, {"secret": character * length})
    assert wire.parse_secret({}) == wire.parse_secret({"secret": None}) == b""


@pytest.mark.parametrize("secret", [1, True, ["a" * 16], {}, "a" * 15 + "\ud800", 1e300])
def test_secrets_that_are_none(secret):
    """What is there and no secret is refused: it never counts as none."""
    assert names("secret", wire.parse_secret, {"secret": secret})


@pytest.mark.parametrize(
    "texts", [None, [], "abc", {}, {"0": "a"}, 7, ["a", ""], ["a", None], [["a"]], ["a", 1], ["\ud800"], ["a"] * 101]
)
def test_batches_that_are_none(texts):
    """A batch is a list of 1 to 100 strings; one that is no candidate spoils them all (C4)."""
    assert names("candidates", wire.parse_candidates, {"candidates": texts}, "candidates", 9)
    assert names("candidates", wire.parse_candidates, {}, "candidates", 9)


@given(st.lists(encodable.filter(len), min_size=1, max_size=100))
def test_batches(texts):
    """A batch keeps its order, and what comes twice comes twice."""
    assert wire.parse_candidates({"candidates": texts}, "candidates", 99) == texts


@pytest.mark.parametrize(
    ("value", "ttl_ms"), [(None, None), (1000, 1000), (1001, 1001), (299_999, 299_999), (300_000, 300_000)]
)
def test_lifetimes(value, ttl_ms):
    """An offer may ask for a second up to what is configured (C6)."""
    assert wire.parse_ttl({"ttl": value}, 300_000) == ttl_ms
    assert wire.parse_ttl({}, 300_000) is None


@pytest.mark.parametrize("value", [0, 1, 999, -1000, 300_001, 2**70, 1000.0, 1500.5, True, "1000", "", [], {}])
def test_lifetimes_that_are_none(value):
    """Anything else is refused, whole numbers in another dress too."""
    assert names("ttl", wire.parse_ttl, {"ttl": value}, 300_000)


@pytest.mark.parametrize(
    ("parse", "value", "wait_s"),
    [
        *[(wire.parse_wait, value, value) for value in (0, 60, 0.0, 59.999, -0.0)],
        *[(wire.parse_wait_text, text, float(text)) for text in ("0", "60", "60.0", "007.50", "0.000000001")],
    ],
)
def test_waits(parse, value, wait_s):
    """Seconds from 0 to 60, in a body as a number, in a query as its text (C1, C2)."""
    assert parse(value) == wait_s
    assert type(parse(value)) is float
    assert parse(None) is None


@pytest.mark.parametrize(
    "value",
    [-1, 61, 60.000001, 1e300, float("nan"), float("inf"), True, False, [], [1], {}, "", "1", "1.5", "\ud800"],
)
def test_waits_that_are_none(value):
    """Everything else is refused by name; in a body also the text of a number."""
    assert names("wait", wire.parse_wait, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "+1",
        "-1",
        "-0",
        "1e1",
        "0x1",
        ".5",
        "1.",
        "1_0",
        "61",
        "NaN",
        "inf",
        "1" * 30,
        "१",
        "1\n",
        "1,5",
    ],
)
def test_texts_of_waits_that_are_none(text):
    """In a query only plain decimal digits are a number."""
    assert names("wait", wire.parse_wait_text, text)


@given(st.dictionaries(st.sampled_from(["code", "offer", "a\nb"]), encodable), encodable.filter(len))
def test_events(fields, cursor):
    """Whatever an event says, it is three lines and an empty one, and reads as what was put in (C3)."""
    cursor = cursor.translate(dict.fromkeys(map(ord, "\r\n")))
    lines = wire.event("session", fields, cursor).split(b"\n")
    assert lines[:2] == [b"event: session", b"id: " + cursor.encode()]
    assert lines[2].startswith(b"data: ")
    assert json.loads(lines[2].removeprefix(b"data: ")) == fields
    assert (lines[3:], b"\r" in lines[2]) == ([b"", b""], False)


@pytest.mark.parametrize("reason", Reason)
def test_gone(reason):
    """Who has gone is told with one of the three reasons (C3)."""
    said = wire.gone(bytes(16), reason)
    assert said == {"code": "00000000-0000-0000-0000-000000000000", "reason": reason.name.lower()}
    assert said["reason"] in ("answered", "expired", "withdrawn")


def test_limits_of_the_additions():
    """The figures of contract C1, C4, C5 and C6."""
    assert (wire.MAX_WAIT_S, wire.MAX_CANDIDATES, wire.MIN_TTL_MS) == (60, 100, 1000)
    assert (wire.MIN_SECRET, wire.MAX_SECRET) == (16, 256)
