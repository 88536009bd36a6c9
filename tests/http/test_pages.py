"""Static files and the OpenAPI document: access, compression and caching."""

import gzip
import hashlib
import itertools
import logging
import re

import pytest
from support.documents import pages, sections
from support.service import ORIGIN, OTHER, allowed_origin, refused, request

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
MAX_BYTES = 12_750  # of the built module by Brotli, which every page loads


@pytest.fixture
def fetch(service):
    """A coroutine function that requests a file and skips the check that every response is JSON."""

    async def fetch_file(path, *headers, method="GET", origin=None):
        return await service.call(method, path, origin=origin, headers=headers, port=service.port)

    return fetch_file


async def test_files_have_their_type_and_are_readable_from_every_origin(fetch):
    assert {*FILES} == {*TYPES}
    for path, origin in itertools.product(FILES, (None, ORIGIN, "null")):
        response = await fetch(path, origin=origin)
        assert (response.status, response.body) == (200, (assets.WEB / FILES[path]).read_bytes())
        assert response.headers["Content-Type"] == TYPES[path]
        expected = "public, max-age=31536000, immutable" if path in assets.VERSIONED else "no-cache"
        assert response.headers["Cache-Control"] == expected
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Vary"] == "Origin, Accept-Encoding"
        assert allowed_origin(response) == origin
        head = await fetch(path, method="HEAD", origin=origin)
        head_headers, get_headers = (
            {**dict(message.headers.get_all()), "X-Request-Id": "", "Date": ""} for message in (head, response)
        )
        assert head_headers == get_headers


@pytest.mark.parametrize("path", ["/client/room.js", "/client.js", *assets.VERSIONED])
async def test_files_are_compressed_only_for_clients_that_accept_it(path, fetch):
    """Brotli is for the built files, whose compressed form is a file."""
    plain = (assets.WEB / FILES[path]).read_bytes()
    brotli = None if path == "/client/room.js" else (assets.WEB / f"{FILES[path]}.br").read_bytes()
    for value, coding in {
        "gzip": "gzip",
        "gzip, deflate, br": "br",
        "GZIP;q=0.5": "gzip",
        "gzip, br;q=0": "gzip",
        "identity, gzip ; q=1.0": "gzip",
        "": None,
        "identity": None,
        "br": "br",
        "gzip;q=0": None,
        "gzip; q=0.000": None,
        "x-gzip, x-br": None,
    }.items():
        expected = ("gzip" if "gzip" in value else None) if coding == "br" and brotli is None else coding
        response = await fetch(path, (ACCEPT, value))
        assert response.headers.get("Content-Encoding") == expected, value
        if expected == "gzip":
            assert gzip.decompress(response.body) == plain
            assert len(response.body) < len(plain)
        else:
            assert response.body == (brotli if expected else plain)


def test_sizes_of_the_built_module_are_those_of_the_documentation():
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


def test_the_built_module_names_the_versions_of_its_parts():
    """A part under another name would never load."""
    named = re.findall(r'"([\w-]+-[0-9a-f]{8}\.js)"', (assets.WEB / "built/client.js").read_text())
    assert {f"/client/{name}" for name in named} == {path for path in assets.VERSIONED if path.startswith("/client/")}


async def test_readable_modules_are_served_instead_of_the_built_one(start_service):
    service = await start_service(readable_module=True)
    response = await service.call("GET", "/client.js", port=service.port)
    assert response.body == (assets.WEB / "client.js").read_bytes()


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


async def test_files_allow_only_get_head_and_options(service):
    for path in FILES:
        for method in ("POST", "PUT", "DELETE"):
            response = await service.call(method, path, b"{}")
            assert (refused(response), response.headers["Allow"]) == ((405, "Method not allowed"), "GET, HEAD, OPTIONS")
        preflight = await service.call("OPTIONS", path, headers=[("Access-Control-Request-Method", "GET")])
        assert preflight.status == 204


async def test_paths_outside_the_static_files_are_not_served(service):
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


async def test_browser_navigation_to_the_root_is_redirected_to_the_demo(fetch):
    requests = (("GET", NAVIGATES), ("GET", NAVIGATES[:1]), ("HEAD", NAVIGATES))
    for (method, headers), site in itertools.product(requests, ("none", "same-origin", "cross-site")):
        response = await fetch("/", *headers, ("Sec-Fetch-Site", site), method=method)
        assert (response.status, response.headers["Location"], response.body) == (303, "/demo", b"")
        assert (response.headers["Content-Length"], allowed_origin(response)) == ("0", None)
        assert response.headers["Vary"] == "Origin, Referer, Accept, Sec-Fetch-Mode, Sec-Fetch-Dest"
        assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("accepted", "prefers"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("TEXT/HTML ; q=0.5, application/json;q=0.4", True),
        ("text/*, application/json;q=0", True),
        ("*/*", False),
        ("", False),
        ("application/json, text/html;q=0.9", False),
        ("text/html, application/json", False),
        ("text/html;q=0, */*;q=0.1", False),
        ("text/html;q=x", False),
    ],
)
async def test_a_client_that_prefers_html_is_redirected_to_the_demo(accepted, prefers, fetch):
    """Browsers send no Sec-Fetch-* to plain HTTP addresses."""
    response = await fetch("/", ("Accept", accepted))
    assert (response.status, response.headers.get("Location")) == ((303, "/demo") if prefers else (400, None))
    for more in (("Origin", ORIGIN), ("Referer", "https://a.example/"), ("Sec-Fetch-Mode", "cors")):
        assert (await fetch("/", ("Accept", accepted), more)).status == (400 if more[1] == "cors" else 200)
    assert (await fetch("/topics", ("Accept", accepted))).status == 400


async def test_other_requests_are_not_redirected_to_the_demo(start_service, service):
    without_demo = await start_service(demo=False)

    for server, method, path, headers in (
        (service, "GET", "/", [("Sec-Fetch-Mode", "cors")]),
        (service, "GET", "/", [("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "iframe")]),
        (service, "POST", "/", NAVIGATES),
        (service, "GET", "/topics", NAVIGATES),
        (service, "GET", "/", [*NAVIGATES, ("Origin", "")]),
        (without_demo, "GET", "/", NAVIGATES),
    ):
        assert refused(await server.call(method, path, origin=None, headers=headers)) == MISSING
    for origin, more in ((ORIGIN, []), (None, [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "cors")])):
        response = await service.call("GET", "/", origin=origin, headers=[*more, *(NAVIGATES if origin else [])])
        assert list(response.json) == ["version"]
    documents = [(await server.get("/openapi.json"))["paths"]["/"]["get"] for server in (service, without_demo)]
    assert ["303" in document["responses"] for document in documents] == [True, False]


async def test_openapi_document_needs_no_origin(service):
    response = await service.call("GET", "/openapi.json", origin=None)
    assert (response.status, allowed_origin(response)) == (200, None)
    for origin in (ORIGIN, "null"):
        with_origin = await service.call("GET", "/openapi.json", origin=origin)
        assert (with_origin.status, allowed_origin(with_origin), with_origin.body) == (200, origin, response.body)
    for origin, more in (("", []), (ORIGIN, [("Origin", OTHER)]), ("o" * 513, [])):
        rejected = await service.call("GET", "/openapi.json", origin=origin, headers=more)
        assert refused(rejected) == MISSING
    head = await service.call("HEAD", "/openapi.json", origin=None)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(response.body)))


@pytest.mark.parametrize("path", ["/client.js", "/openapi.json"])
async def test_files_are_not_readable_from_origins_outside_the_allow_list(path, start_service, caplog):
    service = await start_service(allowed_origins=AllowedOrigins(frozenset({ORIGIN})))
    response = await service.call("GET", path, origin="https://other.example")
    assert (refused(response), allowed_origin(response)) == ((403, "Origin not allowed"), None)
    caplog.clear()  # the refused origin
    for origin in (None, ORIGIN):
        allowed = await service.call("GET", path, origin=origin, port=service.port)
        assert allowed.status == 200
    # Modules of the server's own pages are requested with that Origin.
    own = [("Sec-Fetch-Site", "same-origin")]
    assert (await service.call("GET", path, origin=OTHER, headers=own, port=service.port)).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_policy_blocks_external_resources(service):
    response = await service.call("GET", "/demo", origin=None, port=service.port)
    assert response.headers["Content-Security-Policy"] == POLICY
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "'unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    html = response.body.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
    assert not re.search(r"(src|href)=\"(https?:)?//", html)


async def test_demo_can_be_disabled(start_service):
    service = await start_service(demo=False)
    document = await service.get("/openapi.json")
    for path in assets.DEMO:
        assert refused(await service.raw(request("GET", path))) == (404, "Not found")
        assert path not in document["paths"]
    assert "/client.js" in document["paths"]


async def test_vendored_file_is_unchanged_and_licensed(service):
    body = (await service.call("GET", "/demo/vendor/uqr.js", origin=None, port=service.port)).body
    header, end, published = body.partition(b" */\n")
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
