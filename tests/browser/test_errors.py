"""Errors of the browser module: their codes, and advice for the mistakes of the first hour."""

import re

import pytest
from support.backend import Backend, responding
from support.browsers import Site, until
from support.documents import sections
from support.paths import ROOT

TYPES = (ROOT / "tornado_signal" / "web" / "signal-client.d.ts").read_text()
CODES = set(
    re.findall(r'"([a-z-]+)"', re.search(r"^export type ErrorCode =(.*?);", TYPES, re.MULTILINE | re.DOTALL)[1])
)
# The code and the message of the error of a call, whether it throws or rejects.
CATCH = "async (call) => { try { await call(); } catch ({code, message}) { return [code, message]; } }"


def error(page, call):
    return page.evaluate(f"({CATCH})(() => {call})")


def test_table_of_the_documentation_has_all_codes():
    table = re.findall(r"^\| `([a-z-]+)` \|", sections("browser-client")["Errors"], re.MULTILINE)
    assert sorted(table) == sorted(CODES)
    source = "".join(path.read_text() for path in (ROOT / "tornado_signal" / "web" / "client").glob("*.js"))
    made = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|timeout|replaced|unauthorized)"', source))
    made |= {f"file-{reason}" for reason in re.findall(r'failure\("(\w+)"\)', source)} | {"file-refused"}
    assert made >= CODES


def test_path_that_the_server_does_not_have_is_named(server, page):
    for options in ("{}", "{socket: false}"):
        code, message = error(page, f"new SignalClient('{server.url}/app/', {options}).sessions('lobby')")
        assert (code, "/app/" in message) == ("invalid-url", True)
        client = f"new SignalClient('{server.url}', {options})"
        assert error(page, f"{client}.poll('00000000-0000-4000-8000-000000000000', 'offerer')")[0] == "not-found"
    page.evaluate(f"enter('lobby', {{url: '{server.url}/app'}})")
    until(lambda: page.evaluate("seen.some(([name]) => name === 'close')"))


@pytest.mark.parametrize("browser", ["chromium", "firefox"])
def test_redirect_gets_no_token_and_no_secret(server, browser, request, profiles):
    headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "authorization,content-type"}

    def redirect(handler):
        if handler.path.startswith("/connect"):
            return handler.send(200, Site.CONNECT.read_bytes(), {"Content-Type": "text/html"})
        return handler.send(307, b"", {"Location": target.base + handler.path, **headers})

    with Backend() as target, Backend() as redirecting:
        target.behaviour, redirecting.behaviour = responding({}, **headers), redirect
        url = f"http://localhost:{redirecting.server_port}"
        page = request.getfixturevalue("firefox") if browser == "firefox" else profiles.open("about:blank")
        page.goto(f"{url}/connect?{server.url}")
        until(lambda: page.evaluate("window.ready"))
        for socket in ("true", "false"):
            page.evaluate(f"window.api = new SignalClient('{url}', {{socket: {socket}, token: 'confidential'}})")
            for call in (
                "api.offer('a', {info: 'i', offer: 'o', secret: 'confidential'})",
                "api.topics()",
                "api.events({code: 'c', side: 'offerer', secret: 'confidential'}).next()",
            ):
                code, message = error(page, call)
                assert code == "not-a-server"
                assert message.startswith(f"{url}/")
                assert f" redirects to {target.base}/" in message
            page.evaluate("api.leave('c', 'offerer', {secret: 'confidential'})")
        assert target.requests
        assert not [request for request in target.requests if "confidential" in str(request)]


def test_insecure_url_of_a_secure_page_is_named(profiles):
    web, page = ROOT / "tornado_signal" / "web", profiles.context().new_page()
    page.route("https://app.example/**", lambda route: route.fulfill(path=web / route.request.url.split("/", 3)[3]))
    page.route("https://app.example/connect**", lambda route: route.fulfill(path=Site.CONNECT))
    page.goto("https://app.example/connect?https://app.example")
    page.wait_for_function("() => window.ready")
    for socket in ("true", "false"):
        code, message = error(page, f"new SignalClient('http://signal.example', {{socket: {socket}}}).topics()")
        assert code == "server-unreachable"
        assert message.endswith("allows the origin https://app.example, and has an https: URL if that has one")


def test_page_alone_on_a_loopback_address_names_its_origin(page, connect_page, server, site):
    hints = []
    page.on("console", lambda message: hints.append(message.text))
    page.clock.install()
    page.evaluate("enter('lobby')")
    until(lambda: page.clock.fast_forward(1000) or hints)
    expected = f"Nobody else of {site.origin} is in room~lobby. localhost and 127.0.0.1 are different origins."
    assert hints == [expected]
