"""Firefox, driven over WebDriver BiDi (https://w3c.github.io/webdriver-bidi/)."""

import asyncio
import json
import os
import re
import subprocess
import threading

from tornado.websocket import websocket_connect

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
        # Playwright has a loop of its own in the thread of the tests.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._number = 0
        try:
            found = until(lambda: re.search(r"BiDi listening on (ws://\S+)", (profile / "log").read_text()))
            self._socket = self._run(self._connect(f"{found[1]}/session"))
            self._ask("session.new", capabilities={})
            self._tab = self._ask("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self._process.kill()
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
        self._number += 1
        answer = self._run(self._exchange({"id": self._number, "method": method, "params": params}))
        assert answer["type"] == "success", answer
        return answer["result"]

    async def _connect(self, url):
        return await websocket_connect(url)

    async def _end(self):
        self._socket.close()
        while await self._socket.read_message() is not None:
            pass

    async def _exchange(self, message):
        await self._socket.write_message(json.dumps(message))
        while True:
            answer = json.loads(await self._socket.read_message())
            if answer.get("id") == message["id"]:
                return answer

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(BOUND_S)

    def close(self):
        self._run(self._end())
        self._process.terminate()
        self._process.wait(BOUND_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
