"""The mapping of a request's headers behaves like that of Tornado."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from tornado_signal.transport.headers import Headers

NAMES = st.sampled_from(["Host", "host", "HOST", "Last-Event-ID", "last-event-id", "X-a", "x-A", "Origin"])
VALUES = st.sampled_from(["", "1", "a,b", "value", "\u00e4"])


@given(st.lists(st.tuples(NAMES, VALUES)), NAMES)
def test_headers_behave_like_those_of_tornado(pairs, key):
    ours, theirs = Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]), HTTPHeaders()
    for name, value in pairs:
        theirs.add(name, value)
    assert (key in ours) == (key in theirs)
    assert ours.get(key) == theirs.get(key)
    assert ours.get(key, "other") == theirs.get(key, "other")
    assert ours.get_list(key) == theirs.get_list(key)
    assert list(ours.get_all()) == list(theirs.get_all())
    assert dict(ours) == dict(theirs)
    assert len(ours) == len(theirs)
    assert str(ours) == str(theirs)
    assert ours.copy() == theirs
    if key in theirs:
        assert ours[key] == theirs[key]


def test_missing_names_are_key_errors():
    headers = Headers([(b"a", b"1")])
    for name in ("Host", "\u0141", ""):
        assert name not in headers
        with pytest.raises(KeyError):
            headers[name]
