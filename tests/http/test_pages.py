"""The files that the server hands out: to whom, in which form, and what a browser may keep of them."""

import gzip
import itertools
import logging

import pytest
from support.service import ORIGIN, OTHER, allowed_origin, refused

from tornado_signal.http import assets
from tornado_signal.settings.origins import Origins

MODULE = "text/javascript; charset=utf-8"
TYPES = {
    "/client.js": MODULE,
    "/client.d.ts": "application/typescript; charset=utf-8",
    **{path: MODULE for path in assets.CLIENT if path.startswith("/client/")},
    "/demo": "text/html; charset=utf-8",
    "/demo/demo.css": "text/css; charset=utf-8",
    **{f"/demo/{name}.js": MODULE for name in ("demo", "chat", "talk", "tile", "vendor/uqr")},
}
FILES = {path: name for path, (name, _) in (assets.CLIENT | assets.DEMO).items()}
ACCEPT = "Accept-Encoding"


@pytest.fixture
def ask(service):
    """A function that asks for a file, without the check that every answer is JSON."""

    async def asking(path, *headers, method="GET", origin=None):
        return await service.call(method, path, origin=origin, headers=headers, port=service.port)

    return asking


async def test_a_file_has_its_type_and_is_readable_to_pages_of_every_origin(ask):
    assert {*FILES} == {*TYPES}
    for path, origin in itertools.product(FILES, (None, ORIGIN, "null")):
        response = await ask(path, origin=origin)
        assert (response.status, response.body) == (200, (assets.WEB / FILES[path]).read_bytes())
        assert response.headers["Content-Type"] == TYPES[path]
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Vary"] == "Origin, Accept-Encoding"
        assert allowed_origin(response) == origin
        head = await ask(path, method="HEAD", origin=origin)
        same, found = ({**dict(each.headers.get_all()), "X-Request-Id": "", "Date": ""} for each in (head, response))
        assert same == found


async def test_who_understands_gzip_and_nobody_else_gets_a_file_compressed(ask):
    plain = (assets.WEB / "client" / "room.js").read_bytes()
    for value in ("gzip", "br, gzip, deflate", "GZIP;q=0.5", "identity, gzip ; q=1.0"):
        response = await ask("/client/room.js", (ACCEPT, value))
        assert response.headers["Content-Encoding"] == "gzip", value
        assert gzip.decompress(response.body) == plain
        assert len(response.body) < len(plain) / 3
    for value in ("", "identity", "br", "gzip;q=0", "gzip; q=0.000", "x-gzip"):
        response = await ask("/client/room.js", (ACCEPT, value))
        assert "Content-Encoding" not in response.headers, value
        assert response.body == plain


async def test_who_has_a_file_already_gets_304(ask):
    etag = (await ask("/client.js")).headers["ETag"]
    assert (await ask("/client.js", (ACCEPT, "gzip"))).headers["ETag"] == etag
    assert (await ask("/client.d.ts")).headers["ETag"] != etag
    for known in (etag, f'"other", {etag}'):
        response = await ask("/client.js", ("If-None-Match", known), origin=ORIGIN)
        assert (response.status, response.body) == (304, b"")
        assert response.headers["ETag"] == etag
        assert allowed_origin(response) == ORIGIN
        assert not {"Content-Type", "Content-Length", "Content-Encoding"} & set(response.headers)
    assert (await ask("/client.js", ("If-None-Match", '"other"'))).status == 200


async def test_a_file_can_only_be_got(service):
    for path in FILES:
        for method in ("POST", "PUT", "DELETE"):
            response = await service.call(method, path, b"{}")
            assert (refused(response), response.headers["Allow"]) == ((405, "Method not allowed"), "GET, HEAD, OPTIONS")
        preflight = await service.call("OPTIONS", path, headers=[("Access-Control-Request-Method", "GET")])
        assert preflight.status == 204


async def test_files_have_no_way_out_of_their_folder(service):
    paths = [
        "/",
        "/topics",
        "/client",
        "/client.js/",
        "/client.ts",
        "/web/client.js",
        "/../web/client.js",
        "//client.js",
    ]
    for path in (*paths, "/openapi.json/", "/openapi"):
        assert refused(await service.call("GET", path, origin=None)) == MISSING
        assert (await service.call("GET", path)).status in (200, 404)


MISSING = (400, "Missing or invalid required parameter: Origin")
NAVIGATES = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]


async def test_a_browser_that_navigates_to_the_root_is_sent_to_the_demo(ask):
    kinds = (("GET", NAVIGATES), ("GET", NAVIGATES[:1]), ("HEAD", NAVIGATES))
    for (method, headers), site in itertools.product(kinds, ("none", "same-origin", "cross-site")):
        response = await ask("/", *headers, ("Sec-Fetch-Site", site), method=method)
        assert (response.status, response.headers["Location"], response.body) == (303, "/demo", b"")
        assert (response.headers["Content-Length"], allowed_origin(response)) == ("0", None)
        assert response.headers["Vary"] == "Origin, Sec-Fetch-Mode, Sec-Fetch-Dest"


async def test_other_requests_are_not_sent_to_the_demo(start_service, service):
    bare = await start_service(demo=False)

    for server, method, path, headers in (
        (service, "GET", "/", [("Sec-Fetch-Mode", "cors")]),
        (service, "GET", "/", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]),
        (service, "POST", "/", NAVIGATES),
        (service, "GET", "/topics", NAVIGATES),
        (service, "GET", "/", [*NAVIGATES, ("Origin", "")]),
        (bare, "GET", "/", NAVIGATES),
    ):
        assert refused(await server.call(method, path, origin=None, headers=headers)) == MISSING
    for origin, more in ((ORIGIN, []), (None, [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "cors")])):
        response = await service.call("GET", "/", origin=origin, headers=[*more, *(NAVIGATES if origin else [])])
        assert list(response.json) == ["version"]
    documents = [(await each.get("/openapi.json"))["paths"]["/"]["get"] for each in (service, bare)]
    assert ["303" in each["responses"] for each in documents] == [True, False]


async def test_the_openapi_document_is_had_without_an_origin(service):
    response = await service.call("GET", "/openapi.json", origin=None)
    assert (response.status, allowed_origin(response)) == (200, None)
    for origin in (ORIGIN, "null"):
        found = await service.call("GET", "/openapi.json", origin=origin)
        assert (found.status, allowed_origin(found), found.body) == (200, origin, response.body)
    for origin, more in (("", []), (ORIGIN, [("Origin", OTHER)]), ("o" * 513, [])):
        wrong = await service.call("GET", "/openapi.json", origin=origin, headers=more)
        assert refused(wrong) == MISSING
    head = await service.call("HEAD", "/openapi.json", origin=None)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(response.body)))


@pytest.mark.parametrize("path", ["/client.js", "/openapi.json"])
async def test_pages_of_an_origin_that_is_not_allowed_may_not_read_a_file(path, start_service, caplog):
    service = await start_service(allowed_origins=Origins(frozenset({ORIGIN})))
    response = await service.call("GET", path, origin="https://other.example")
    assert (refused(response), allowed_origin(response)) == ((403, "Origin not allowed"), None)
    for origin in (None, ORIGIN):
        found = await service.call("GET", path, origin=origin, port=service.port)
        assert found.status == 200
    # A module of the server's own page is asked for with that Origin.
    own = [("Sec-Fetch-Site", "same-origin")]
    assert (await service.call("GET", path, origin=OTHER, headers=own, port=service.port)).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
