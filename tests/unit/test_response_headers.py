"""Headers of responses behave as Tornado's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders, HTTPInputError

from tornado_signal.http.response_headers import ResponseHeaders

NAMES = st.sampled_from(["Content-Type", "content-type", "Set-Cookie", "set-cookie", "VARY", "x-a-b", "etag"])
VALUES = st.sampled_from(["a", "b, c", "", "é"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "__setitem__", "setdefault"]), NAMES, VALUES),
    st.tuples(st.sampled_from(["get", "get_list", "__contains__"]), NAMES),
    st.tuples(st.just("pop"), NAMES, st.none()),
    st.tuples(st.sampled_from(["__len__", "clear"])),
)


@given(st.lists(STEPS))
def test_response_headers_do_what_those_of_tornado_do(steps):
    ours, theirs = ResponseHeaders({"Content-Type": "text/plain"}), HTTPHeaders({"Content-Type": "text/plain"})
    for method, *arguments in steps:
        assert getattr(ours, method)(*arguments) == getattr(theirs, method)(*arguments)
        assert list(ours.get_all()) == list(theirs.get_all())
        assert dict(ours) == dict(theirs)


def test_replaced_headers_have_one_value():
    headers = ResponseHeaders({"Vary": "Origin"})
    headers.add("Vary", "Accept")
    headers.add("Link", "</a>")
    headers.add("Link", "</b>")
    headers.replace({"Vary": "Cookie"})
    assert list(headers.get_all()) == [("Vary", "Cookie"), ("Link", "</a>"), ("Link", "</b>")]


@pytest.mark.parametrize(("name", "value"), [("a b", "c"), ("a", "b\r\nc: d"), ("", "a")])
def test_invalid_headers_cannot_be_added(name, value):
    headers = ResponseHeaders({})
    with pytest.raises(HTTPInputError):
        headers.add(name, value)
    assert not headers
