"""Node.js, with the functions of a module as its globals."""

import json
import posixpath
import re
import subprocess
import urllib.request

from .needs import require

BOUND_S = 30
# Each line of standard input is an expression, whose value is printed as JSON.
PROGRAM = """
import { createInterface } from "node:readline";

Object.assign(globalThis, await import(process.argv[1]));
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify([await (0, eval)(JSON.parse(line))]));
}
"""


def fetch_module(url, directory):
    """Fetch the module and its parts as a browser does, and return the module's path."""
    (directory / "package.json").write_text('{"type": "module"}')
    pending, names = ["client.js"], set()
    while pending:
        name = pending.pop()
        names.add(name)
        with urllib.request.urlopen(f"{url}/{name}", timeout=BOUND_S) as response:
            source = response.read().decode()
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        imported = [f"./client/{part}" for part in re.findall(r'"([\w-]+-[0-9a-f]{8}\.js)"', source)]
        folder = posixpath.dirname(name)
        pending += {posixpath.normpath(posixpath.join(folder, each)) for each in imported} - names - {*pending}
    return directory / "client.js"


class Node:
    """A Node.js process that evaluates expressions with the names of a module. Unhandled rejections terminate it."""

    def __init__(self, module):
        require("node")
        command = ["node", "--input-type=module", "--eval", PROGRAM, module]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def evaluate(self, expression):
        """Return the JSON value of an expression or of its promise."""
        print(json.dumps(expression), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())[0]

    def close(self):
        """Close standard input, wait until the process exits, and return its status."""
        self._process.stdin.close()
        try:
            return self._process.wait(BOUND_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
