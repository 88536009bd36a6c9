"""What a session is and what may become of it."""

import hashlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.errors import AlreadyAnswered
from tornado_signal.session import Session, Side, changes_answer, content_code

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ORIGIN = "https://one.example"


@pytest.mark.parametrize(("now_ms", "live"), [(0, True), (999, True), (1000, False), (1001, False)])
def test_live_until_the_millisecond_of_expiry(now_ms, live):
    """A session is live as long as now is before its expiry."""
    session = Session(bytes(16), "topic", "info", created_ms=0, expires_ms=1000, timeout_ms=1000, serial=1)
    assert session.live(now_ms) is live


def test_each_side_has_another():
    """The two sides are each other's other, and are called as in the specification."""
    assert (Side("offerer").other, Side("answerer").other) == (Side.ANSWERER, Side.OFFERER)
    assert len(Side) == 2


@pytest.mark.parametrize(("current", "answer", "first"), [(None, "a", True), ("a", "a", False)])
def test_the_first_answer_and_its_retry_are_taken(current, answer, first):
    """The first answer changes a session, the same one sent again does not."""
    assert changes_answer(current, answer) is first


@pytest.mark.parametrize("current", ["a", "A", "", "b "])
def test_another_answer_is_refused(current):
    """Once there is an answer no other one is taken."""
    with pytest.raises(AlreadyAnswered):
        changes_answer(current, "b")


@pytest.mark.parametrize(
    ("origin", "topics", "offer", "code"),
    [
        (ORIGIN, ["topic"], "offer", "6ec15073-59d4-897d-ac1c-3d010a82b310"),
        ("null", ["b", "a", "\U0001f600"], "v=0\r\n", "9a041d8a-81b0-89be-b4bf-7e454ada1773"),
        ("", [""], "", "9d908ecf-b6b2-86de-b8b4-9a7c504e6c88"),
    ],
)
def test_content_codes_never_change(origin, topics, offer, code):
    """Golden codes: peers of another version, or after an update, have to arrive at the same."""
    assert uuid.UUID(bytes=content_code(origin, topics, offer)) == uuid.UUID(code)


def test_content_code_is_what_its_description_says():
    """The code is the SHA-256 of the parts, each behind its length, with the bits that RFC 9562 wants."""
    parts = [b"https://one.example", b"a", b"b", b"offer"]
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()
    number = int.from_bytes(digest[:16], "big") & ~(0xF << 76) & ~(0x3 << 62) | 0x8 << 76 | 0x2 << 62
    assert int.from_bytes(content_code(ORIGIN, ["b", "a"], "offer"), "big") == number


@given(origin=texts, topics=st.lists(texts, max_size=4), offer=texts, data=st.data())
def test_content_code_is_a_version_8_uuid_whatever_the_order_of_the_topics(origin, topics, offer, data):
    """Every content code is a UUID of version 8, and the order in which the topics come is no part of it."""
    code = content_code(origin, topics, offer)
    parsed = uuid.UUID(bytes=code)
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert content_code(origin, data.draw(st.permutations(topics)), offer) == code


parts = st.tuples(texts, st.lists(texts, min_size=1, max_size=3).map(sorted), texts)


@given(one=parts, other=parts)
def test_different_content_has_different_codes(one, other):
    """Two contents have the same code only if they are the same."""
    assert (content_code(*one) == content_code(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", ["c"], "d"), ("a", ["bc"], "d")),
        (("a", ["bc"], "d"), ("a", ["b"], "cd")),
        (("a", ["b", "c"], "d"), ("a", ["bc"], "d")),
        (("a", ["b"], "d"), ("a", ["b", "b"], "d")),
        (("a", ["b\x00"], "d"), ("a", ["b"], "\x00d")),
    ],
)
def test_parts_do_not_run_together(one, other):
    """Where one part ends and the next begins matters."""
    assert content_code(*one) != content_code(*other)
