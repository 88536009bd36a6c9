"""Parameters of operations: what each may be, in a body as JSON, in path and query as text."""

import urllib.parse
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.api import parameters, schemas, wire
from tornado_signal.errors import InvalidParameter
from tornado_signal.http.fields import query_fields, topic_of
from tornado_signal.session import Side, hash_secret
from tornado_signal.settings.settings import Settings

encodable = st.text(st.characters(exclude_categories=["Cs"]))
ASTRAL = "\U0001f600"
CALL = SimpleNamespace(service=SimpleNamespace(settings=Settings(session_timeout_ms=300_000)))
INFO = parameters.string("info", schemas.MAX_INFO)
PAGE = parameters.number("page", 7, schemas.positive())
SIDE = parameters.side()
SECRET = parameters.SECRET
CANDIDATES = parameters.candidates(99)
TTL = parameters.Parameter("ttl", parameters.check_ttl, {})
WAIT = parameters.WAIT


def check(parameter, fields):
    """The value of a parameter."""
    return parameter.check(fields, CALL)


def is_refused(parameter, fields):
    """Whether fields are refused in the specification's words under a parameter's name."""
    try:
        check(parameter, fields)
    except InvalidParameter as error:
        return str(error) == str(InvalidParameter(parameter.name))
    return False


def from_path(segment):
    """The field of a path's segment."""
    return {"topic": topic_of(segment)}


def from_query(parameter, *texts):
    """The fields of a query with these values for a parameter."""
    return query_fields(urllib.parse.urlencode([(parameter.name, text) for text in texts]), [parameter])


def test_a_lone_surrogate_is_the_fault_of_its_parameter():
    """A string that is no text is refused by name; one that nobody asked for disturbs nobody."""
    fields = wire.parse_body(b'{"info": "\\ud800", "offer": "fine", "pair": "\\ud83d\\ude00"}')
    assert is_refused(INFO, fields)
    assert check(parameters.string("offer"), fields) == "fine"
    assert check(parameters.string("pair"), fields) == ASTRAL


@pytest.mark.parametrize("value", [None, "", 0, 1, True, False, 1.5, [], ["x"], {}, "\ud800", "a\udfffb"])
def test_strings_that_are_none(value):
    """Null, empty, another type or not encodable: all of them are as good as absent."""
    assert is_refused(INFO, {"info": value})
    assert is_refused(INFO, {})


@pytest.mark.parametrize("character", ["a", "é", "\uffff", ASTRAL, "\x00", "e\u0301"[1]])
def test_lengths_are_in_code_points(character):
    """What counts is code points, not bytes, nor UTF-16 units; exactly the limit is allowed."""
    assert check(INFO, {"info": character * 1024}) == character * 1024
    assert is_refused(INFO, {"info": character * 1025})
    segment = urllib.parse.quote(character * 256, safe="")
    assert check(parameters.TOPIC, from_path(segment)) == character * 256
    assert is_refused(parameters.TOPIC, from_path(segment + "a"))


def test_limits_are_those_of_the_specification():
    """Topic 256, info 1024, a page of 100, at most 1000."""
    assert (schemas.MAX_TOPIC, schemas.MAX_INFO, schemas.DEFAULT_LIMIT, schemas.MAX_LIMIT) == (256, 1024, 100, 1000)
    assert (schemas.MAX_ORIGIN, schemas.MAX_NUMBER) == (512, 2**53)


@pytest.mark.parametrize("value", ["Offerer", "offerer ", "", "both", None, 1, True, [], {}, ["offerer"], "\ud800"])
def test_sides_that_are_none(value):
    """Only the two words of the specification are sides."""
    assert is_refused(SIDE, {"side": value})
    assert is_refused(SIDE, {})
    assert [check(SIDE, {"side": side.value}) for side in Side] == list(Side)


@given(encodable.filter(lambda text: 0 < len(text) <= 256))
def test_every_topic_has_a_path(topic):
    """Any topic comes back from its percent-encoding, whole or only where it must be, and as the browser sends it."""
    data = topic.encode()
    assert topic_of(urllib.parse.quote(topic, safe="")) == topic
    assert topic_of("".join(f"%{byte:02x}" for byte in data)) == topic
    assert topic_of(data.replace(b"%", b"%25").decode("latin-1")) == topic


@pytest.mark.parametrize(
    ("segment", "topic"),
    [("a+b", "a+b"), ("a%2Bb", "a+b"), ("a%2fb", "a/b"), ("%00", "\x00"), ("%2525", "%25"), ("%F0%9F%98%80", ASTRAL)],
)
def test_topics_are_decoded_once(segment, topic):
    """Percent-encoding is undone exactly once, and a plus is a plus."""
    assert topic_of(segment) == topic


@pytest.mark.parametrize(
    "segment", ["", "%", "a%2", "%zz", "%+1", "%ff", "%C3", "%ED%A0%80", "%C0%80", "\xff", "Ā", "%F4%90%80%80", "% 1"]
)
def test_segments_that_are_no_topic(segment):
    """What does not decode to text, or to none, is refused."""
    assert is_refused(parameters.TOPIC, from_path(segment))


@pytest.mark.parametrize(
    ("values", "number"),
    [([], 7), (["1"], 1), (["1000"], 1000), (["0012"], 12), ([str(2**53)], 2**53)],
)
def test_whole_numbers(values, number):
    """Absence is the default; digits are a number up to 2^53."""
    assert check(PAGE, from_query(PAGE, *values)) == number


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
    assert is_refused(PAGE, from_query(PAGE, *values))


def test_numbers_in_a_body():
    """As JSON only whole numbers are some, in no other dress."""
    assert check(PAGE, {"page": 3}) == 3
    assert check(PAGE, {"page": None}) == 7
    for value in (0, -1, 1.0, True, "1", [1], 2**53 + 1):
        assert is_refused(PAGE, {"page": value})


@pytest.mark.parametrize("name", ["since", "cursor"])
def test_what_may_be_absent(name):
    """Absent or null is none; whatever is there must be a string that could be required."""
    assert parameters.check_optional_string(None, name) is None
    assert parameters.check_optional_string("x", name) == "x"
    for value in ("", 0, False, [], {}, "\ud800"):
        with pytest.raises(InvalidParameter, match=name):
            parameters.check_optional_string(value, name)


@pytest.mark.parametrize("character", ["a", "ö", ASTRAL, "\x00"])
def test_secrets(character):
    """A secret has 16 to 256 code points; what goes on from here is its hash, and nothing for none (C5)."""
    for length in (16, 17, 256):
        assert check(SECRET, {"secret": character * length}) == hash_secret(character * length)
    for length in (0, 1, 15, 257, 10_000):
        assert is_refused(SECRET, {"secret": character * length})
    assert check(SECRET, {}) == check(SECRET, {"secret": None}) == b""


@pytest.mark.parametrize("secret", [1, True, ["a" * 16], {}, "a" * 15 + "\ud800", 1e300])
def test_secrets_that_are_none(secret):
    """What is there and no secret is refused: it never counts as none."""
    assert is_refused(SECRET, {"secret": secret})


@pytest.mark.parametrize(
    "texts", [None, [], "abc", {}, {"0": "a"}, 7, ["a", ""], ["a", None], [["a"]], ["a", 1], ["\ud800"], ["a"] * 101]
)
def test_batches_that_are_none(texts):
    """A batch is a list of 1 to 100 strings; one that is no candidate spoils them all (C4)."""
    assert is_refused(CANDIDATES, {"candidates": texts})
    assert is_refused(CANDIDATES, {})


@given(st.lists(encodable.filter(len), min_size=1, max_size=100))
def test_batches(texts):
    """A batch keeps its order, and what comes twice comes twice."""
    longest = max(map(len, texts))
    assert check(parameters.candidates(longest), {"candidates": texts}) == texts


@pytest.mark.parametrize(
    ("value", "ttl_ms"), [(None, None), (1000, 1000), (1001, 1001), (299_999, 299_999), (300_000, 300_000)]
)
def test_lifetimes(value, ttl_ms):
    """An offer may ask for a second up to what is configured (C6)."""
    assert check(TTL, {"ttl": value}) == ttl_ms
    assert check(TTL, {}) is None


@pytest.mark.parametrize("value", [0, 1, 999, -1000, 300_001, 2**70, 1000.0, 1500.5, True, "1000", "", [], {}])
def test_lifetimes_that_are_none(value):
    """Anything else is refused, whole numbers in another dress too."""
    assert is_refused(TTL, {"ttl": value})


@pytest.mark.parametrize("value", [0, 60, 0.0, 59.999, -0.0])
def test_waits(value):
    """Seconds from 0 to 60 (C1)."""
    assert check(WAIT, {"wait": value}) == value
    assert type(check(WAIT, {"wait": value})) is float
    assert check(WAIT, {}) is None


@pytest.mark.parametrize("text", ["0", "60", "60.0", "007.50", "0.000000001"])
def test_waits_in_a_query(text):
    """The same as text (C2)."""
    assert check(WAIT, from_query(WAIT, text)) == float(text)
    assert check(WAIT, from_query(WAIT)) is None


@pytest.mark.parametrize(
    "value",
    [-1, 61, 60.000001, 1e300, float("nan"), float("inf"), True, False, [], [1], {}, "", "1", "1.5", "\ud800"],
)
def test_waits_that_are_none(value):
    """Everything else is refused by name; in a body also the text of a number."""
    assert is_refused(WAIT, {"wait": value})


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
    assert is_refused(WAIT, from_query(WAIT, text))


def test_what_comes_twice_is_refused_by_name():
    """A parameter of the query that comes more than once has no value that could be taken."""
    for parameter in (parameters.CODE, SIDE, SECRET, WAIT, PAGE):
        assert is_refused(parameter, from_query(parameter, "1", "1"))


def test_limits_of_the_additions():
    """The figures of contract C1, C4, C5 and C6."""
    assert (schemas.MAX_WAIT_S, schemas.MAX_CANDIDATES, schemas.MIN_TTL_MS) == (60, 100, 1000)
    assert (schemas.MIN_SECRET, schemas.MAX_SECRET) == (16, 256)
