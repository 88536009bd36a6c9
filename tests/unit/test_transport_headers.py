"""The mapping of a request's headers behaves as Tornado's does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from tornado_signal.transport.headers import Headers

NAMES = st.sampled_from(["Host", "host", "HOST", "Last-Event-ID", "last-event-id", "X-a", "x-A", "Origin"])
VALUES = st.sampled_from(["", "1", "a,b", "value", "\u00e4"])


@given(st.lists(st.tuples(NAMES, VALUES)), NAMES)
def test_headers_behave_as_tornados(pairs, asked):
    ours, theirs = Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]), HTTPHeaders()
    for name, value in pairs:
        theirs.add(name, value)
    assert (asked in ours) == (asked in theirs)
    assert ours.get(asked) == theirs.get(asked)
    assert ours.get(asked, "other") == theirs.get(asked, "other")
    assert ours.get_list(asked) == theirs.get_list(asked)
    assert list(ours.get_all()) == list(theirs.get_all())
    assert dict(ours) == dict(theirs)
    assert len(ours) == len(theirs)
    if asked in theirs:
        assert ours[asked] == theirs[asked]


def test_trailing_blanks_are_stripped_and_missing_names_are_key_errors():
    headers = Headers([(b"a", b"1 \t"), (b"b", b"2 "), (b"b", b"3 ")])
    assert list(headers.get_all()) == [("A", "1"), ("B", "2"), ("B", "3")]
    assert headers["b"] == "2,3"
    for name in ("Host", "\u0141", ""):
        assert name not in headers
        with pytest.raises(KeyError):
            headers[name]
