"""The mapping of a request's headers behaves as Tornado's does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from tornado_signal.transport.headers import Headers, header_name

NAMES = st.sampled_from(["Host", "host", "HOST", "Last-Event-ID", "last-event-id", "X-a", "x-A", "Origin"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["", "1", "a,b", "value"]))), NAMES)
def test_as_tornados(pairs, asked):
    """Whatever comes, in whatever case, once or more often, is found as in Tornado's `HTTPHeaders`."""
    ours, theirs = Headers(), HTTPHeaders()
    for name, value in pairs:
        ours.add(header_name(name.encode()), value)
        theirs.add(name, value)
    assert (asked in ours) == (asked in theirs)
    assert ours.get(asked) == theirs.get(asked)
    assert ours.get(asked, "other") == theirs.get(asked, "other")
    assert ours.get_list(asked) == theirs.get_list(asked)
    assert list(ours.get_all()) == list(theirs.get_all())
    if asked in theirs:
        assert ours[asked] == theirs[asked]


def test_what_did_not_come():
    """A name that did not come is a KeyError, as in every mapping."""
    with pytest.raises(KeyError):
        Headers()["Host"]
