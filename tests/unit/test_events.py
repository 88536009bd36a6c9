"""Events as HTTP sends them (contract C3)."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.api import wire
from tornado_signal.api.topic_steps import Event
from tornado_signal.http.streams import encode

encodable = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(st.sampled_from(["code", "offer", "a\nb"]), encodable))
def test_events(fields):
    """Whatever an event says, it is three lines and an empty one, and reads as what was put in."""
    lines = encode(Event("session", wire.encode(fields), "1.2.ab")).split(b"\n")
    assert lines[:2] == [b"event: session", b"id: 1.2.ab"]
    assert lines[2].startswith(b"data: ")
    assert json.loads(lines[2].removeprefix(b"data: ")) == fields
    assert (lines[3:], b"\r" in lines[2]) == ([b"", b""], False)


def test_nothing_but_a_new_cursor():
    """What only moves the cursor has no type and no data: an `EventSource` tells nothing of it, and keeps its id."""
    assert encode(Event("", b"", "1.2.ab")) == b"id: 1.2.ab\n\n"
