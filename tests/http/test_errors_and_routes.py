"""Every endpoint with every error, and every path with every method: statuses, texts and headers, as tables."""

import ipaddress
import itertools
import json
import logging

import pytest
from support.service import (
    HOST,
    NO_SUCH_CODE,
    NOT_FOUND,
    ORIGIN,
    TRANSPORTS,
    allowed_origin,
    check_every_response,
    declared,
    head,
    invalid,
    refused,
    with_origin,
)
from support.sse import open_stream

from tornado_signal import errors
from tornado_signal.http.errors import STATUS
from tornado_signal.settings.origins import Origins
from tornado_signal.settings.settings import Settings

pytest_plugins = ["support.http_fixtures"]

GET = ("GET", "HEAD", "OPTIONS")
POST = ("POST", "OPTIONS")
ROUTES = {
    "/": GET,
    "/topics": GET,
    "/health": GET,
    "/answer": POST,
    "/poll": POST,
    "/withdraw": POST,
    "/refresh": POST,
    "/events": GET,
    "/ice-servers": GET,
    "/openapi.json": GET,
    "/lobby/sessions": GET,
    "/lobby/offer": POST,
    "/lobby/events": GET,
    # Topics that are called like a fixed path.
    "/topics/sessions": GET,
    "/health/offer": POST,
    "/sessions/sessions": GET,
    "/offer/offer": POST,
}
NEEDS_NO_ORIGIN = "/openapi.json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "REPORT", "OPTIONS")

UNKNOWN = [
    "/nowhere",
    "/topics/",
    "/TOPICS",
    "/%74opics",
    "/health/",
    "/poll/",
    "/answer/",
    "/offer",
    "/sessions",
    "/lobby",
    "/lobby/",
    "/lobby/offers",
    "/lobby/Sessions",
    "/lobby/sessions/",
    "/a/b/sessions",
    "/lobby%2Fsessions",
    "//",
    "//topics",
    "/favicon.ico",
    "/index.html?x=<script>",
    "/../health",
    "/lobby/sessions;x",
]

OFFER = {"info": "i", "offer": "o"}
ANSWER = {"code": NO_SUCH_CODE, "side": "answerer", "answer": "a"}
CANDIDATE = {"code": NO_SUCH_CODE, "side": "offerer", "candidate": "c"}
POLL = {"code": NO_SUCH_CODE, "side": "offerer"}
POSTS = {"/lobby/offer": OFFER, "/answer": ANSWER, "/poll": POLL}


def without(fields, *names):
    return {name: value for name, value in fields.items() if name not in names}


# Routes and methods.


def test_the_routes_are_those_of_the_contract():
    """The table of routes has the specification's seven endpoints, the contract's additions and no others."""
    paths = set(declared())
    assert {path for path in paths if path.count("/") == 1} == {path for path in ROUTES if path.count("/") == 1}
    assert paths - {*ROUTES} == {"/{topic}/sessions", "/{topic}/offer", "/{topic}/events"}


def test_every_error_has_a_status():
    """The one table from errors to statuses leaves out no error and claims no 500."""
    kinds = {errors.Passing, *errors.SignalError.__subclasses__(), *errors.Passing.__subclasses__()} - {errors.Passing}
    assert set(STATUS) == kinds
    assert 500 not in STATUS.values()


@pytest.mark.parametrize("path", ROUTES)
async def test_wrong_methods(path, service):
    """A path answers 405 with Allow, in JSON and with CORS, to every method that it does not have."""
    wrong = [method for method in METHODS if method not in ROUTES[path]]
    for method in wrong:
        response = await service.call(method, path, b"" if method == "HEAD" else b"{}")
        assert (response.status, response.headers["Allow"]) == (405, ", ".join(ROUTES[path])), method
        assert allowed_origin(response) == ORIGIN
        assert method == "HEAD" or response.json == {"error": "Method not allowed"}


def nameless(response):
    """The headers of a response, but for the one that is never the same."""
    return sorted(pair for pair in response.headers.get_all() if pair[0] != "X-Request-Id")


@pytest.mark.parametrize("path", [path for path in ROUTES if "GET" in ROUTES[path] and "events" not in path])
async def test_head(path, service):
    """HEAD is answered with the status and headers of GET, and without a body."""
    await service.offer()
    whole, bare = await service.call("GET", path), await service.call("HEAD", path)
    assert (bare.status, bare.body) == (whole.status, b"")
    assert nameless(bare) == nameless(whole)
    assert int(bare.headers["Content-Length"]) == len(whole.body)


@pytest.mark.parametrize("target", ["/topics?page=0", "/%zz/sessions", "/nowhere"])
async def test_head_of_an_error(target, service):
    """An error is answered to HEAD without a body too."""
    whole, bare = await service.call("GET", target), await service.call("HEAD", target)
    assert (bare.status, bare.body) == (whole.status, b"")
    assert whole.status >= 400


@pytest.mark.parametrize("path", [*ROUTES, *UNKNOWN, "*"])
async def test_preflight(path, service):
    """OPTIONS on every path, known or not, answers a preflight (contract B14)."""
    asked = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "content-type, x-more")]
    response = await service.call("OPTIONS", path, headers=asked)
    methods = ", ".join(ROUTES.get(path, ["OPTIONS"]))
    assert (response.status, response.body) == (204, b"")
    assert allowed_origin(response) == ORIGIN
    assert response.headers["Allow"] == response.headers["Access-Control-Allow-Methods"] == methods
    assert response.headers["Access-Control-Allow-Headers"] == "content-type, x-more"
    assert response.headers["Access-Control-Max-Age"] == "7200"


async def test_preflight_that_asks_for_no_headers(service):
    """A preflight that names no headers may still send the one that every body here has."""
    response = await service.call("OPTIONS", "/poll")
    assert response.headers["Access-Control-Allow-Headers"] == "Content-Type"


@pytest.mark.parametrize("target", UNKNOWN)
async def test_unknown_paths(target, service):
    """A path that no endpoint has is 404 in JSON with every method but OPTIONS (contract B13)."""
    for method in METHODS[:-1]:
        response = await service.call(method, target)
        assert (response.status, allowed_origin(response)) == (404, ORIGIN), method
        assert method == "HEAD" or response.json == {"error": "Not found"}


async def test_a_query_changes_no_route(service):
    """Paths are found whatever query follows, also one that looks like a path."""
    assert (await service.call("GET", "/health?/nowhere/x")).status == 200
    assert (await service.call("GET", "/lobby/sessions?a=/b/c")).json == {"sessions": []}
    assert (await service.call("GET", "/topics?%zz&&&=;=%00")).status == 200
    assert refused(await service.call("POST", "/poll?code=x", {})) == (400, invalid("code"))


# The Origin (contract B1, B14).

NO_ORIGIN = {
    "missing": [],
    "empty": [("Origin", "")],
    "blank": [("Origin", "  ")],
    "too long": [("Origin", "o" * 513)],
    "repeated": [("Origin", "https://a.example"), ("Origin", "https://a.example")],
    "empty and good": [("Origin", ""), ("Origin", "https://a.example")],
    "empty, same origin": [("Origin", ""), ("Sec-Fetch-Site", "same-origin")],
    "same site": [("Sec-Fetch-Site", "same-site")],
    "no site": [("Sec-Fetch-Site", "none")],
    "cross-site": [("Sec-Fetch-Site", "cross-site")],
    "a referrer": [("Referer", "https://a.example/")],
}


@pytest.mark.parametrize("case", NO_ORIGIN)
async def test_without_origin(case, service):
    """Without one usable Origin every path answers 400 to every method, before anything else."""
    paths = [*(path for path in ROUTES if path != NEEDS_NO_ORIGIN), "/nowhere"]
    for path, method in itertools.product(paths, ("GET", "POST", "DELETE", "REPORT", "OPTIONS")):
        response = await service.call(method, path, b"[", origin=None, headers=NO_ORIGIN[case])
        assert refused(response) == (400, invalid("Origin")), (method, path)
        assert allowed_origin(response) is None


@pytest.mark.parametrize(
    "origin", ["null", "o" * 512, "https://\xff\xe9.example", "*", "a, b", "file://", "https://app.example/", "%00"]
)
async def test_odd_origins(origin, service):
    """An Origin is whatever bytes it is, is echoed as such, and has sessions of its own."""
    code = await service.offer(origin=origin)
    response = await service.call("POST", "/poll", {"code": code, "side": "offerer"}, origin=origin)
    assert (response.status, allowed_origin(response)) == (200, origin)
    assert await service.topics(origin=origin) == [("lobby", 1)]
    assert await service.topics() == []
    assert refused(await service.call("POST", "/poll", {"code": code, "side": "offerer"})) == (404, NOT_FOUND)


SAME = [("Sec-Fetch-Site", "same-origin")]


@pytest.mark.parametrize(
    ("trusted", "headers", "origin"),
    [
        (None, [("Host", "a.example")], "http://a.example"),
        (None, [("Host", "a.example:8080")], "http://a.example:8080"),
        (None, [("Host", "[::1]:80")], "http://[::1]:80"),
        (None, [("Host", "a.example"), ("X-Forwarded-Proto", "https")], "http://a.example"),
        (None, [("Host", "a.example"), ("X-Forwarded-Host", "b.example")], "http://a.example"),
        ("10.0.0.0/8", [("Host", "a.example"), ("X-Forwarded-Proto", "https")], "http://a.example"),
        ("127.0.0.0/8", [("Host", "a.example"), ("X-Forwarded-Proto", "https")], "https://a.example"),
        (
            "127.0.0.1",
            [("Host", "a"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "b.example:1")],
            "https://b.example:1",
        ),
        ("127.0.0.1", [("Host", "a.example"), ("X-Forwarded-Proto", "gopher")], "http://a.example"),
        ("127.0.0.1", [("Host", "a.example"), ("X-Forwarded-Host", "a b")], None),
        ("127.0.0.1", [("Host", "a.example"), ("X-Forwarded-Host", "a/b")], None),
    ],
)
async def test_same_origin(trusted, headers, origin, start_service):
    """A same-origin GET, which has no Origin in browsers, has that of scheme and host (contract B1)."""
    service = await start_service(trusted_proxies=(ipaddress.ip_network(trusted),) if trusted else ())
    if origin:
        await service.offer(origin=origin)
    response = await service.raw(head("GET", "/lobby/sessions", [*headers, *SAME]))
    check_every_response(response, "GET")
    if origin:
        assert (response.status, allowed_origin(response)) == (200, origin)
        assert len(response.json["sessions"]) == 1
    else:
        assert refused(response) == (400, invalid("Origin"))


async def test_an_origin_wins_over_same_origin(service):
    """A request that has an Origin is of that origin, whatever Sec-Fetch-Site says."""
    response = await service.call("GET", "/", headers=SAME)
    assert allowed_origin(response) == ORIGIN


MAX_BODY_BYTES = Settings().max_body_bytes
LISTED = {"allowed_origins": Origins(frozenset([ORIGIN, "null"]))}


@pytest.mark.parametrize("origin", ["https://evil.example", "https://app.example/", "HTTPS://app.example", "any", "*"])
async def test_not_on_the_allow_list(origin, start_service):
    """Who is not on the allow-list gets 403 from every path and method, and no permission to read it (B14)."""
    service = await start_service(**LISTED)
    for path, method in itertools.product([*ROUTES, "/nowhere"], ("GET", "POST", "DELETE", "REPORT", "OPTIONS")):
        response = await service.call(method, path, b"[", origin=origin)
        assert refused(response) == (403, "Origin not allowed"), (method, path)
        assert allowed_origin(response) is None


async def test_on_the_allow_list(start_service):
    """Who is on the allow-list is served, and a missing Origin is still a 400."""
    service = await start_service(**LISTED)
    for origin in LISTED["allowed_origins"].entries:
        response = await service.call("GET", "/topics", origin=origin)
        assert (response.status, allowed_origin(response)) == (200, origin)
        assert (await service.call("OPTIONS", "/poll", origin=origin)).status == 204
    assert refused(await service.call("GET", "/topics", origin=None)) == (400, invalid("Origin"))
    own = await service.raw(head("GET", "/topics", [("Host", HOST), *SAME]))
    assert refused(own) == (403, "Origin not allowed")


async def test_subdomains_on_the_allow_list(start_service):
    """A wildcard counts for requests, preflights, streams, WebSockets and what the transport refuses alike (B14)."""
    service = await start_service(allowed_origins=Origins(frozenset(["https://*.app.example"])))
    inside = "https://a.b.app.example"
    code = await service.offer(origin=inside)
    paths = [("GET", "/topics"), ("OPTIONS", "/poll"), ("HEAD", "/lobby/events"), ("GET", "/ws"), ("GET", "/nowhere")]
    for origin, allowed in ((inside, True), (ORIGIN, False), ("https://xapp.example", False)):
        for method, path in paths:
            response = await service.raw(head(method, path, with_origin(origin)), method)
            assert (response.status != 403, allowed_origin(response)) == (allowed, origin if allowed else None)
        broken = await service.raw(head("POST", "/poll", with_origin(origin, [("Content-Length", "x")])))
        assert (broken.status, allowed_origin(broken)) == (400, origin if allowed else None)
    # Subdomains are origins of their own.
    assert await service.sessions(origin="https://c.app.example") == []
    assert [each["code"] for each in await service.sessions(origin=inside)] == [code]


def credentials(response):
    """What a response says to pages about cookies, once at most."""
    values = response.headers.get_list("Access-Control-Allow-Credentials")
    assert len(values) <= 1
    return values[0] if values else None


BROKEN = [
    (400, head("POST", "/poll", with_origin(ORIGIN, [("X", "1"), ("Content-Length", "x")]))),
    (417, head("POST", "/poll", with_origin(ORIGIN, [("X", "1"), ("Expect", "miracles")]))),
    (431, head("GET", "/", with_origin(ORIGIN, [("X", "x" * 70_000)]))),
    (501, head("POST", "/poll", with_origin(ORIGIN, [("Transfer-Encoding", "gzip")]))),
]


@pytest.mark.parametrize("listed", [True, False])
async def test_credentials(listed, start_service):
    """With an allow-list, and only then, pages may read what they have sent cookies for, whatever is answered (B14)."""
    service = await start_service(**LISTED if listed else {})
    expected = "true" if listed else None
    found = []
    for method, target, body in [
        *(("GET", path, None) for path in ("/", "/health", "/topics", "/lobby/sessions", "/nowhere", "/ice-servers")),
        *(("HEAD", path, None) for path in ("/topics", "/nowhere")),
        *(("OPTIONS", path, None) for path in ("/poll", "/lobby/offer", "/nowhere")),
        ("POST", "/lobby/offer", OFFER),
        ("POST", "/poll", POLL),
        ("POST", "/poll", b"["),
        ("DELETE", "/poll", None),
        ("POST", "/lobby/offer", b" " * (MAX_BODY_BYTES + 1)),
    ]:
        response = await service.call(method, target, body)
        assert (credentials(response), allowed_origin(response)) == (expected, ORIGIN), (method, target)
        found.append(response.status)
    assert {200, 204, 400, 404, 405, 413} <= set(found)
    for status, raw in BROKEN:
        response = await service.raw(raw)
        assert (response.status, credentials(response), allowed_origin(response)) == (status, expected, ORIGIN)
    async with open_stream(service.port, "/lobby/events") as stream:
        assert stream.headers.get("Access-Control-Allow-Credentials") == expected
    service.site.draining = True
    response = await service.call("GET", "/topics")
    assert (response.status, credentials(response)) == (503, expected)


@pytest.mark.parametrize(("setting", "status"), [("max_connections_per_address", 429), ("max_connections", 503)])
@pytest.mark.parametrize("listed", [True, False])
async def test_credentials_of_a_connection_too_many(listed, setting, status, start_service):
    """The refusal of a connection and that of a rate say the same."""
    service = await start_service(
        unlimited_addresses=(), burst_per_address=1, rate_per_address=1, **{setting: 1}, **LISTED if listed else {}
    )
    expected = "true" if listed else None
    async with service.connect() as first:
        found = []
        for _ in range(2):
            await first.send(head("GET", "/", with_origin(ORIGIN)))
            found.append(await first.receive())
        found.append(await service.raw(head("GET", "/", with_origin(ORIGIN))))
    assert [response.status for response in found] == [200, 429, status]
    assert [credentials(response) for response in found] == [expected] * 3
    assert {allowed_origin(response) for response in found} == {ORIGIN}


async def test_no_credentials_for_others(start_service):
    """Who is not on the allow-list, or says no origin, is not told anything of the kind."""
    service = await start_service(**LISTED)
    for origin in ("https://evil.example", None, ""):
        for method in ("GET", "OPTIONS"):
            response = await service.call(method, "/topics", origin=origin)
            assert response.status in (400, 403)
            assert credentials(response) is None
    response = await service.raw(head("GET", "/", with_origin("https://evil.example", [("X", "1"), ("no name", "")])))
    assert (response.status, credentials(response), allowed_origin(response)) == (400, None, None)


# Bodies (contract B2).

BAD_BODIES = {
    "none": b"",
    "blank": b" \n",
    "not JSON": b"code=1&side=offerer",
    "cut off": b'{"code": "x"',
    "two": b"{}{}",
    "comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "array": b"[]",
    "array with an object": b'[{"info": "i", "offer": "o"}]',
    "string": b'"code"',
    "number": b"1",
    "null": b"null",
    "true": b"true",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "not UTF-8": b'{"info": "\xff"}',
    "UTF-8 of a surrogate": b'{"info": "\xed\xa0\x80"}',
    "UTF-16": json.dumps(OFFER).encode("utf-16"),
    "two byte order marks": 2 * b"\xef\xbb\xbf" + json.dumps(OFFER).encode(),
    "control character": b'{"info": "\x01"}',
    "NUL": b"\x00",
    "deep arrays": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
    "deep without end": b"[" * 200_000,
    "comment": b"{} // x",
    "number of many digits": b'{"a": "\\ud800", "b": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("path", POSTS)
async def test_bad_bodies(path, service):
    """What is not one JSON object is a 400 `body` on each endpoint that takes one."""
    for case, body in BAD_BODIES.items():
        response = await service.call("POST", path, body)
        assert refused(response) == (400, invalid("body")), case
        assert allowed_origin(response) == ORIGIN


async def test_no_body_at_all(service):
    """A POST without Content-Length has an empty body."""
    for path in POSTS:
        assert refused(await service.call("POST", path)) == (400, invalid("body"))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a;b=\xff"])
async def test_content_type_is_not_enforced(kind, service):
    """A body is read as JSON whatever its Content-Type says (contract B2)."""
    headers = [("Content-Type", kind), ("Content-Encoding", "identity")]
    response = await service.call("POST", "/lobby/offer", OFFER, headers=headers)
    assert response.status == 200
    assert len(await service.sessions()) == 1


@pytest.mark.parametrize(
    "body",
    [
        b' \r\n{"info":"i","offer":"o"}\t',
        b'{"offer":"o","info":"i","more":[{"a":null}],"":1}',
        b'{"info":1,"info":"i","offer":"o"}',
        b'{"\\u0069nfo":"i","offer":"\\u006f"}',
        b'{"info":"i","offer":"o","other":"\\ud800"}',
        b'{"info":"i","offer":"o","other":1e999999}',
        b'{"info":"i","offer":"o","other":123456789012345678901234567890}',
    ],
)
async def test_good_bodies(body, service):
    """Every way to write the same JSON object is understood, and unknown fields are passed over."""
    assert (await service.call("POST", "/lobby/offer", body)).status == 200
    (session,) = await service.sessions()
    assert (session["info"], session["offer"]) == ("i", "o")


# Parameters (contract B3 to B9).

NOT_STRINGS = [None, "", 1, 0, True, False, [], ["x"], {}, 1.5, "\ud800", "x\udfff"]
NOT_SIDES = ["Offerer", "offerer ", "both", "ANSWERER", "offerer\0"]


def bad_parameters():
    """Path, body, and the parameter that is to be named."""
    for path, good, names in [
        ("/lobby/offer", OFFER, ("info", "offer")),
        ("/answer", ANSWER, ("code", "side")),
        ("/answer", CANDIDATE, ("code", "side")),
        ("/poll", POLL, ("code", "side")),
    ]:
        for name in names:
            yield path, without(good, name), name
            for value in [*NOT_STRINGS, *(NOT_SIDES if name == "side" else [])]:
                yield path, good | {name: value}, name
    for good, name in [(ANSWER, "answer"), (CANDIDATE, "candidate")]:
        yield "/answer", without(good, name), "answer or candidate"
        for value in NOT_STRINGS:
            yield "/answer", good | {name: value}, "answer or candidate" if value is None else name
    both = ANSWER | CANDIDATE
    yield "/answer", both, "answer or candidate"
    yield "/answer", both | {"answer": ""}, "answer or candidate"
    yield "/answer", both | {"answer": 0, "candidate": False}, "answer or candidate"
    yield "/answer", both | {"answer": None, "candidate": None}, "answer or candidate"
    yield "/answer", both | {"answer": None, "candidate": 1}, "candidate"
    yield "/answer", both | {"answer": "", "candidate": None}, "answer"
    yield "/answer", ANSWER | {"side": "offerer"}, "side"
    yield "/lobby/offer", OFFER | {"info": "x" * 1025}, "info"
    yield "/lobby/offer", OFFER | {"info": "😀" * 1025}, "info"


async def test_bad_parameters(service):
    """Each required parameter that is absent or not what it must be is a 400 that names it."""
    rows = list(bad_parameters())
    assert len(rows) > 100
    for path, body, name in rows:
        response = await service.call("POST", path, body)
        assert refused(response) == (400, invalid(name)), (path, body)
        assert allowed_origin(response) == ORIGIN


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/%zz/offer", b"[", "topic"),
        ("/lobby/offer", b"[", "body"),
        ("/lobby/offer", {}, "info"),
        ("/lobby/offer", {"offer": 1}, "info"),
        ("/lobby/offer", {"info": "i"}, "offer"),
        ("/answer", {}, "code"),
        ("/answer", {"code": 1, "side": "x", "answer": 1, "candidate": 1}, "code"),
        ("/answer", {"code": NO_SUCH_CODE, "side": "x", "answer": "a", "candidate": "c"}, "answer or candidate"),
        ("/answer", {"code": NO_SUCH_CODE, "side": "x", "answer": 1}, "answer"),
        ("/answer", {"code": NO_SUCH_CODE, "side": "x", "candidate": 1}, "candidate"),
        ("/answer", {"code": "no UUID", "side": "x", "candidate": "c"}, "side"),
        ("/poll", {}, "code"),
        ("/poll", {"side": "x"}, "code"),
        ("/poll", {"code": "no UUID", "side": "x"}, "side"),
    ],
)
async def test_order_of_checks(path, body, name, service):
    """Of several mistakes the first is named: path, body, parameters in the specification's order (B6)."""
    assert refused(await service.call("POST", path, body)) == (400, invalid(name))


async def test_the_session_comes_last(service):
    """A parameter's mistake is named for a session that exists as for one that does not."""
    code = await service.offer()
    for each in (code, NO_SUCH_CODE):
        response = await service.call("POST", "/answer", {"code": each, "side": "offerer", "answer": "a"})
        assert refused(response) == (400, invalid("side"))


NO_SESSION = [
    NO_SUCH_CODE,
    "x",
    " ",
    "😀",
    "\0",
    "x" * 100_000,
    "0" * 36,
    "-" * 36,
    "0" * 32,
    "{" + NO_SUCH_CODE + "}",
    "urn:uuid:" + NO_SUCH_CODE,
    NO_SUCH_CODE[:-1],
    NO_SUCH_CODE + "0",
    NO_SUCH_CODE[:-1] + "g",
    NO_SUCH_CODE[:-2] + "  ",
    NO_SUCH_CODE[:-1] + "٣",
]


async def test_no_such_session(service):
    """A code that is no session's, UUID or not, is 404 with each operation (contract B7)."""
    code = await service.offer()
    shifted = [code.replace("-", ""), f" {code}", f"{code}\n", code[1:] + code[0]]
    for each in [*NO_SESSION, *shifted]:
        for path, body in [("/answer", ANSWER), ("/answer", CANDIDATE), ("/poll", POLL)]:
            response = await service.call("POST", path, body | {"code": each})
            assert refused(response) == (404, NOT_FOUND), each
            assert allowed_origin(response) == ORIGIN


async def test_missing_expired_and_foreign_look_alike(service):
    """The 404 of a session that never was, has expired or is another origin's is the same to the byte."""
    expired = await service.offer()
    service.clock.ms += service.settings.session_timeout_ms
    foreign = await service.offer(origin="https://other.example")
    for path, body in [("/answer", ANSWER), ("/answer", CANDIDATE), ("/poll", POLL)]:
        answers = [await service.call("POST", path, body | {"code": code}) for code in (NO_SUCH_CODE, expired, foreign)]
        assert [refused(each) for each in answers] == [(404, NOT_FOUND)] * 3
        assert len({(each.body, *nameless(each)) for each in answers}) == 1
    assert (await service.post("/poll", code=foreign, side="answerer", origin="https://other.example"))["offer"]


async def test_already_answered(service):
    """The first answer stands, the same again is a success, another one is 409, candidates go on (B9)."""
    code = await service.offer()
    await service.post("/answer", code=code, side="answerer", answer="first")
    for _ in range(2):
        second = await service.call("POST", "/answer", {"code": code, "side": "answerer", "answer": "second"})
        assert refused(second) == (409, "Session already answered")
        assert allowed_origin(second) == ORIGIN
        assert await service.post("/answer", code=code, side="answerer", answer="first") == {"success": True}
    await service.post("/answer", code=code, side="answerer", candidate="c")
    found = await service.post("/poll", code=code, side="offerer")
    assert found == {"answer": "first", "answerCandidates": ["c"]}


# Topics and queries.

BAD_TOPICS = [
    "",
    "a" * 257,
    "%F0%9F%98%80" * 257,
    "%",
    "%2",
    "%zz",
    "a%",
    "%ff",
    "%C3",
    "%C3%28",
    "%ED%A0%80",
    "%u0041",
]


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_bad_topics(topic, service):
    """A topic that is empty, too long or cannot be decoded is a 400, to offer and to list (B3, B13)."""
    assert refused(await service.call("POST", f"/{topic}/offer", OFFER)) == (400, invalid("topic"))
    listing = await service.call("GET", f"/{topic}/sessions")
    assert refused(listing) == (400, invalid("topic"))
    assert allowed_origin(listing) == ORIGIN


BAD_NUMBERS = ["", "0", "-1", "1.0", "1e3", "x", "0x10", "+1", "%201", "1%20", "%D9%A3", "null", "true", "%00", "%ff"]


@pytest.mark.parametrize("name", ["page", "limit"])
async def test_bad_numbers(name, service):
    """A page or limit that is not one whole number from 1 to 2^53 is a 400 that names it (B8)."""
    queries = [f"{name}={value}" for value in [*BAD_NUMBERS, str(2**53 + 1), "9" * 5000]]
    for query in [*queries, name, f"{name}=1&{name}=1", f"{name}=1&{name}="]:
        response = await service.call("GET", f"/topics?{query}")
        assert refused(response) == (400, invalid(name)), query
        assert allowed_origin(response) == ORIGIN


async def test_page_is_checked_before_limit(service):
    """Of two mistakes in a query the page is named (B6)."""
    assert refused(await service.call("GET", "/topics?limit=0&page=0")) == (400, invalid("page"))


TRAILERS = {
    "one": b"X: 1\r\n",
    "the Origin": b"Origin: https://evil.example\r\n",
    "the Host": b"Host: evil.example\r\n",
    "many": b"".join(b"X-%d: 1\r\n" % number for number in range(500)),
}


@pytest.mark.parametrize("case", TRAILERS)
async def test_trailers(case, service):
    """A trailer behind a chunked body is dropped: it is no header, also when more requests come right behind it."""
    body = json.dumps(OFFER).encode()
    framed = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, TRAILERS[case])
    publish = head("POST", "/lobby/offer", with_origin(ORIGIN, [("Transfer-Encoding", "chunked")])) + framed
    listing = head("GET", "/lobby/sessions", with_origin(ORIGIN))
    async with service.connect() as connection:
        await connection.send(publish + publish + listing)
        first, second, listed = [await connection.receive() for _ in range(3)]
    assert [response.status for response in (first, second, listed)] == [200] * 3
    assert {allowed_origin(response) for response in (first, second, listed)} == {ORIGIN}
    codes = [second.json["code"], first.json["code"]]
    assert [each["code"] for each in listed.json["sessions"]] == codes
    assert await service.sessions(origin="https://evil.example") == []


async def test_trailers_without_end(service):
    """Trailers are bounded like headers."""
    begun = head("POST", "/lobby/offer", with_origin(ORIGIN, [("Transfer-Encoding", "chunked")])) + b"2\r\n{}\r\n0\r\n"
    for more in (b"X: " + b"x" * 50_000, b"X: 1\r\n" * 20_000):
        response = await service.raw(begun + more)
        assert response.status == 431
        assert response.headers["Connection"] == "close"
    assert await service.sessions() == []


@pytest.mark.parametrize(
    "length", ["0" * 5000, "0" * 4999 + "2", "9" * 5000, "0" * 21, "1" * 21, "1" * 20, "0" * 20_000]
)
async def test_lengths_that_are_no_numbers(length, service):
    """A `Content-Length` that no body has, or of more digits than any needs, is refused in JSON, and logged nowhere."""
    response = await service.raw(head("POST", "/poll", with_origin(ORIGIN, [("Content-Length", length)])) + b"{}")
    assert response.status == (413 if len(length) == 20 else 400)
    assert (response.headers["Content-Type"], allowed_origin(response)) == ("application/json", ORIGIN)
    assert set(response.json) == {"error"}


async def test_a_byte_order_mark(service):
    """One byte order mark before the JSON of any endpoint is taken."""
    mark = b"\xef\xbb\xbf"
    response = await service.call("POST", "/lobby/offer", mark + json.dumps(OFFER).encode())
    assert response.status == 200
    fields = {"code": response.json["code"], "side": "answerer"}
    for path, more in [
        ("/poll", {}),
        ("/answer", {"answer": "a"}),
        ("/refresh", {}),
        ("/withdraw", {}),
    ]:
        response = await service.call("POST", path, mark + json.dumps(fields | more).encode())
        assert response.status == 200, path
    assert refused(await service.call("POST", "/poll", mark)) == (400, invalid("body"))


# Too much, and too late (contract B15).


def offer_of(size):
    """A body of exactly so many bytes."""
    empty = json.dumps({"info": "i", "offer": ""}).encode()
    return json.dumps({"info": "i", "offer": "o" * (size - len(empty))}).encode()


async def chunked(service, target, body, origin=ORIGIN):
    """POST a body of unknown length."""
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    response = await service.raw(head("POST", target, with_origin(origin, [("Transfer-Encoding", "chunked")])) + framed)
    check_every_response(response, "POST")
    return response


async def test_largest_body(service):
    """A body of exactly 256 KiB is taken, whole or in chunks."""
    assert MAX_BODY_BYTES == 256 * 1024
    body = offer_of(MAX_BODY_BYTES)
    assert len(body) == MAX_BODY_BYTES
    assert (await service.call("POST", "/lobby/offer", body)).status == 200
    assert (await chunked(service, "/lobby/offer", body)).status == 200
    first, second = await service.sessions()
    assert first["offer"] == second["offer"] == json.loads(body)["offer"]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 3 * MAX_BODY_BYTES])
async def test_too_large_a_body(path, size, service):
    """A larger body is 413, whether its length was announced or not, and whatever it holds."""
    for response in (
        await service.call("POST", path, offer_of(size)),
        await chunked(service, path, offer_of(size)),
        await service.call("POST", path, b"\xff" * size),
    ):
        assert refused(response) == (413, "Request body too large")
        assert allowed_origin(response) == ORIGIN
    assert await service.sessions() == []


async def test_too_large_is_said_before_it_comes(service):
    """A Content-Length over the limit is refused although not one byte of the body was sent."""
    headers = with_origin(ORIGIN, [("Content-Length", "1000000000000"), ("Expect", "100-continue")])
    response = await service.raw(head("POST", "/poll", headers))
    assert refused(response) == (413, "Request body too large")


async def test_origin_and_path_come_before_the_size(service):
    """The body's size is a matter of the body, so Origin and path come first (B6)."""
    body = offer_of(MAX_BODY_BYTES + 1)
    assert refused(await service.call("POST", "/poll", body, origin=None)) == (400, invalid("Origin"))
    assert refused(await service.call("POST", "/nowhere", body)) == (404, "Not found")
    assert refused(await service.call("POST", "/topics", body)) == (405, "Method not allowed")
    assert refused(await service.call("POST", "/%zz/offer", body)) == (400, invalid("topic"))


@pytest.mark.parametrize("path", [*ROUTES, "/nowhere"])
async def test_draining(path, service):
    """A server that stops answers 503 with Retry-After, in JSON and with CORS, to what still comes."""
    service.site.draining = True
    for method in ("GET", "POST", "DELETE", "REPORT", "OPTIONS"):
        response = await service.call(method, path, b"[")
        assert refused(response) == (503, "Service unavailable"), method
        assert int(response.headers["Retry-After"]) >= 1
        assert allowed_origin(response) == ORIGIN
    without = (503, "Service unavailable") if path == NEEDS_NO_ORIGIN else (400, invalid("Origin"))
    assert refused(await service.call("GET", path, origin=None)) == without


async def test_store_out_of_service(service):
    """While the store cannot be used everything that needs it is 503 with Retry-After, and the rest goes on."""
    await service.close_store()
    for method, path, body in [
        ("GET", "/topics", None),
        ("GET", "/lobby/sessions", None),
        ("HEAD", "/lobby/sessions", None),
        *(("POST", path, body) for path, body in POSTS.items()),
        ("POST", "/answer", CANDIDATE),
    ]:
        response = await service.call(method, path, body)
        assert (response.status, allowed_origin(response)) == (503, ORIGIN), path
        assert int(response.headers["Retry-After"]) >= 1
        assert method == "HEAD" or refused(response) == (503, "Service unavailable")
    assert (await service.call("GET", "/health")).status == 200
    assert refused(await service.call("POST", "/poll", {})) == (400, invalid("code"))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_defect(service, caplog, monkeypatch):
    """A defect is a 500 that says nothing more, and one line in the log that names nobody's data."""

    async def broken(*arguments, **options):
        raise ZeroDivisionError

    for name in ("read", "create", "topics", "answer"):
        monkeypatch.setattr(service.store, name, broken)
    requests = [
        ("POST", "/poll?hidden-query", POLL | {"code": "5ec1e700-0000-4000-8000-000000000000"}),
        ("POST", "/hidden-topic/offer", {"info": "hidden-info", "offer": "hidden-offer"}),
        ("GET", "/topics?hidden-query", None),
        ("POST", "/answer", ANSWER | {"answer": "hidden-answer"}),
    ]
    for method, target, body in requests:
        response = await service.call(method, target, body, origin="https://hidden.example")
        assert refused(response) == (500, "Internal server error")
        assert allowed_origin(response) == "https://hidden.example"
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(logged) == len(requests)
    assert all(record.exc_info[0] is ZeroDivisionError for record in logged)
    text = caplog.text
    assert not [word for word in ("hidden", "5ec1e7") if word in text.lower()]
    caplog.clear()
