"""The messages of docs/troubleshooting.md: a real browser logs them in the described situations."""

import re

import pytest
from support.browsers import FLAGS
from support.documents import all_blocks, pages, sections
from support.paths import ROOT

FETCH = "url => fetch(url).catch(() => {})"
CONNECT = """url => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onopen = socket.onerror = resolve;
})"""
CALL = """async ([module, url]) => {
  const { SignalClient } = await import(module);
  try {
    return await new SignalClient(url).topics();
  } catch (error) {
    return [error.code, error.message];
  }
}"""
CAMERA = "navigator.mediaDevices.getUserMedia({ video: true })"


def messages(heading):
    """Return a pattern for each line of the blocks under a heading, in which … stands for any text."""
    lines = "".join(text for language, text in all_blocks(sections("troubleshooting")[heading]) if not language)
    return [".+".join(map(re.escape, line.split("…"))) for line in lines.splitlines()]


@pytest.fixture
def open_page(profiles, site):
    """A function that opens a page of another port in Chromium. It returns the page and the texts of its console."""
    site.pages["/"] = "<!DOCTYPE html>"

    def opening(host="127.0.0.1", browser=None):
        page, console = (browser or profiles.context()).new_page(), []
        page.on("console", lambda message: console.append(message.text))
        page.goto(f"http://{host}:{site.server_port}/")
        return page, console

    return opening


def logged(page, console, patterns):
    """Wait until the console has a message for each pattern."""
    for pattern in patterns:
        while not any(re.fullmatch(pattern, text) for text in console):
            page.wait_for_event("console")


def test_refused_origin(start, open_page):
    refusing, open_to_all = start("--allowed-origins", "https://app.example"), start(data="other")
    page, console = open_page()
    page.evaluate(FETCH, f"{refusing.url}/topics")
    page.evaluate(CONNECT, f"{refusing.url.replace('http', 'ws')}/ws")
    *of_console, error = messages("403 or CORS")
    logged(page, console, of_console)
    code, message = page.evaluate(CALL, [f"{open_to_all.url}/client.js", refusing.url])
    assert code == "server-unreachable"
    assert re.fullmatch(error, message)


def test_url_of_something_else(start, open_page):
    module = f"{start().url}/client.js"
    page, _ = open_page()
    foreign, invalid = messages("The server is not found")
    code, message = page.evaluate(CALL, [module, page.url.removesuffix("/")])
    assert code == "not-a-server"
    assert re.fullmatch(foreign, message)
    code, message = page.evaluate(CALL, [module, "signal.example.com"])
    assert code == "invalid-url"
    assert re.fullmatch(invalid, message)


def test_public_page_without_permission_for_the_local_network(start, open_page, launch, site):
    server = start()
    flags = [*FLAGS, f"--ip-address-space-overrides=127.0.0.1:{site.server_port}=public"]
    page, console = open_page(browser=launch(flags))
    page.evaluate(FETCH, f"{server.url}/topics")
    page.evaluate(CONNECT, f"{server.url.replace('http', 'ws')}/ws")
    logged(page, console, messages("Chrome asks for the local network"))


def test_insecure_page_has_no_camera(open_page):
    page, _ = open_page(host="demo.example")
    said = page.evaluate(f"() => {{ try {{ {CAMERA} }} catch (error) {{ return error.message }} }}")
    assert re.fullmatch(messages("Camera and microphone need HTTPS")[0], said)


def test_all_other_messages_are_those_of_the_package():
    files = [path for kind in ("*.py", "*.js") for path in (ROOT / "tornado_signal").rglob(kind)]
    source = re.sub(r'"\s*\+?\s*f?"', "", "".join(path.read_text() for path in files))
    blocks = "".join(text for language, text in all_blocks(pages()["troubleshooting"]) if not language).splitlines()
    # See the tests above.
    others = ("Access to", "WebSocket connection", "Cannot read", "… has no scheme", "No response")
    lines = [line for line in blocks if not line.startswith(others)]
    for heading in ("Results of the check", "Messages of the log"):
        lines += re.findall(r"^\| `(.*?)` \|", sections("troubleshooting")[heading], re.MULTILINE)
    assert len(lines) == 29
    for line in lines:
        # The system's own words, and what the code inserts.
        for part in re.split(
            r"\(…\)|…|(?:Address|Cannot|Permission)(?: [a-z]+)+|--port|--address|, or choose|; grant|ICE servers: ",
            line,
        ):
            assert part.strip(" ;:,.") in source, line
