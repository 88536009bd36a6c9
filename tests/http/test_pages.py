"""Static files and the OpenAPI document: access, compression and caching."""

import gzip
import hashlib
import itertools
import logging
import re

import pytest
from support.documents import pages, sections
from support.service import ORIGIN, OTHER, TRANSPORTS, allowed_origin, refused, request

from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.system import assets
from tornado_signal.system.assets import POLICY

MODULE = "text/javascript; charset=utf-8"
TYPES = {
    **dict.fromkeys(assets.CLIENT | assets.VERSIONED, MODULE),
    **{f"/{name}.d.ts": "application/typescript; charset=utf-8" for name in ("client", "signal-client")},
    **dict.fromkeys(assets.MAPS, "application/json; charset=utf-8"),
    "/demo": "text/html; charset=utf-8",
    "/demo/demo.css": "text/css; charset=utf-8",
    **{f"/demo/{name}.js": MODULE for name in ("demo", "chat", "check", "tile", "vendor/uqr")},
}
ALL = assets.CLIENT | assets.VERSIONED | assets.MAPS | assets.DEMO
FILES = {path: name for path, (name, _) in ALL.items()}
ACCEPT = "Accept-Encoding"
MISSING = (400, "Missing or invalid required parameter: Origin")
CORS = ("Sec-Fetch-Mode", "cors")
NAVIGATES = [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]
MAX_BYTES = 12_750  # of the built module by Brotli, which every page loads


@pytest.fixture
def fetch(service):
    """A coroutine function that requests a file and skips the check that every response is JSON."""

    async def fetch_file(path, *headers, method="GET", origin=None):
        return await service.call(method, path, origin=origin, headers=headers, port=service.port)

    return fetch_file


async def test_files_have_their_type_and_are_readable_from_every_origin(fetch, service):
    assert {*FILES} == {*TYPES}
    refused_methods = itertools.cycle(("POST", "PUT", "DELETE"))
    for path, origin, refused_method in zip(FILES, itertools.cycle((None, ORIGIN, "null")), refused_methods):
        response, head = [await fetch(path, method=method, origin=origin) for method in ("GET", "HEAD")]
        assert (response.status, response.body) == (200, (assets.WEB / FILES[path]).read_bytes())
        expected = "public, max-age=31536000, immutable" if path in assets.VERSIONED else "no-cache"
        assert dict(response.headers.get_all()).items() >= {
            *(("Content-Type", TYPES[path]), ("Cache-Control", expected), ("X-Content-Type-Options", "nosniff")),
            ("Vary", "Origin, Accept-Encoding"),
        }
        assert allowed_origin(response) == origin
        for message in (head, response):
            del message.headers["X-Request-Id"], message.headers["Date"]
        assert head.headers == response.headers
        response = await service.call(refused_method, path, b"{}")
        assert (refused(response), response.headers["Allow"]) == ((405, "Method not allowed"), "GET, HEAD, OPTIONS")
        preflight = await service.call("OPTIONS", path, headers=[("Access-Control-Request-Method", "GET")])
        assert preflight.status == 204


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("path", ["/client/room.js", "/client.js", *assets.VERSIONED])
async def test_files_are_compressed_only_for_clients_that_accept_it(path, fetch):
    """Brotli is for the built files, whose compressed form is a file."""
    plain = (assets.WEB / FILES[path]).read_bytes()
    brotli = None if path == "/client/room.js" else (assets.WEB / f"{FILES[path]}.br").read_bytes()
    for coding, values in {
        "gzip": ["gzip", "GZIP;q=0.5", "gzip, br;q=0", "identity, gzip ; q=1.0"],
        "br": ["gzip, deflate, br", "br"],
        None: ["", "identity", "gzip;q=0", "gzip; q=0.000", "x-gzip, x-br", "gzip;q=x", f"{'x,' * 64}gzip"],
    }.items():
        for value in values:
            expected = ("gzip" if "gzip" in value else None) if coding == "br" and brotli is None else coding
            response = await fetch(path, (ACCEPT, value))
            assert response.headers.get("Content-Encoding") == expected, value
            if expected == "gzip":
                assert gzip.decompress(response.body) == plain
                assert len(response.body) < len(plain)
            else:
                assert response.body == (brotli if expected else plain)


def test_sizes_and_versions_of_the_built_module_are_those_of_the_documentation_and_of_its_parts():
    row = r"^\| (?:`(\w+\.js)`|the file itself, at most) \| ([\d,]+) \|"
    rows = re.findall(row, sections("browser-client")["Parts"], re.M)
    named = {name: int(size.replace(",", "")) for name, size in rows}
    assert named.pop("") == MAX_BYTES
    sizes = {path.stem: path.stat().st_size for path in (assets.WEB / "built").glob("*.br")}
    assert sizes.pop("client.js") < MAX_BYTES
    assert sizes == pytest.approx(named, rel=0.1)
    stated = {"README": r"\[browser module\]\(.*?\), (\d+) KB", "browser-client": r"one file of (\d+) KB"}
    for page, text in stated.items():
        assert re.findall(text, pages()[page]) == [str(MAX_BYTES // 1000)], page
    # A part under another name than in the built module would never load.
    named = re.findall(r'"([\w-]+-[0-9a-f]{8}\.js)"', (assets.WEB / "built/client.js").read_text())
    assert {f"/client/{name}" for name in named} == {path for path in assets.VERSIONED if path.startswith("/client/")}


async def test_demo_can_be_disabled_and_readable_modules_served_instead_of_the_built_one(start_service):
    service = await start_service(demo=False, readable_module=True)
    document = await service.get("/openapi.json")
    for path in assets.DEMO:
        assert refused(await service.raw(request("GET", path))) == (404, "Not found")
        assert path not in document["paths"]
    assert "/client.js" in document["paths"]
    assert "303" not in document["paths"]["/"]["get"]["responses"]
    assert refused(await service.call("GET", "/", origin=None, headers=NAVIGATES)) == MISSING
    response = await service.call("GET", "/client.js", port=service.port)
    assert response.body == (assets.WEB / "client.js").read_bytes()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_matching_etag_gets_304(fetch):
    etag = (await fetch("/client.js")).headers["ETag"]
    assert (await fetch("/client.js", (ACCEPT, "gzip"))).headers["ETag"] == etag
    assert (await fetch("/client.d.ts")).headers["ETag"] != etag
    for if_none_match in (etag, f'"other", {etag}', "*"):
        response = await fetch("/client.js", ("If-None-Match", if_none_match), origin=ORIGIN)
        assert (response.status, response.body) == (304, b"")
        assert response.headers["ETag"] == etag
        assert allowed_origin(response) == ORIGIN
        assert not {"Content-Type", "Content-Length", "Content-Encoding"} & set(response.headers)
    assert (await fetch("/client.js", ("If-None-Match", '"other"'))).status == 200


async def test_browser_navigation_to_the_root_is_redirected_to_the_demo_and_no_other_request(fetch, service):
    requests = (("GET", NAVIGATES), ("GET", NAVIGATES[:1]), ("HEAD", NAVIGATES))
    for (method, headers), site in itertools.product(requests, ("none", "same-origin", "cross-site")):
        response = await fetch("/", *headers, ("Sec-Fetch-Site", site), method=method)
        assert (response.status, response.headers["Location"], response.body) == (303, "/demo", b"")
        assert (response.headers["Content-Length"], allowed_origin(response)) == ("0", None)
        assert response.headers["Vary"] == "Origin, Referer, Accept, Sec-Fetch-Mode, Sec-Fetch-Dest"
        assert response.headers["Cache-Control"] == "no-store"
    for method, path, headers in (
        ("GET", "/", [CORS]),
        ("GET", "/", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]),
        ("POST", "/", NAVIGATES),
        ("GET", "/topics", NAVIGATES),
        ("GET", "/", [*NAVIGATES, ("Origin", "")]),
    ):
        assert refused(await service.call(method, path, origin=None, headers=headers)) == MISSING
    for origin, headers in ((ORIGIN, NAVIGATES), (None, [("Sec-Fetch-Site", "same-origin"), CORS])):
        response = await service.call("GET", "/", origin=origin, headers=headers)
        assert list(response.json) == ["version"]
    assert "303" in (await service.get("/openapi.json"))["paths"]["/"]["get"]["responses"]


HTML = ["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"]
HTML += ["TEXT/HTML ; q=0.5, application/json;q=0.4", "text/*, application/json;q=0"]
NO_HTML = ["*/*", "", "application/json, text/html;q=0.9", "text/html, application/json"]
NO_HTML += ["text/html;q=0, */*;q=0.1", "text/html;q=x"]


async def test_a_client_that_prefers_html_is_redirected_to_the_demo(fetch):
    """Browsers send no Sec-Fetch-* to plain HTTP addresses."""
    for accepted in HTML + NO_HTML:
        prefers, accept = accepted in HTML, ("Accept", accepted)
        response = await fetch("/", accept)
        assert (response.status, response.headers.get("Location")) == ((303, "/demo") if prefers else (400, None))
        for more, status in ((("Origin", ORIGIN), 200), (("Referer", "https://a.example/"), 200), (CORS, 400)):
            assert (await fetch("/", accept, more)).status == status
        assert (await fetch("/topics", accept)).status == 400


async def test_openapi_document_needs_no_origin(service):
    responses = [await service.call("GET", "/openapi.json", origin=origin) for origin in (None, ORIGIN, "null")]
    assert [response.status for response in responses] == [200] * 3
    assert list(map(allowed_origin, responses)) == [None, ORIGIN, "null"]
    assert len({response.body for response in responses}) == 1
    for origin, more in (("", []), (ORIGIN, [("Origin", OTHER)]), ("o" * 513, [])):
        rejected = await service.call("GET", "/openapi.json", origin=origin, headers=more)
        assert refused(rejected) == MISSING
    head = await service.call("HEAD", "/openapi.json", origin=None)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(responses[0].body)))


async def test_files_are_not_readable_from_origins_outside_the_allow_list(start_service, caplog):
    service = await start_service(allowed_origins=AllowedOrigins(frozenset({ORIGIN})))
    for path in ("/client.js", "/openapi.json"):
        response = await service.call("GET", path, origin=OTHER)
        assert (refused(response), allowed_origin(response)) == ((403, "Origin not allowed"), None)
        caplog.clear()  # the refused origin
        # Modules of the server's own pages are requested with that Origin.
        for origin, headers in ((None, []), (ORIGIN, []), (OTHER, [("Sec-Fetch-Site", "same-origin")])):
            response = await service.call("GET", path, origin=origin, headers=headers, port=service.port)
            assert response.status == 200
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_policy_blocks_external_resources(fetch):
    response = await fetch("/demo")
    assert response.headers["Content-Security-Policy"] == POLICY
    assert "'unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    html = response.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    assert not re.search(r"(src|href)=\"(https?:)?//", html)


def test_vendored_file_is_unchanged_and_licensed():
    header, end, published = (assets.WEB / FILES["/demo/vendor/uqr.js"]).read_bytes().partition(b" */\n")
    assert end
    assert hashlib.sha256(published).hexdigest() in header.decode()
    for words in ("uqr 0.1.3", "npm package", "MIT License", "Copyright (c)", "Permission is hereby granted"):
        assert words in header.decode()


def test_every_file_is_served():
    named = {name for name, _ in (ALL | assets.READABLE | assets.OPERATOR).values()}
    named |= {f"{name}.br" for name, _ in assets.VERSIONED.values()}
    of_npm = {"package.json", "README.md", "LICENSE", "index.js", "signal-client.js", "client/types.d.ts"}
    of_npm |= {"react.js", "react.d.ts"}
    assert named | of_npm == {str(path.relative_to(assets.WEB)) for path in assets.WEB.rglob("*") if path.is_file()}
