"""Firefox, driven over WebDriver BiDi (https://w3c.github.io/webdriver-bidi/)."""

import contextlib
import itertools
import json
import os
import re
import subprocess

from websockets.sync.client import connect

from .needs import require
from .waiting import until

BOUND_S = 60
# The peers are in one machine, perhaps without a network: loopback counts, and addresses are shown as they are.
PREFERENCES = {
    "media.peerconnection.ice.loopback": True,
    "media.peerconnection.ice.obfuscate_host_addresses": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "app.normandy.enabled": False,
    "extensions.update.enabled": False,
}


class Firefox:
    """A Firefox with one tab, without a window; `profile` is a directory that it makes."""

    def __init__(self, profile):
        require("firefox-esr")
        profile.mkdir()
        lines = [f'user_pref("{name}", {json.dumps(value)});\n' for name, value in PREFERENCES.items()]
        (profile / "user.js").write_text("".join(lines))
        options = ["--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        environ = os.environ | {"HOME": str(profile), "MOZ_DISABLE_CONTENT_SANDBOX": "1"}  # root cannot have it
        with (profile / "log").open("w") as log:
            command = ["firefox-esr", *map(str, options), "about:blank"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        self._ids = itertools.count(1)
        try:
            found = until(lambda: re.search(r"BiDi listening on (ws://\S+)", (profile / "log").read_text()))
            self._open = contextlib.ExitStack()
            self._socket = self._open.enter_context(connect(f"{found[1]}/session", max_size=None, ping_interval=None))
            self._ask("session.new", capabilities={})
            self._tab = self._ask("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def goto(self, url):
        self._ask("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def evaluate(self, expression):
        """Return the value of an expression of the page, or that of its promise, by way of JSON."""
        text = f"(async () => JSON.stringify([await ({expression})]))()"
        found = self._ask("script.evaluate", expression=text, target={"context": self._tab}, awaitPromise=True)
        assert found["type"] == "success", found
        return json.loads(found["result"]["value"])[0]

    def _ask(self, method, **params):
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv(BOUND_S))).get("id") != number:
            pass
        assert answer["type"] == "success", answer
        return answer["result"]

    def close(self):
        self._open.close()
        self._process.terminate()
        self._process.wait(BOUND_S)
