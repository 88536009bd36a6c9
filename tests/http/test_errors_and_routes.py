"""Tables of every endpoint with every error, and every path with every method: statuses, texts and headers."""

import ipaddress
import itertools
import json

import pytest
from support.searches import some
from support.service import (
    HOST,
    NO_SUCH_CODE,
    ORIGIN,
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
from tornado_signal.service.statuses import STATUS
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import Settings
from tornado_signal.system.lifecycle import DRAINING

GET = ("GET", "HEAD", "OPTIONS")
POST = ("POST", "OPTIONS")
ROUTES = dict.fromkeys(["/", "/topics", "/health", "/events", "/ice-servers", "/nearby", "/openapi.json"], GET)
ROUTES |= dict.fromkeys(["/answer", "/poll", "/withdraw", "/refresh", "/report"], POST)
ROUTES |= {"/lobby/sessions": GET, "/lobby/offer": POST, "/lobby/events": GET}
# Topics with the names of fixed paths.
ROUTES |= {"/topics/sessions": GET, "/health/offer": POST, "/sessions/sessions": GET, "/offer/offer": POST}
# Topics that look like the template of a path.
ROUTES |= {"/{topic}/sessions": GET, "/{topic}/offer": POST, "/{topic}/events": GET}
NEEDS_NO_ORIGIN = "/openapi.json"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "REPORT", "BREW", "OPTIONS")

UNKNOWN = [
    *(
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
    ),
    *("/lobby/", "/lobby/offers", "/lobby/Sessions", "/lobby/sessions/", "/lobby/sessions;x", "/lobby%2Fsessions"),
    *("/a/b/sessions", "//", "//topics", "/favicon.ico", "/index.html?x=<script>", "/../health"),
]

OFFER = {"info": "i", "offer": "o"}
POLL = {"code": NO_SUCH_CODE, "side": "offerer"}
POSTS = some(path.replace("{topic}", "lobby") for path, method in declared().items() if method == "POST")


def test_routes_are_the_documented_ones():
    paths = set(declared())
    assert {path for path in paths if path.count("/") == 1} == {path for path in ROUTES if path.count("/") == 1}
    assert paths <= {*ROUTES}


def test_every_error_has_a_status():
    error_types = {
        errors.TransientError,
        *errors.SignalError.__subclasses__(),
        *errors.TransientError.__subclasses__(),
    } - {errors.TransientError}
    assert set(STATUS) == error_types
    assert 500 not in STATUS.values()


async def test_unsupported_method_is_405_with_allow(service):
    wrong = some((path, method) for path in ROUTES for method in METHODS if method not in ROUTES[path])
    for path, method in wrong:
        response = await service.call(method, path, b"" if method == "HEAD" else b"{}")
        assert (response.status, response.headers["Allow"]) == (405, ", ".join(ROUTES[path])), (path, method)
        assert allowed_origin(response) == ORIGIN
        assert method == "HEAD" or response.json == {"error": "Method not allowed"}


async def test_checks_have_the_documented_order(start_service, tmp_path):
    (tmp_path / "main.secret").write_bytes(b"s" * 40)
    (tmp_path / "main.secret").chmod(0o600)
    service = await start_service(auth_keys=tmp_path / "main.secret")
    for method, path, origin, expected in (
        ("PUT", "/nowhere", "", (400, "Missing or invalid required parameter: Origin")),
        ("PUT", "/nowhere", ORIGIN, (404, "Not found")),
        ("PUT", "/%zz/offer", ORIGIN, (401, "Missing or invalid token")),
        ("PROPFIND", "/%zz/nowhere", ORIGIN, (404, "Not found")),
    ):
        assert refused(await service.call(method, path, b"x", origin=origin)) == expected
    service = await start_service()
    for path, expected in (
        ("/%zz/sessions", (405, "Method not allowed")),
        ("/%zz/offer", (400, "Missing or invalid required parameter: topic")),
        ("/t/offer", (400, "Missing or invalid required parameter: body")),
    ):
        assert refused(await service.call("POST", path, b"x")) == expected
    body = offer_of(MAX_BODY_BYTES + 1)
    assert refused(await service.call("POST", "/poll", body, origin=None)) == (400, invalid("Origin"))
    for path, expected in (
        ("/nowhere", (404, "Not found")),
        ("/topics", (405, "Method not allowed")),
        ("/%zz/offer", (400, invalid("topic"))),
    ):
        assert refused(await service.call("POST", path, body)) == expected


def headers_without_id(response):
    """Return the headers of a response without the request id."""
    return sorted(pair for pair in response.headers.get_all() if pair[0] != "X-Request-Id")


async def test_head_has_the_status_and_headers_of_get_without_a_body(service):
    await service.offer()
    found = [(path, 200) for path in ROUTES if "GET" in ROUTES[path] and "events" not in path]
    for path, status in (*found, ("/topics?page=0", 400), ("/%zz/sessions", 400), ("/nowhere", 404)):
        get_response, head_response = await service.call("GET", path), await service.call("HEAD", path)
        assert (head_response.status, get_response.status, head_response.body) == (status, status, b"")
        assert headers_without_id(head_response) == headers_without_id(get_response)
        assert int(head_response.headers["Content-Length"]) == len(get_response.body)


async def test_every_path_answers_a_preflight(service):
    wished = [("Access-Control-Request-Headers", "content-type, x-more")]
    asked = ((wished, "content-type, x-more"), ([], "Content-Type"))
    for path, (headers, allowed) in itertools.product([*ROUTES, *UNKNOWN, "*"], asked):
        request_headers = [("Access-Control-Request-Method", "POST"), *headers]
        response = await service.call("OPTIONS", path, headers=request_headers)
        methods = ", ".join(ROUTES.get(path, ["OPTIONS"]))
        assert (response.status, response.body) == (204, b""), path
        assert allowed_origin(response) == ORIGIN
        assert response.headers["Allow"] == response.headers["Access-Control-Allow-Methods"] == methods
        assert response.headers["Access-Control-Allow-Headers"] == allowed
        assert response.headers["Access-Control-Max-Age"] == "7200"


async def test_options_of_the_whole_server_need_no_origin(service):
    response = await service.call("OPTIONS", "*", origin=None)
    assert (response.status, response.headers["Allow"]) == (204, "OPTIONS")
    assert (await service.call("OPTIONS", "/nowhere", origin=None)).status == 400


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(("status", "path", "value"), [(414, "x" * 70_000, ""), (431, "", "x" * 70_000)])
async def test_every_page_can_read_that_a_head_is_too_large(status, path, value, listed, start_service):
    service = await start_service(**LISTED if listed else {})
    response = await service.raw(head("GET", f"/{path}", [("Host", "x"), ("X", value), ("Origin", ORIGIN)]))
    assert (response.status, allowed_origin(response)) == (status, "*")


async def test_other_methods_have_one_name_in_metrics(service):
    for method in METHODS:
        await service.call(method, "/health")
    names = {name for _, name, _ in service.shared.log.metrics.requests}
    assert names == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "unknown"}


async def test_unknown_paths_are_404_with_every_method(service):
    for target, method in itertools.product(UNKNOWN, ("GET", "HEAD", "POST", "PROPFIND")):
        response = await service.call(method, target)
        assert (response.status, allowed_origin(response)) == (404, ORIGIN), (target, method)
        assert method == "HEAD" or response.json == {"error": "Not found"}


async def test_query_does_not_affect_the_route(service):
    assert (await service.call("GET", "/health?/nowhere/x")).status == 200
    assert (await service.call("GET", "/lobby/sessions?a=/b/c")).json == {"sessions": []}
    assert (await service.call("GET", "/topics?%zz&&&=;=%00")).status == 200
    assert refused(await service.call("POST", "/poll?code=x", {})) == (400, invalid("code"))


async def test_query_has_at_most_32_fields(service):
    for fields, status in ((32, 200), (33, 400), (10_000, 400)):
        response = await service.raw(head("GET", "/topics?" + "&".join(["a"] * fields), with_origin(ORIGIN)))
        assert (response.status, allowed_origin(response)) == (status, ORIGIN)


# The Origin header (docs/decisions.md#missing-origin, docs/decisions.md#cors).

GOOD = ("Origin", "https://a.example")
NO_ORIGIN = [
    *([], [("Origin", "")], [("Origin", "  ")], [("Origin", "o" * 513)], [GOOD, GOOD], [("Origin", ""), GOOD]),
    [("Origin", ""), ("Sec-Fetch-Site", "same-origin")],
    *([("Sec-Fetch-Site", site)] for site in ("same-site", "none", "cross-site")),
    *([("Referer", referer)] for referer in ("", "about:blank", "https:///x", "file:///x", "https://a.example\\x")),
    [("Referer", "https://user@a.example/")],
    [("Origin", ""), ("Referer", "https://a.example/")],
]


async def test_missing_or_invalid_origin_is_400_everywhere(service):
    paths = [*(path for path in ROUTES if path != NEEDS_NO_ORIGIN), "/nowhere"]
    for headers, path, method in [
        *itertools.product(NO_ORIGIN[:1], paths, ("GET", "POST", "DELETE", "REPORT", "OPTIONS")),
        *itertools.product(NO_ORIGIN[1:], ("/topics", "/poll", "/lobby/events", "/nowhere"), ("GET", "OPTIONS")),
    ]:
        response = await service.call(method, path, b"[", origin=None, headers=headers)
        assert refused(response) == (400, invalid("Origin")), (method, path, headers)
        assert allowed_origin(response) is None


async def test_other_origins_are_echoed_unchanged(service):
    for origin in (
        "null",
        "o" * 512,
        "https://\xff\xe9.example",
        "*",
        "a, b",
        "file://",
        "%00",
        "https://A.example:443",
    ):
        response = await service.call("GET", "/topics", origin=origin)
        assert (response.status, allowed_origin(response)) == (200, origin)


SAME = [("Sec-Fetch-Site", "same-origin")]


@pytest.mark.parametrize(
    ("trusted", "headers", "origin"),
    [
        (None, [("Host", "a.example:8080"), ("X-Forwarded-Proto", "https")], "http://a.example:8080"),
        ("127.0.0.1", [("Host", "a"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "b:1")], "https://b:1"),
        ("127.0.0.1", [("Host", "a.example"), ("X-Forwarded-Host", "a b")], None),
    ],
)
async def test_same_origin_get_uses_the_origin_of_scheme_and_host(trusted, headers, origin, start_service):
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


PAGE = "https://a.example:8443"


async def test_a_get_without_an_origin_has_that_of_its_referer(service):
    """A proxy that changes Host and scheme, as most do by default, forwards it."""
    await service.offer(origin=PAGE)
    for path, method, more in itertools.product(
        ("", "/", "/room?a#b", "?a"), ("GET", "HEAD"), ([], SAME, [("Sec-Fetch-Site", "cross-site")])
    ):
        headers = [("Host", "127.0.0.1:3000"), ("Referer", PAGE + path), *more]
        response = await service.raw(head(method, "/lobby/sessions", headers), method)
        assert (response.status, allowed_origin(response)) == (200, PAGE)
        assert method == "HEAD" or len(response.json["sessions"]) == 1
    body = {"info": "i", "offer": "o"}
    for headers in ([("Referer", PAGE)], SAME, [("Referer", PAGE), *SAME]):
        response = await service.call("POST", "/lobby/offer", body, origin=None, headers=headers)
        assert refused(response) == (400, invalid("Origin"))
    other = await service.call("GET", "/lobby/sessions", headers=[("Referer", PAGE)])
    assert (allowed_origin(other), other.json) == (ORIGIN, {"sessions": []})


async def test_the_origin_of_a_referer_must_be_allowed(start_service):
    service = await start_service(allowed_origins=AllowedOrigins(frozenset([ORIGIN])))
    for page, status in ((ORIGIN, 200), (PAGE, 403)):
        response = await service.call("GET", "/topics", origin=None, headers=[("Referer", page + "/")])
        assert response.status == status


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("127.0.0.1:3000", ["Host", "proxy_set_header Host", "ProxyPreserveHost"]),
        ("a.example:8443", ["scheme", "X-Forwarded-Proto", "--trusted-proxies"]),
    ],
)
async def test_one_warning_names_the_setting_of_the_proxy(host, settings, service, caplog):
    for site in ("cross-site", *["same-origin"] * 3):
        headers = [("Host", host), ("Referer", f"{PAGE}/secret"), ("Sec-Fetch-Site", site)]
        assert (await service.raw(head("GET", "/topics", headers))).status == 200
    same = [("Host", "a.example"), ("Referer", "http://a.example/"), *SAME]
    assert (await service.raw(head("GET", "/topics", same))).status == 200
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(setting in warning for setting in settings)
    assert "secret" not in warning


MAX_BODY_BYTES = Settings().max_body_bytes
LISTED = {"allowed_origins": AllowedOrigins(frozenset([ORIGIN, "null"]))}


@pytest.mark.parametrize(("listed", "warnings"), [(None, 1), (frozenset({"null"}), 0)])
async def test_one_warning_names_the_origin_null(listed, warnings, start_service, caplog):
    service = await start_service(allowed_origins=listed and AllowedOrigins(listed))
    for _ in range(2):
        assert (await service.call("GET", "/lobby/sessions", origin="null")).status == 200
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["--allowed-origins" in warning for warning in found] == [True] * warnings


async def test_origin_outside_the_allow_list_is_403_everywhere(start_service):
    service = await start_service(**LISTED)
    others = ("https://evil.example", "https://app.example/", "HTTPS://app.example", "any", "*")
    for origin, path, method in [
        *itertools.product(others[:1], [*ROUTES, "/nowhere"], ("GET", "POST", "DELETE", "REPORT", "OPTIONS")),
        *itertools.product(others[1:], ("/topics", "/poll", "/lobby/events", "/nowhere"), ("GET", "OPTIONS")),
    ]:
        response = await service.call(method, path, b"[", origin=origin)
        assert refused(response) == (403, "Origin not allowed"), (method, path)
        assert allowed_origin(response) is credentials(response) is None
    response = await service.raw(head("GET", "/", with_origin(origin, [("X", "1"), ("no name", "")])))
    assert (response.status, credentials(response), allowed_origin(response)) == (400, None, None)


async def test_origins_on_the_allow_list_are_served(start_service):
    service = await start_service(**LISTED)
    for origin in LISTED["allowed_origins"].entries:
        response = await service.call("GET", "/topics", origin=origin, headers=SAME)
        assert (response.status, allowed_origin(response)) == (200, origin)
        assert (await service.call("OPTIONS", "/poll", origin=origin)).status == 204
    for origin, method in itertools.product((None, ""), ("GET", "OPTIONS")):
        response = await service.call(method, "/topics", origin=origin)
        assert (refused(response), credentials(response)) == ((400, invalid("Origin")), None)
    own = await service.raw(head("GET", "/topics", [("Host", HOST), *SAME]))
    assert refused(own) == (403, "Origin not allowed")


async def test_wildcard_of_the_allow_list_applies_everywhere(start_service):
    service = await start_service(allowed_origins=AllowedOrigins(frozenset(["https://*.app.example"])))
    inside = "https://a.b.app.example"
    code = await service.offer(origin=inside)
    paths = [("GET", "/topics"), ("OPTIONS", "/poll"), ("HEAD", "/lobby/events"), ("GET", "/ws"), ("GET", "/nowhere")]
    for origin, allowed in ((inside, True), (ORIGIN, False), ("https://xapp.example", False)):
        for method, path in paths:
            response = await service.raw(head(method, path, with_origin(origin)), method)
            assert (response.status != 403, allowed_origin(response)) == (allowed, origin if allowed else None)
        broken = await service.raw(head("POST", "/poll", with_origin(origin, [("Content-Length", "x")])))
        assert (broken.status, allowed_origin(broken)) == (400, origin if allowed else None)
    # Each subdomain is an origin of its own.
    assert await service.sessions(origin="https://c.app.example") == []
    assert [session["code"] for session in await service.sessions(origin=inside)] == [code]


def credentials(response):
    """Return Access-Control-Allow-Credentials, which occurs at most once."""
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
async def test_credentials_are_allowed_only_with_an_allow_list(listed, start_service):
    service = await start_service(**LISTED if listed else {})
    expected = "true" if listed else None
    statuses = []
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
        statuses.append(response.status)
    assert {200, 204, 400, 404, 405, 413} <= set(statuses)
    for status, raw in BROKEN:
        response = await service.raw(raw)
        assert (response.status, credentials(response), allowed_origin(response)) == (status, expected, ORIGIN)
    async with open_stream(service.port, "/lobby/events") as stream:
        assert stream.headers.get("Access-Control-Allow-Credentials") == expected
    service.shared.lifecycle.reach(DRAINING)
    response = await service.call("GET", "/topics")
    assert (response.status, credentials(response)) == (503, expected)


# Bodies (docs/decisions.md#request-body).

BAD_BODIES = [None, b"", b" \n", b"\x00", b"code=1&side=offerer", b"{}{}", b"[]", b'[{"info": "i", "offer": "o"}]']
BAD_BODIES += [b'"code"', b"1", b"null", b"true", b"\xef\xbb\xbf", 2 * b"\xef\xbb\xbf" + json.dumps(OFFER).encode()]
BAD_BODIES += [b"[" * 200_000, b'{"a": "\\ud800", "b": ' + b"9" * 5000 + b"}"]


async def test_body_that_is_not_one_json_object_is_400(service):
    for path, body in itertools.product(POSTS, BAD_BODIES):
        response = await service.call("POST", path, body)
        assert refused(response) == (400, invalid("body")), (path, body[:50])
        assert allowed_origin(response) == ORIGIN


GOOD_BODIES = [
    b'\xef\xbb\xbf{"info":"i","offer":"o"}',
    b' \r\n{"info":"i","offer":"o"}\t',
    b'{"offer":"o","info":"i","more":[{"a":null}],"":1}',
    b'{"info":1,"info":"i","offer":"o"}',
    b'{"\\u0069nfo":"i","offer":"\\u006f"}',
    b'{"info":"i","offer":"o","other":"\\ud800"}',
    b'{"info":"i","offer":"o","other":1e999999}',
    b'{"info":"i","offer":"o","other":123456789012345678901234567890}',
]


async def test_equivalent_bodies_are_accepted(service):
    for topic, body in enumerate(GOOD_BODIES):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a;b=\xff"):
            headers = [("Content-Type", kind), ("Content-Encoding", "identity")]
            assert (await service.call("POST", f"/{topic}/offer", body, headers=headers)).status == 200
        assert {(session["info"], session["offer"]) for session in await service.sessions(str(topic))} == {("i", "o")}


async def test_trailers_have_the_limits_of_headers(service):
    start = head("POST", "/lobby/offer", with_origin(ORIGIN, [("Transfer-Encoding", "chunked")])) + b"2\r\n{}\r\n0\r\n"
    for trailers in (b"X: " + b"x" * 50_000, b"X: 1\r\n" * 20_000):
        response = await service.raw(start + trailers)
        assert response.status == 431
        assert response.headers["Connection"] == "close"
    assert await service.sessions() == []


# Oversized bodies, and unavailable servers (docs/decisions.md#overload-responses).


def offer_of(size):
    empty = json.dumps({"info": "i", "offer": ""}).encode()
    return json.dumps({"info": "i", "offer": "o" * (size - len(empty))}).encode()


async def chunked(service, target, body, origin=ORIGIN):
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    response = await service.raw(head("POST", target, with_origin(origin, [("Transfer-Encoding", "chunked")])) + framed)
    check_every_response(response, "POST")
    return response


async def test_body_of_256_kib_is_accepted_with_or_without_chunks(service):
    assert MAX_BODY_BYTES == 256 * 1024
    body = offer_of(MAX_BODY_BYTES)
    assert len(body) == MAX_BODY_BYTES
    assert (await service.call("POST", "/lobby/offer", body)).status == 200
    assert (await chunked(service, "/lobby/offer", body)).status == 200
    first, second = await service.sessions()
    assert first["offer"] == second["offer"] == json.loads(body)["offer"]


async def test_oversized_body_is_413_with_or_without_content_length(service):
    for path, size in itertools.product(POSTS, (MAX_BODY_BYTES + 1, 3 * MAX_BODY_BYTES)):
        for response in (
            await service.call("POST", path, offer_of(size)),
            await chunked(service, path, offer_of(size)),
            await service.call("POST", path, b"\xff" * size),
        ):
            assert refused(response) == (413, "Request body too large")
            assert allowed_origin(response) == ORIGIN
    assert await service.sessions() == []


async def test_stopping_server_answers_503(service):
    service.shared.lifecycle.reach(DRAINING)
    for path in ("/topics", "/lobby/events", NEEDS_NO_ORIGIN, "/nowhere", "/client.js"):
        for method in ("GET", "POST", "DELETE", "REPORT", "OPTIONS"):
            response = await service.call(method, path, b"[")
            assert refused(response) == (503, "Service unavailable"), (path, method)
            assert int(response.headers["Retry-After"]) >= 1
            assert allowed_origin(response) == ORIGIN
        without = (503, "Service unavailable") if path in (NEEDS_NO_ORIGIN, "/client.js") else (400, invalid("Origin"))
        assert refused(await service.call("GET", path, origin=None)) == without
