"""Tables of every endpoint with every error, and every path with every method: statuses, texts and headers."""

import ipaddress
import itertools
import json

import pytest
from support.searches import some
from support.service import (
    ORIGIN,
    TRANSPORTS,
    allowed_origin,
    check_every_response,
    credentials,
    declared,
    head,
    invalid,
    refused,
    with_origin,
)
from support.sse import open_stream
from support.tokens import write_secret

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

UNKNOWN = ["/nowhere", "/topics/", "/TOPICS", "/%74opics", "/health/", "/poll/", "/answer/", "/offer", "/sessions"]
UNKNOWN += ["/lobby", "/lobby/", "/lobby/offers", "/lobby/Sessions", "/lobby/sessions/", "/lobby/sessions;x", "//"]
UNKNOWN += ["/lobby%2Fsessions", "/a/b/sessions", "//topics", "/favicon.ico", "/index.html?x=<script>", "/../health"]

OFFER = {"info": "i", "offer": "o"}
MAX_BODY_BYTES = Settings().max_body_bytes
LISTED = {"allowed_origins": AllowedOrigins(frozenset([ORIGIN, "null", "https://*.app.example"]))}
INSIDE = "https://a.b.app.example"
LOOPBACK = (ipaddress.ip_network("127.0.0.1"),)
SAME = [("Sec-Fetch-Site", "same-origin")]
POLL = {"code": "00000000-0000-4000-8000-000000000000", "side": "offerer"}
POSTS = some(path.replace("{topic}", "lobby") for path, method in declared().items() if method == "POST")


def test_routes_are_the_documented_ones():
    paths = set(declared())
    assert {path for path in paths if path.count("/") == 1} == {path for path in ROUTES if path.count("/") == 1}
    assert paths <= {*ROUTES}


def test_every_error_has_a_status():
    error_types = {*errors.SignalError.__subclasses__(), *errors.TransientError.__subclasses__()}
    assert set(STATUS) == error_types - {errors.TransientError}
    assert 500 not in STATUS.values()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_unsupported_method_is_405_with_allow_and_an_unknown_path_404_and_metrics_know_few_methods(service):
    wrong = [(path, method, 405) for path in ROUTES for method in METHODS if method not in ROUTES[path]]
    wrong += [(path, method, 404) for path in UNKNOWN for method in ("GET", "HEAD", "POST", "PROPFIND")]
    for path, method, status in some(wrong):
        response = await service.call(method, path, b"" if method == "HEAD" else b"{}")
        assert (response.status, allowed_origin(response)) == (status, ORIGIN), (path, method)
        assert response.headers.get("Allow") == (", ".join(ROUTES[path]) if status == 405 else None)
        text = "Method not allowed" if status == 405 else "Not found"
        assert method == "HEAD" or response.json == {"error": text}
    names = {name for _, name, _ in service.shared.log.metrics.requests}
    assert names == {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "unknown"}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_checks_have_the_documented_order(start_service, tmp_path):
    with_keys, service = await start_service(auth_keys=write_secret(tmp_path / "keys")), await start_service()
    large, no_origin = offer_of(MAX_BODY_BYTES + 1), (400, invalid("Origin"))
    for server, method, path, body, expected in (
        *((with_keys, method, "/%zz/nowhere", b"x", (404, "Not found")) for method in ("PUT", "PROPFIND")),
        (with_keys, "PUT", "/%zz/offer", b"x", (401, "Missing or invalid token")),
        (service, "POST", "/%zz/sessions", b"x", (405, "Method not allowed")),
        *((service, "POST", "/%zz/offer", body, (400, invalid("topic"))) for body in (b"x", large)),
        *((service, "POST", "/t/offer", body, (400, invalid("body"))) for body in (b"x", None)),
        (service, "POST", "/nowhere", large, (404, "Not found")),
        (service, "POST", "/topics", large, (405, "Method not allowed")),
    ):
        assert refused(await server.call(method, path, body)) == expected
        assert refused(await server.call(method, path, body, origin=None)) == no_origin


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_head_has_the_status_and_headers_of_get_without_a_body(service):
    await service.offer()
    found = [(path, 200) for path in ROUTES if "GET" in ROUTES[path] and "events" not in path]
    for path, status in (*found, ("/topics?page=0", 400), ("/%zz/sessions", 400), ("/nowhere", 404)):
        responses = [await service.call(method, path) for method in ("GET", "HEAD")]
        assert [response.status for response in responses] == [status, status]
        assert responses[1].body == b""
        assert int(responses[1].headers["Content-Length"]) == len(responses[0].body)
        for response in responses:
            del response.headers["X-Request-Id"]
        assert sorted(responses[0].headers.get_all()) == sorted(responses[1].headers.get_all())


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_path_answers_a_preflight(service):
    asked = (
        ([("Access-Control-Request-Headers", "content-type, x-more")], "content-type, x-more"),
        ([], "Content-Type"),
    )
    for path, (headers, allowed) in itertools.product([*ROUTES, *UNKNOWN, "*"], asked):
        headers = [("Access-Control-Request-Method", "POST"), *headers]
        response = await service.call("OPTIONS", path, headers=headers)
        assert (response.status, response.body, allowed_origin(response)) == (204, b"", ORIGIN), path
        methods = ", ".join(ROUTES.get(path, ["OPTIONS"]))
        assert response.headers["Allow"] == response.headers["Access-Control-Allow-Methods"] == methods
        assert response.headers["Access-Control-Allow-Headers"] == allowed
        assert response.headers["Access-Control-Max-Age"] == "7200"
    without = [(await service.call("OPTIONS", path, origin=None)).status for path in ("*", "/nowhere")]
    assert without == [204, 400]  # the whole server needs no Origin


async def test_query_has_at_most_32_fields_and_does_not_affect_the_route(service):
    for target in ("/health?/nowhere/x", "/lobby/sessions?a=/b/c", "/topics?%zz&&&=;=%00"):
        assert (await service.call("GET", target)).status == 200
    assert refused(await service.call("POST", "/poll?code=x", {})) == (400, invalid("code"))
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


async def test_missing_or_invalid_origin_is_400_everywhere_and_others_are_echoed_unchanged(service):
    paths = [*(path for path in ROUTES if path != NEEDS_NO_ORIGIN), "/nowhere"]
    for headers, path, method in [
        *itertools.product(NO_ORIGIN[:1], paths, ("GET", "POST", "DELETE", "REPORT", "OPTIONS")),
        *itertools.product(NO_ORIGIN[1:], ("/topics", "/poll", "/lobby/events", "/nowhere"), ("GET", "OPTIONS")),
    ]:
        response = await service.call(method, path, b"[", origin=None, headers=headers)
        assert refused(response) == (400, invalid("Origin")), (method, path, headers)
        assert allowed_origin(response) is None
    unusual = ["*", "a, b", "file://", "%00", "https://A.example:443"]
    for origin in ("null", "o" * 512, "https://\xff\xe9.example", *unusual):
        response = await service.call("GET", "/topics", origin=origin)
        assert (response.status, allowed_origin(response)) == (200, origin)


PAGE = "https://a.example:8443"
HTTPS = ("X-Forwarded-Proto", "https")
CROSS = [("Sec-Fetch-Site", "cross-site")]


async def test_a_get_without_an_origin_has_that_of_its_referer_or_of_scheme_and_host(start_service):
    """A proxy that changes Host and scheme, as most do by default, forwards the Referer."""
    service, behind_proxy = await start_service(), await start_service(trusted_proxies=LOOPBACK)
    referers = [("Referer", PAGE + path) for path in ("", "/", "/room?a#b", "?a")]
    for server, headers, origin in (
        (service, [("Host", "a.example:8080"), HTTPS, *SAME], "http://a.example:8080"),
        (behind_proxy, [("Host", "a"), HTTPS, ("X-Forwarded-Host", "b:1"), *SAME], "https://b:1"),
        (behind_proxy, [("Host", "a.example"), ("X-Forwarded-Host", "a b"), *SAME], None),
        *(
            (service, [("Host", "127.0.0.1:3000"), referer, *more], PAGE)
            for referer in referers
            for more in ([], SAME, CROSS)
        ),
    ):
        codes = [await server.offer(origin=origin)] if origin else []
        for method in ("GET", "HEAD"):
            response = await server.raw(head(method, "/lobby/sessions", headers), method)
            check_every_response(response, method)
            assert (response.status, allowed_origin(response)) == ((200, origin) if origin else (400, None))
            assert method == "HEAD" or codes == [each["code"] for each in response.json.get("sessions", [])][:1]
    for headers in (referers[:1], SAME, [referers[0], *SAME]):
        response = await service.call("POST", "/lobby/offer", OFFER, origin=None, headers=headers)
        assert refused(response) == (400, invalid("Origin"))
    other = await service.call("GET", "/lobby/sessions", headers=referers[:1])
    assert (allowed_origin(other), other.json) == (ORIGIN, {"sessions": []})
    listed = await start_service(**LISTED)
    for page, status in ((ORIGIN, 200), (PAGE, 403)):
        response = await listed.call("GET", "/topics", origin=None, headers=[("Referer", page + "/")])
        assert response.status == status


@pytest.mark.parametrize(
    ("host", "origin", "settings"),
    [
        ("127.0.0.1:3000", None, ["Host", "proxy_set_header Host", "ProxyPreserveHost"]),
        ("a.example:8443", None, ["scheme", "X-Forwarded-Proto", "--trusted-proxies"]),
        ("a.example:8443", "null", ["--allowed-origins"]),
    ],
)
async def test_one_warning_names_the_setting_of_the_proxy_or_the_origin_null(host, origin, settings, service, caplog):
    for fetched in (CROSS, SAME, SAME, SAME):
        headers = [("Host", host), ("Referer", f"{PAGE}/secret"), *fetched, *([("Origin", origin)] if origin else [])]
        assert (await service.raw(head("GET", "/topics", headers))).status == 200
    same = [("Host", "a.example"), ("Referer", "http://a.example/"), *SAME]
    assert (await service.raw(head("GET", "/topics", same))).status == 200
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(setting in warning for setting in settings)
    assert "secret" not in warning


async def test_origins_on_the_allow_list_are_served_and_others_are_403_everywhere(start_service, caplog):
    service = await start_service(**LISTED)
    code = await service.offer(origin=INSIDE)
    paths = [("GET", "/topics"), ("OPTIONS", "/poll"), ("HEAD", "/lobby/events"), ("GET", "/ws"), ("GET", "/nowhere")]
    for origin in (ORIGIN, "null", INSIDE):
        for method, path in paths:
            response = await service.raw(head(method, path, with_origin(origin, SAME)), method)
            assert (response.status != 403, allowed_origin(response), credentials(response)) == (True, origin, "true")
        broken = await service.raw(head("POST", "/poll", with_origin(origin, [("Content-Length", "x")])))
        assert (broken.status, allowed_origin(broken)) == (400, origin)
    # Each subdomain is an origin of its own.
    assert await service.sessions(origin="https://c.app.example") == []
    assert [session["code"] for session in await service.sessions(origin=INSIDE)] == [code]
    assert caplog.records == []  # a listed `null` needs no warning
    others = ("https://evil.example", "https://app.example/", "HTTPS://app.example", "https://xapp.example", "any", "*")
    for origin, path, method in [
        *itertools.product(others[:1], [*ROUTES, "/ws", "/nowhere"], ("GET", "POST", "DELETE", "REPORT", "OPTIONS")),
        *itertools.product(others[1:], ("/topics", "/poll", "/lobby/events", "/nowhere"), ("GET", "OPTIONS")),
    ]:
        response = await service.call(method, path, b"[", origin=origin)
        assert refused(response) == (403, "Origin not allowed"), (method, path)
        assert allowed_origin(response) is None
    response = await service.raw(head("GET", "/", with_origin(origin, [("X", "1"), ("no name", "")])))
    assert (response.status, credentials(response), allowed_origin(response)) == (400, None, None)
    for origin, method in itertools.product((None, ""), ("GET", "OPTIONS")):
        assert refused(await service.call(method, "/topics", origin=origin)) == (400, invalid("Origin"))
    own = await service.raw(head("GET", "/topics", with_origin(None, SAME)))
    assert refused(own) == (403, "Origin not allowed")


@pytest.mark.parametrize("listed", [True, False])
async def test_credentials_need_an_allow_list_and_every_page_can_read_refusals(listed, start_service):
    service = await start_service(**LISTED if listed else {})
    expected = "true" if listed else None
    for status, method, target, body in [
        *((200, "POST", "/lobby/offer", OFFER), (404, "POST", "/poll", POLL), (400, "POST", "/poll", b"[")),
        *((204, "OPTIONS", "/nowhere", None), (404, "GET", "/nowhere", None), (405, "DELETE", "/poll", None)),
        (413, "POST", "/lobby/offer", b" " * (MAX_BODY_BYTES + 1)),
    ]:
        assert (await service.call(method, target, body)).status == status, (method, target)
    for status, method, target, header in (
        (400, "POST", "/poll", ("Content-Length", "x")),
        (417, "POST", "/poll", ("Expect", "miracles")),
        (431, "GET", "/", ("X", "x" * 70_000)),
        (501, "POST", "/poll", ("Transfer-Encoding", "gzip")),
    ):
        response = await service.raw(head(method, target, with_origin(ORIGIN, [("X", "1"), header])))
        assert (response.status, credentials(response), allowed_origin(response)) == (status, expected, ORIGIN)
    for status, target, value in ((414, f"/{'x' * 70_000}", ""), (431, "/", "x" * 70_000)):
        response = await service.raw(head("GET", target, [("Host", "x"), ("X", value), ("Origin", ORIGIN)]))
        assert (response.status, credentials(response), allowed_origin(response)) == (status, None, "*")
    async with open_stream(service.port, "/lobby/events") as stream:
        assert stream.headers.get("Access-Control-Allow-Credentials") == expected
    service.shared.lifecycle.reach(DRAINING)
    for path in ("/topics", "/lobby/events", NEEDS_NO_ORIGIN, "/nowhere", "/client.js"):
        for method in ("GET", "POST", "DELETE", "REPORT", "OPTIONS"):
            response = await service.call(method, path, b"[")
            assert refused(response) == (503, "Service unavailable"), (path, method)
            assert int(response.headers["Retry-After"]) >= 1
            assert allowed_origin(response) == ORIGIN
        without = (503, "Service unavailable") if path in (NEEDS_NO_ORIGIN, "/client.js") else (400, invalid("Origin"))
        assert refused(await service.call("GET", path, origin=None)) == without


async def test_content_type_of_a_body_and_unknown_fields_do_not_matter(service):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "a;b=\xff"):
        headers = [("Content-Type", kind), ("Content-Encoding", "identity")]
        await service.call("POST", "/lobby/offer", OFFER | {"more": [{"a": None}], "": 1}, headers=headers)
    assert [(session["info"], session["offer"]) for session in await service.sessions()] == [("i", "o")] * 4


# Oversized bodies, and unavailable servers (docs/decisions.md#overload-responses).


def offer_of(size):
    empty = json.dumps({"info": "i", "offer": ""}).encode()
    return json.dumps({"info": "i", "offer": "o" * (size - len(empty))}).encode()


async def chunked(service, target, body):
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    response = await service.raw(head("POST", target, with_origin(ORIGIN, [("Transfer-Encoding", "chunked")])) + framed)
    check_every_response(response, "POST")
    return response


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_body_of_256_kib_is_accepted_and_a_larger_one_413_with_or_without_content_length(service):
    assert MAX_BODY_BYTES == 256 * 1024
    for path, size in itertools.product(POSTS, (MAX_BODY_BYTES + 1, 3 * MAX_BODY_BYTES)):
        for response in (
            await service.call("POST", path, offer_of(size)),
            await chunked(service, path, offer_of(size)),
            await service.call("POST", path, b"\xff" * size),
        ):
            assert refused(response) == (413, "Request body too large")
            assert allowed_origin(response) == ORIGIN
    assert await service.sessions() == []
    body = offer_of(MAX_BODY_BYTES)
    assert len(body) == MAX_BODY_BYTES
    for response in (await service.call("POST", "/lobby/offer", body), await chunked(service, "/lobby/offer", body)):
        assert response.status == 200
    assert [session["offer"] for session in await service.sessions()] == [json.loads(body)["offer"]] * 2
