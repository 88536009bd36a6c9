"""The files that the server hands out: to whom, in which form, and what a browser may keep of them."""

import gzip
import logging

import pytest
from support.service import ORIGIN, OTHER, allowed_origin, refused

from tornado_signal.http import assets
from tornado_signal.settings.origins import Origins

TYPES = {
    "/client.js": "text/javascript; charset=utf-8",
    "/client.d.ts": "application/typescript; charset=utf-8",
    "/demo": "text/html; charset=utf-8",
    "/demo/demo.css": "text/css; charset=utf-8",
    "/demo/demo.js": "text/javascript; charset=utf-8",
    "/demo/chat.js": "text/javascript; charset=utf-8",
    "/demo/talk.js": "text/javascript; charset=utf-8",
    "/demo/tile.js": "text/javascript; charset=utf-8",
    "/demo/vendor/uqr.js": "text/javascript; charset=utf-8",
}
FILES = {path: name for path, (name, _) in (assets.CLIENT | assets.DEMO).items()}
ACCEPT = "Accept-Encoding"


@pytest.fixture
def ask(service):
    """A function that asks for a file, without the check that every answer is JSON."""

    async def asking(path, *headers, method="GET", origin=None):
        return await service.call(method, path, origin=origin, headers=headers, port=service.port)

    return asking


def test_every_file_is_here():
    """The table of files is that of the routes."""
    assert {*assets.CLIENT, *assets.DEMO} == {*TYPES}


@pytest.mark.parametrize("origin", [None, ORIGIN, "null"])
@pytest.mark.parametrize("path", FILES)
async def test_a_file(path, origin, ask):
    """A file comes with its type, is asked for anew each time, and is readable to pages of every origin."""
    response = await ask(path, origin=origin)
    assert (response.status, response.body) == (200, (assets.WEB / FILES[path]).read_bytes())
    assert response.headers["Content-Type"] == TYPES[path]
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Vary"] == "Origin, Accept-Encoding"
    assert allowed_origin(response) == origin
    head = await ask(path, method="HEAD", origin=origin)
    same, found = ({**dict(each.headers.get_all()), "X-Request-Id": ""} for each in (head, response))
    assert same == found


@pytest.mark.parametrize("value", ["gzip", "br, gzip, deflate", "GZIP;q=0.5", "identity, gzip ; q=1.0"])
async def test_compressed(value, ask):
    """Who understands gzip gets the file compressed."""
    response = await ask("/client.js", (ACCEPT, value))
    assert response.headers["Content-Encoding"] == "gzip"
    plain = (assets.WEB / "client.js").read_bytes()
    assert gzip.decompress(response.body) == plain
    assert len(response.body) < len(plain) / 3


@pytest.mark.parametrize("value", ["", "identity", "br", "gzip;q=0", "gzip; q=0.000", "x-gzip"])
async def test_not_compressed(value, ask):
    """Who does not understand gzip gets the file as it is."""
    response = await ask("/client.js", (ACCEPT, value))
    assert "Content-Encoding" not in response.headers
    assert response.body == (assets.WEB / "client.js").read_bytes()


async def test_not_modified(ask):
    """Who has the file already, in whatever form, is told so and gets nothing else."""
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


@pytest.mark.parametrize("path", FILES)
async def test_wrong_methods(path, ask, service):
    """A file can only be got."""
    for method in ("POST", "PUT", "DELETE"):
        response = await service.call(method, path, b"{}")
        assert (refused(response), response.headers["Allow"]) == ((405, "Method not allowed"), "GET, HEAD, OPTIONS")
    preflight = await service.call("OPTIONS", path, headers=[("Access-Control-Request-Method", "GET")])
    assert preflight.status == 204


async def test_nothing_else_is_had_without_an_origin(service):
    """Files and the document are the only requests without an Origin, and files have no way out of their folder."""
    for path in (
        "/",
        "/topics",
        "/client",
        "/client.js/",
        "/client.ts",
        "/web/client.js",
        "/../web/client.js",
        "//client.js",
        "/openapi.json/",
        "/openapi",
    ):
        response = await service.call("GET", path, origin=None)
        assert refused(response) == (400, "Missing or invalid required parameter: Origin")
        assert (await service.call("GET", path)).status in (200, 404)


NAVIGATES = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]


@pytest.mark.parametrize("site", ["none", "same-origin", "cross-site"])
async def test_a_browser_at_the_door(site, ask):
    """A browser that navigates to the root is sent to the page to try it (contract C11)."""
    for method, headers in (("GET", NAVIGATES), ("GET", NAVIGATES[:1]), ("HEAD", NAVIGATES)):
        response = await ask("/", *headers, ("Sec-Fetch-Site", site), method=method)
        assert (response.status, response.headers["Location"], response.body) == (303, "/demo", b"")
        assert (response.headers["Content-Length"], allowed_origin(response)) == ("0", None)
        assert response.headers["Vary"] == "Origin, Sec-Fetch-Mode, Sec-Fetch-Dest"


async def test_who_is_not_sent_to_the_page(start_service, service):
    """Other requests, frames, other paths, and servers without the page answer as ever."""
    bare = await start_service(demo=False)
    missing = (400, "Missing or invalid required parameter: Origin")
    for server, method, path, headers in (
        (service, "GET", "/", [("Sec-Fetch-Mode", "cors")]),
        (service, "GET", "/", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]),
        (service, "POST", "/", NAVIGATES),
        (service, "GET", "/topics", NAVIGATES),
        (service, "GET", "/", [*NAVIGATES, ("Origin", "")]),
        (bare, "GET", "/", NAVIGATES),
    ):
        assert refused(await server.call(method, path, origin=None, headers=headers)) == missing
    for origin, more in ((ORIGIN, []), (None, [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "cors")])):
        response = await service.call("GET", "/", origin=origin, headers=[*more, *(NAVIGATES if origin else [])])
        assert list(response.json) == ["version"]
    documents = [(await each.get("/openapi.json"))["paths"]["/"]["get"] for each in (service, bare)]
    assert ["303" in each["responses"] for each in documents] == [True, False]


async def test_the_document(service):
    """The OpenAPI document, too, is had without an Origin, and an Origin that is sent is checked and echoed."""
    response = await service.call("GET", "/openapi.json", origin=None)
    assert (response.status, allowed_origin(response)) == (200, None)
    for origin in (ORIGIN, "null"):
        found = await service.call("GET", "/openapi.json", origin=origin)
        assert (found.status, allowed_origin(found), found.body) == (200, origin, response.body)
    for origin, more in (("", []), (ORIGIN, [("Origin", OTHER)]), ("o" * 513, [])):
        wrong = await service.call("GET", "/openapi.json", origin=origin, headers=more)
        assert refused(wrong) == (400, "Missing or invalid required parameter: Origin")
    head = await service.call("HEAD", "/openapi.json", origin=None)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(response.body)))


@pytest.mark.parametrize("path", ["/client.js", "/openapi.json"])
async def test_an_origin_that_is_not_allowed(path, start_service, caplog):
    """With an allow-list others may not read the module either; whoever names no origin may, as no page can see it."""
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


async def test_draining(service):
    """A server that is stopping hands out nothing any more."""
    service.site.draining = True
    for origin in (None, ORIGIN):
        response = await service.call("GET", "/client.js", origin=origin)
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
