"""Sessions: lifetime, answers, secrets and codes."""

import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tornado_signal.session import Reason, SessionUpdate, Side, content_code, hash_secret, owns

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ORIGIN = "https://one.example"


def test_last_is_the_greatest_number_of_the_update():
    for description_number, numbers, last in [(0, [], 0), (1, [], 1), (0, [1, 2], 2), (3, [1, 2], 3), (2, [1, 3], 3)]:
        assert SessionUpdate(None, description_number, [(number, "c") for number in numbers], 5, 9).last == last


def test_sides_and_reasons_never_change():
    assert (Side("offerer").other, Side("answerer").other, len(Side)) == (Side.ANSWERER, Side.OFFERER, 2)
    reasons = [(reason.value, reason.name.lower()) for reason in Reason]
    assert reasons == [(1, "answered"), (2, "expired"), (3, "withdrawn")]


@given(texts, texts)
def test_neither_another_secret_nor_the_hash_owns_a_side(first, second):
    stored = hash_secret(first)
    assert owns(stored, hash_secret(second)) == (first == second)
    assert not any(owns(stored, stored[:length]) for length in range(32))


@pytest.mark.parametrize(
    ("origin", "topics", "offer", "code"),
    [
        (ORIGIN, ["topic"], "offer", "6ec15073-59d4-897d-ac1c-3d010a82b310"),
        ("null", ["b", "a", "\U0001f600"], "v=0\r\n", "9a041d8a-81b0-89be-b4bf-7e454ada1773"),
        ("", [""], "", "9d908ecf-b6b2-86de-b8b4-9a7c504e6c88"),
    ],
)
def test_content_codes_never_change(origin, topics, offer, code):
    assert uuid.UUID(bytes=content_code(origin, topics, offer)) == uuid.UUID(code)


@given(origin=texts, topics=st.lists(texts, max_size=4), offer=texts, data=st.data())
def test_content_code_is_a_version_8_uuid_and_ignores_the_order_of_topics(origin, topics, offer, data):
    code = content_code(origin, topics, offer)
    parsed = uuid.UUID(bytes=code)
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert content_code(origin, data.draw(st.permutations(topics)), offer) == code


parts = st.tuples(texts, st.lists(texts, min_size=1, max_size=3).map(sorted), texts)


@given(first=parts, second=parts)
@example(("ab", ["c"], "d"), ("a", ["bc"], "d"))
@example(("a", ["bc"], "d"), ("a", ["b"], "cd"))
@example(("a", ["b", "c"], "d"), ("a", ["bc"], "d"))
@example(("a", ["b"], "d"), ("a", ["b", "b"], "d"))
@example(("a", ["b\x00"], "d"), ("a", ["b"], "\x00d"))
def test_different_content_has_different_codes(first, second):
    assert (content_code(*first) == content_code(*second)) == (first == second)
