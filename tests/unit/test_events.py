"""Events as HTTP sends them (contract C3)."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.api import wire
from tornado_signal.api.topic_steps import Event
from tornado_signal.http.streams import encode

encodable = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(st.sampled_from(["code", "offer", "a\nb"]), encodable))
def test_an_event_is_three_lines_and_an_empty_one(fields):
    lines = encode(Event("session", wire.encode(fields), "1.2.ab")).split(b"\n")
    assert lines[:2] == [b"event: session", b"id: 1.2.ab"]
    assert lines[2].startswith(b"data: ")
    assert json.loads(lines[2].removeprefix(b"data: ")) == fields
    assert (lines[3:], b"\r" in lines[2]) == ([b"", b""], False)


def test_an_event_without_data_is_only_an_id():
    assert encode(Event("", b"", "1.2.ab")) == b"id: 1.2.ab\n\n"
