"""Chromium and Firefox in fresh profiles, and pages on their own origin."""

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from websockets.sync.client import connect

from .backend import Backend
from .needs import require
from .waiting import until

BOUND_MS = 60_000
TURN_SECRET = "a secret of thirty-two characters"
# The peers run on one machine, possibly without a network, so loopback addresses must be usable. A browser reveals its
# addresses to a page with permission to use the microphone, which `Profiles` grants.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--allow-loopback-in-peer-connection", "--disable-features=WebRtcHideLocalIpsWithMdns"),
    *("--use-fake-device-for-media-stream=fps=5", "--use-fake-ui-for-media-stream"),
    "--host-resolver-rules=MAP demo.example 127.0.0.1",  # unlike 127.0.0.1, it is not trustworthy without HTTPS
]

# The same settings for Firefox.
PREFERENCES = {
    "media.autoplay.default": 0,  # as after a user's click
    "media.navigator.permission.disabled": True,
    "media.navigator.streams.fake": True,
    "media.peerconnection.ice.loopback": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    **{f"network.{name}.enabled": False for name in ("captive-portal-service", "connectivity-service")},
    **{f"{name}.enabled": False for name in ("app.normandy", "extensions.update")},
}


# The types of the selected candidates of a connection: this side's and the other side's. Null before there are some.
# Only Chromium has them in the statistics of the transport.
SELECTED = """async (connection) => {
  const stats = await connection.getStats();
  const all = [...stats.values()];
  const { selectedCandidatePairId } = all.find(({ type }) => type === "transport") ?? {};
  const pair = all.find(({ id, selected }) => id === selectedCandidatePairId || selected);
  return pair && [pair.localCandidateId, pair.remoteCandidateId].map((id) => stats.get(id).candidateType);
}"""


class Site(Backend):
    """A server for pages by path, on its own port and therefore its own origin."""

    CONNECT = Path(__file__).with_name("connect.html")

    def __init__(self):
        self.pages = {"/connect": self.CONNECT.read_text()}
        super().__init__()
        self.origin = f"http://localhost:{self.server_port}"

    def behaviour(self, handler):
        text = self.pages.get(handler.path.split("?")[0])
        kind = "text/javascript" if handler.path.endswith(".js") else "text/html"
        status = 404 if text is None else 200
        handler.send(status, (text or "").encode(), {"Content-Type": f"{kind}; charset=utf-8"})


class Profiles:
    """Pages in fresh profiles of two alternating browsers. `errors` are the pages' uncaught errors."""

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


def temporary(path):
    """Return a folder for the temporary files of a browser. One below `tmp_path` is too long for sockets."""
    return str(path.parents[1])


@contextlib.contextmanager
def started(command, profile, pattern, **variables):
    """Start a browser. Yield its process and what its log says first that matches. An error kills the process."""
    with (profile / "log").open("w") as log:
        environ = os.environ | {"TMPDIR": temporary(profile)} | variables
        process = subprocess.Popen([*map(str, command), "about:blank"], stdout=log, stderr=log, env=environ)
    try:
        yield process, until(lambda: re.search(pattern, (profile / "log").read_text()))[1]
    except BaseException:
        process.kill()
        process.wait()
        raise


def launch_in(kind, enter, path):
    """Start a Playwright browser in a network namespace, through a script at `path`."""
    require("chromium")
    command = ["env", f"TMPDIR={temporary(path)}", f"HOME={path.parent}", *enter, shutil.which("chromium")]
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    path.chmod(0o755)
    return kind.launch(executable_path=path, args=FLAGS)


def open_connect(context, server, origin):
    """Open connect.html on an origin without a server. Without HTTPS, a same-origin page would send no Origin."""
    page = context.new_page()
    page.set_default_timeout(BOUND_MS)
    html = Site.CONNECT.read_text()
    page.route(f"{origin}/**", lambda route: route.fulfill(body=html, content_type="text/html"))
    page.goto(f"{origin}/connect?{server.url}")
    page.wait_for_function("() => window.ready")
    return page


class Windowed:
    """A Chromium in which a tab that another tab covers is really in the background."""

    def __init__(self, chromium, profile):
        require("chromium")
        options = [f"--user-data-dir={profile}", "--headless", "--remote-debugging-port=0", "--no-first-run"]
        profile.mkdir()
        with started(["chromium", *options, *FLAGS], profile, r"(ws://\S+)") as (self.process, url):
            self.browser = chromium.connect_over_cdp(url, no_defaults=True)
        self.context = self.browser.contexts[0]
        self.context.set_default_timeout(BOUND_MS)
        self.context.grant_permissions(["microphone"])

    def kill(self):
        """Kill the process, as a system that is out of memory does."""
        self.process.kill()
        self.process.wait()

    def close(self):
        self.browser.close()
        self.process.terminate()
        self.process.wait()


class Firefox:
    """A Firefox with one tab, driven over WebDriver BiDi (https://w3c.github.io/webdriver-bidi/)."""

    def __init__(self, profile):
        require("firefox-esr")
        profile.mkdir(exist_ok=True)
        lines = [f'user_pref("{name}", {json.dumps(value)});\n' for name, value in PREFERENCES.items()]
        (profile / "user.js").write_text("".join(lines))
        options = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        environ = {"HOME": str(profile), "MOZ_DISABLE_CONTENT_SANDBOX": "1"}  # the sandbox does not work for root
        self._ids, log = itertools.count(1), r"BiDi listening on (ws://\S+)"
        with started(["firefox-esr", *options], profile, log, **environ) as (self.process, url):
            self._open = contextlib.ExitStack()
            self._socket = self._open.enter_context(connect(f"{url}/session", max_size=None, ping_interval=None))
            self._ask("session.new", capabilities={})
            self._tab = self._ask("browsingContext.getTree")["contexts"][0]["context"]

    def goto(self, url):
        self._ask("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def frames(self):
        """Return the frames of the page, with the same function `evaluate`."""
        (tab,) = self._ask("browsingContext.getTree", root=self._tab)["contexts"]
        return [SimpleNamespace(evaluate=partial(self.evaluate, frame=each["context"])) for each in tab["children"]]

    def evaluate(self, expression, frame=None):
        """Return the JSON value of an expression or of its promise, of the page or a frame."""
        text = f"(async () => JSON.stringify([await ({expression})]))()"
        target = {"context": frame or self._tab}
        response = self._ask("script.evaluate", expression=text, target=target, awaitPromise=True)
        assert response["type"] == "success", response
        return json.loads(response["result"]["value"])[0]

    def _ask(self, method, **params):
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv(3 * BOUND_MS / 1000))).get("id") != number:
            pass
        assert answer["type"] == "success", answer
        return answer["result"]

    def close(self):
        self._open.close()
        self.process.terminate()
        self.process.wait(BOUND_MS / 1000)


class Traffic:
    """Record the requests of a page from now on: HTTP requests, WebSockets, and the messages over these."""

    def __init__(self, page):
        self.page, self.requests, self.sockets, self.sent, self.received = page, [], [], [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("websocket", self._opened)

    def _opened(self, found):
        self.sockets.append(found)
        found.on("framesent", lambda text: self.sent.append(json.loads(text)))
        found.on("framereceived", lambda text: self.received.append(text))

    @property
    def methods(self):
        return [each["method"] for each in self.sent]

    def now(self):
        """All of it up to now: events arrive while the page evaluates something."""
        self.page.evaluate("0")
        return self


def listed(server, origin, topic="lobby"):
    return server.call(f"/{topic}/sessions", origin=origin)[1]["sessions"]


def reach(pages, expression, wanted=True, bound_s=60):
    """Wait until an expression has a value on all pages."""
    for page in pages:
        until(lambda page=page: page.evaluate(expression) == wanted, bound_s)
