"""Real browsers: Debian's Chromium, in profiles of its own, on pages of an origin of their own."""

import contextlib
import http.server
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

from .needs import require

BOUND_MS = 60_000
TURN_SECRET = "a secret of thirty-two characters"
# Peers in one machine that may have no network at all: loopback counts, and permission to use a microphone (which
# `Profiles` gives) is what makes a browser show its addresses.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--allow-loopback-in-peer-connection",
    "--disable-features=WebRtcHideLocalIpsWithMdns",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]


class Site:
    """Pages on a port of their own, and so of an origin of their own.

    Attributes:
        origin: theirs.
        pages: what is at each path, as text.
    """

    CONNECT = Path(__file__).with_name("connect.html")

    def __init__(self):
        self.pages = {"/connect": self.CONNECT.read_text()}
        site = self

        class Pages(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = site.pages.get(self.path.split("?")[0])
                data = (text or "").encode()
                self.send_response(404 if text is None else 200)
                kind = "text/javascript" if self.path.endswith(".js") else "text/html"
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.origin = f"http://localhost:{self._server.server_address[1]}"

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Profiles:
    """Opens pages, each in a fresh profile, the first in one browser and the second in another, and so on.

    Args:
        chromium: gives a browser by its number, 0 or 1.

    Attributes:
        errors: what the pages left uncaught.
    """

    def __init__(self, chromium):
        self.chromium, self.contexts, self.errors = chromium, [], []

    def context(self, **options):
        browser = self.chromium(len(self.contexts) % 2)
        context = browser.new_context(**{"permissions": ["microphone"], **options})
        context.set_default_timeout(BOUND_MS)
        self.contexts.append(context)
        return context

    def open(self, url, **options):
        page = self.context(**options).new_page()
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.goto(url)
        return page

    def close(self):
        while self.contexts:
            self.contexts.pop().close()


def launch_in(kind, enter, path):
    """A browser inside a network namespace.

    Args:
        kind: Playwright's kind of browser.
        enter: the words before a command that is to run there.
        path: a file to be made, which starts it.
    """
    require("chromium")
    path.write_text(f'#!/bin/sh\nexec {" ".join(enter)} {shutil.which("chromium")} "$@"\n')
    path.chmod(0o755)
    return kind.launch(executable_path=path, args=FLAGS)


def open_connect(context, server, origin):
    """Open connect.html on an origin that no server has: without HTTPS a browser does not tell the server's own."""
    page = context.new_page()
    page.set_default_timeout(BOUND_MS)
    html = Site.CONNECT.read_text()
    page.route(f"{origin}/**", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{origin}/connect?{server.url}")
    page.wait_for_function("() => window.ready")
    return page


class Windowed:
    """A Chromium that nobody pretends to look at: a tab behind another one really is in the background.

    Args:
        chromium: Playwright's kind of browser.
        profile: the directory of its profile.

    Attributes:
        context: that profile.
    """

    def __init__(self, chromium, profile):
        require("chromium")
        options = [f"--user-data-dir={profile}", "--headless", "--remote-debugging-port=0", "--no-first-run"]
        profile.mkdir()
        with (profile / "log").open("w") as log:
            command = [shutil.which("chromium"), *options, *FLAGS, "about:blank"]
            self.process = subprocess.Popen(command, stderr=log)
        found = until(lambda: re.search(r"ws://\S+", (profile / "log").read_text()))
        self.browser = chromium.connect_over_cdp(found[0], no_defaults=True)
        self.context = self.browser.contexts[0]
        self.context.set_default_timeout(BOUND_MS)
        self.context.grant_permissions(["microphone"])

    def kill(self):
        """End it as the system does that has no memory left; when, by the clock."""
        killed_s = time.time()
        self.process.kill()
        self.process.wait()
        return killed_s

    def close(self):
        self.browser.close()
        self.process.terminate()
        self.process.wait()


def until(what, bound_s=BOUND_MS / 1000):
    """Wait until something is true, and return it."""
    end_s = time.monotonic() + bound_s
    while not (found := what()):
        assert time.monotonic() < end_s, "it did not come true"
        time.sleep(0.02)
    return found


@contextlib.contextmanager
def before(page, method, action):
    """Do something whenever a page calls a method, with its parameters, before that goes over the WebSocket."""
    page.expose_function("beforeSending", action)
    page.evaluate(
        """(method) => {
          window.send = WebSocket.prototype.send;
          WebSocket.prototype.send = async function (text) {
            const message = JSON.parse(text);
            if (message.method === method) await beforeSending(message.params);
            send.call(this, text);
          };
        }""",
        method,
    )
    yield
    page.evaluate("() => { WebSocket.prototype.send = send; }")


def listed(server, origin, topic="lobby"):
    """The sessions of a topic, as pages of an origin see them."""
    return server.call(f"/{topic}/sessions", origin=origin)[1]["sessions"]
