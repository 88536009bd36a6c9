"""Every kind of response in the eyes of httplint, which checks REDbot's rules (RFC 9110, RFC 9111, Fetch)."""

import pytest
from support.service import ORIGIN, OTHER, declared, head, request, with_origin
from support.tokens import write_secret

from tornado_signal.lifecycle import DRAINING
from tornado_signal.settings.origins import Origins
from tornado_signal.system import assets

httplint = pytest.importorskip("httplint")

ACCEPTED = {
    "STATUS_BAD_REQUEST": "it says what 400 is",
    "STATUS_URI_TOO_LONG": "it says what 414 is",
    "CORS_PREFLIGHT_ONLY": "every OPTIONS is answered like a preflight (docs/decisions.md)",
    "FRESHNESS_HEURISTIC": "a known fault: caches may keep JSON, since it has no Cache-Control",
}
UPGRADE = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "12")]
PREFLIGHT = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "content-type")]
FILES = [{"Accept-Encoding": "gzip"}, {"Sec-Fetch-Mode": "navigate"}, {}]
BODY = {"offer": "o", "info": "i", "side": "answerer", "candidate": "c"}
OTHERS = [
    "/nothing/at/all",
    "/%ff/sessions",
    "/peerjs/key/id",
    "/peerjs/key/peers",
    "/y-webrtc",
    "/tracker",
    "/x/" * 40_000,
]
ADMIN = ["/", "/metrics", "/healthz", "/readyz", "/status", "/nothing", "/inspect"]


def lint(data, method, response):
    """Return the notes of httplint, with their names as keys."""
    linters = httplint.HttpRequestLinter(), httplint.HttpResponseLinter(no_content=method == "HEAD")
    asked, answered = linters
    first, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    asked.process_request_topline(*first.split(b" "))
    asked.process_headers([tuple(line.split(b": ", 1)) for line in lines])
    asked.finish_content(True)
    answered.request = asked
    answered.process_response_topline(b"HTTP/1.1", b"%d" % response.status)
    answered.process_headers([(name.encode(), value.encode("latin-1")) for name, value in response.headers.get_all()])
    answered.feed_content(response.body)
    answered.finish_content(True)
    notes = [*answered.notes]
    notes += [each for note in notes for each in note.subnotes]
    return {
        type(note).__name__: (note.summary, note.subject) for note in notes if note.level.value in ("bad", "warning")
    }


def requests(code):
    """Yield methods and requests: of each operation and file, with and without mistakes."""
    for path, method in declared().items():
        path = path.replace("{topic}", "lobby")
        body = BODY | {"code": code} if method == "POST" else None
        stream = "HEAD" if path.endswith("events") else method
        yield stream, request(method, f"{path}?code={code}&side=answerer", body)
        yield stream, request(method, path, {} if body else None, None)
        yield stream, request(method, path, b"{" if body else None)
        for other in ("PUT", "HEAD", "OPTIONS"):
            yield other, request(other, path)
        yield "OPTIONS", request("OPTIONS", path, headers=PREFLIGHT)
    for path in ("/", *assets.CLIENT, *assets.DEMO):
        for headers in FILES:
            yield "GET", head("GET", path, with_origin(None, headers.items()))
    for path in OTHERS:
        yield "GET", request("GET", path)
    for path in ("/ws", "/y-webrtc", "/tracker", "/peerjs?id=a&token=b&key=c"):
        yield "GET", head("GET", path, with_origin(ORIGIN, UPGRADE))
    yield "GET", head("GET", "/health", [("Host", "x"), ("Host", "y")])
    yield "GET", head("GET", "/health", [("Host", "x"), ("X", "x" * 70_000)])
    yield "POST", request("POST", "/x/offer", {"offer": "o" * 300_000})


async def test_httplint_finds_what_is_accepted_and_nothing_else(start_service, tmp_path):
    found = {}

    async def check(service, method, data, port=None):
        response = await service.raw(data, method, port)
        for name, note in lint(data, method, response).items():
            found.setdefault(name, []).append((*note, response.status, data[:60]))
        statuses.add(response.status)
        return response

    statuses, service = set(), await start_service(peerjs_discovery=True)
    for method, data in requests(await service.offer()):
        response = await check(service, method, data)
        if tag := response.headers.get("Etag"):
            await check(service, method, data.replace(b"\r\n\r\n", b"\r\nIf-None-Match: %b\r\n\r\n" % tag.encode(), 1))
    for path in ADMIN:
        await check(service, "GET", head("GET", path, [("Host", "localhost"), *FILES[0].items()]), service.admin_port)
    for settings in (
        {"allowed_origins": Origins(frozenset({OTHER}))},
        {"rate_per_address": 1, "unlimited_addresses": ()},
        {"auth_keys": write_secret(tmp_path / "keys")},
        {},
    ):
        service = await start_service(**settings)
        if not settings:
            service.shared.lifecycle.reach(DRAINING)
        for _ in range(11 if "rate_per_address" in settings else 1):
            await check(service, "GET", request("GET", "/topics"))
    assert statuses >= {200, 204, 303, 304, 400, 401, 403, 404, 405, 413, 429, 431, 503}
    assert found.keys() == ACCEPTED.keys(), found
