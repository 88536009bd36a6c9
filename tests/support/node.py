"""Node.js, with the functions of a module as its globals."""

import json
import subprocess

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
