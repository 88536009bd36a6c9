"""Generated requests over real sockets: never a 500, always JSON and CORS headers, and the server stays up."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.service import HOST, ORIGIN, allowed_origin, check_every_response, head, segment

fuzzed = settings(
    max_examples=2 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

TEXTS = {
    400: r"Missing or invalid required parameter: (Origin|body|topic|info|offer|code|side|page|limit|answer"
    r"|candidate|answer or candidate)|Bad request",
    404: r"Not found|Session not found, expired, or origin mismatch",
    405: r"Method not allowed",
    409: r"Session already answered",
    413: r"Request body too large",
    414: r"Request-uri too long",
    417: r"Expectation failed",
    431: r"Request header fields too large",
    501: r"Not implemented",
    505: r"Http version not supported",
}


def check(response, method="GET"):
    """Check what is true of every response."""
    check_every_response(response, method)
    if response.status >= 300 and method != "HEAD":
        assert re.fullmatch(TEXTS[response.status], response.json["error"]), response


@pytest.fixture
def call(io_loop, service):
    """A function that sends a request, checks the response, and checks that the server still responds."""

    def call_and_check(method, target, body=None, **options):
        async def call_service():
            response = await service.call(method, target, body, **options)
            check(response, method)
            return response

        return io_loop.run_sync(call_service)

    yield call_and_check
    assert call_and_check("GET", "/health").status == 200


@pytest.fixture
def send(io_loop, service):
    """A function that sends bytes and an end of file, and returns the checked response or None."""

    def send_and_check(data, method="GET"):
        async def send_to_service():
            async with service.connect() as connection:
                await connection.send(data)
                connection.writer.write_eof()
                response = await connection.receive(method)
            if response is not None:
                check(response, method)
            assert (await service.call("GET", "/health")).status == 200
            return response

        return io_loop.run_sync(send_to_service)

    return send_and_check


texts = st.text() | st.sampled_from(["offerer", "answerer", "", "\0", "\ud800", "😀" * 257, "x" * 1025])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(["info", "offer", "code", "side", "answer", "candidate"])
bodies = st.dictionaries(names, values) | st.dictionaries(st.text(), values) | values
posts = st.sampled_from(["/lobby/offer", "/answer", "/poll", "/%00/offer"])
# Characters that are invalid in a URL occur both raw and percent-encoded.
paths = st.text(st.sampled_from("/abc%0123456789EFtopicsnr.;:@&=+$,?#~!'()*-_[]\\^|`{}\"<>"), max_size=60).map(
    "/{}".format
)
segments = st.binary(max_size=40).map(lambda data: "".join(f"%{byte:02x}" for byte in data)) | texts.filter(
    lambda text: "\ud800" not in text
).map(segment)
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=200)
header_names = st.from_regex(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,30}", fullmatch=True) | st.sampled_from(
    [
        *(
            "Accept-Encoding",
            "Access-Control-Request-Headers",
            "Authorization",
            "Content-Type",
            "Cookie",
            "Last-Event-ID",
        ),
        *("If-None-Match", "If-Modified-Since", "Range", "Sec-Fetch-Site", "Upgrade", "X-HTTP-Method-Override"),
        *("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"),
    ]
)
# These headers delimit a request and are covered by the tests of the transport.
FRAMING = {"host", "origin", "connection", "content-length", "transfer-encoding", "expect", "keep-alive", "upgrade"}
FRAMING |= {"proxy-connection"}
headers = st.lists(st.tuples(header_names.filter(lambda name: name.lower() not in FRAMING), header_values), max_size=8)


@fuzzed
@given(
    path=posts,
    body=bodies.map(json.dumps).map(str.encode)
    | st.binary(max_size=200)
    | st.binary(max_size=20).map(lambda data: b'{"info":"' + data + b'"}'),
)
def test_any_body_is_accepted_or_gets_a_documented_error(path, body, call):
    response = call("POST", path, body)
    assert response.status in (200, 400, 404)
    assert allowed_origin(response) == ORIGIN


@fuzzed
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"]),
    target=paths.filter(lambda path: "#" not in path)
    | segments.map("/{}/sessions".format)
    | segments.map("/{}".format),
)
def test_any_path_and_method_gets_json_with_cors(method, target, call):
    response = call(method, target, b"{}" if method != "GET" else None)
    assert response.status in (200, 204, 400, 404, 405, 413, 414)
    assert allowed_origin(response) == ORIGIN


numbers = st.integers(-5, 2**70).map(str) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)


@fuzzed
@given(
    page=numbers,
    limit=numbers,
    more=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40),
)
def test_any_query_gets_a_page_or_400(page, limit, more, call):
    page, limit = (text.replace("#", "%23") for text in (page, limit))
    response = call("GET", f"/topics?page={page}&limit={limit}&{more}")
    if response.status == 200:
        assert 1 <= response.json["pagination"]["limit"] <= 1000
        assert 1 <= response.json["pagination"]["page"] <= 2**53
    else:
        assert response.status == 400
    assert allowed_origin(response) == ORIGIN


@fuzzed
@given(
    target=st.sampled_from(["/", "/topics", "/lobby/sessions", "/nowhere", "/answer"]),
    method=st.sampled_from(["GET", "POST", "OPTIONS"]),
    more=headers,
)
def test_unrelated_headers_change_neither_status_nor_cors(target, method, more, call):
    body = b"[" if method == "POST" else None
    expected, response = call(method, target, body), call(method, target, body, headers=more)
    assert (response.status, response.body) == (expected.status, expected.body)
    assert allowed_origin(response) == ORIGIN


@fuzzed
@given(origin=header_values)
def test_any_origin_is_echoed_unchanged_or_refused(origin, call):
    response = call("GET", "/topics", origin=origin)
    stripped = origin.strip(" \t")
    if 0 < len(stripped) <= 512:
        assert (response.status, allowed_origin(response)) == (200, stripped)
    else:
        assert (response.status, allowed_origin(response)) == (400, None)


REQUEST = head("POST", "/lobby/offer", [("Origin", ORIGIN), ("Host", HOST), ("Content-Length", "24")])
REQUEST += b'{"info":"i","offer":"o"}'


@fuzzed
@given(
    at=st.integers(0, len(REQUEST) - 1),
    cut=st.integers(0, 12),
    inserted=st.binary(max_size=12) | st.sampled_from([b"\r\n", b"\0", b"\r\n\r\n", b" ", b":", b"\xff", b"\n"]),
)
def test_damaged_request_gets_json_or_a_closed_connection(at, cut, inserted, send):
    data = REQUEST[:at] + inserted + REQUEST[at + cut :]
    response = send(data, "OPTIONS")
    origin_known = at >= REQUEST.index(HOST.encode())  # a header is complete once the next one starts
    if response is not None and origin_known and b"origin" not in inserted.lower():
        assert allowed_origin(response) == ORIGIN, (data, response)
