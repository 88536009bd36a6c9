"""The original servers of other protocols, from npm."""

import shutil
from pathlib import Path

from support.redis_servers import free_port

from . import npm
from .processes import ROOT, BenchError, Server

PACKAGES = ROOT / "tests" / "libraries"
TRACKER = """
import Server from "PACKAGES/bittorrent-tracker/server.js"
const server = new Server({ udp: false, http: false, ws: true })
server.listen(PORT, "127.0.0.1", () => console.log("listening"))
"""  # the command of the package also needs WebRTC in Node.js


class Original(Server):
    """A server of an npm package on a free port, with its log in a folder. It prints `started` when it listens.

    In the arguments of Node.js, PORT is the port, and PACKAGES the folder of the packages.
    """

    def __init__(self, where: Path, started: str, *arguments: str) -> None:
        if shutil.which("node") is None:
            raise BenchError("there is no Node.js (node)")
        self._port, self._started = free_port(), started
        port, packages = str(self._port), str(npm.node_modules(PACKAGES))
        command = [argument.replace("PORT", port).replace("PACKAGES", packages) for argument in arguments]
        variables = {"PORT": port, "HOST": "127.0.0.1", "NODE_ENV": "production"}
        super().__init__(["node", *command], where / f"node-{port}.log", **variables)

    def _listening(self) -> str | None:
        return f"http://127.0.0.1:{self._port}" if self._started in self.log() else None


def peerjs(where: Path, *options: str) -> Server:
    command = ("PACKAGES/peer/dist/bin/peerjs.js", "--host", "127.0.0.1", "--concurrent_limit", "100000", *options)
    return Original(where, "Started PeerServer", *command)


def y_webrtc(where: Path) -> Server:
    return Original(where, "running on", "PACKAGES/y-webrtc/bin/server.js")


def tracker(where: Path) -> Server:
    return Original(where, "listening", "--input-type=module", "-e", TRACKER)
