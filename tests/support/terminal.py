"""A program in a terminal, and its output."""

import contextlib
import os
import pty
import re
import select
import subprocess
import time

from .command import CLIENT, COMMAND
from .forked import Process

BOUND_S = 30


class Terminal(contextlib.AbstractContextManager):
    """A program whose standard streams are a terminal, as a context manager. `text` is the unread output."""

    def __init__(self, *command, env=None):
        self._master, slave = pty.openpty()
        self.text = ""
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        if command[0] in (COMMAND, CLIENT):
            self.process = Process(command[0].name, *command[1:], env=env, **streams)
        else:
            self.process = subprocess.Popen([*map(str, command)], env=env, start_new_session=True, **streams)
        os.close(slave)

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text):
        os.write(self._master, text.encode())

    def until(self, pattern):
        """Read until a pattern matches the output since the last match, and return the match."""
        deadline_s = time.monotonic() + BOUND_S
        while not (match := re.search(pattern, self.text)):
            assert self._read(deadline_s), f"the program exited without {pattern}: {self.text}"
        self.text = self.text[match.end() :]
        return match

    def rest(self):
        deadline_s = time.monotonic() + BOUND_S
        while self._read(deadline_s):
            pass
        return self.text, self.process.wait(BOUND_S)

    def _read(self, deadline_s):
        ready, _, _ = select.select([self._master], [], [], max(0, deadline_s - time.monotonic()))
        assert ready, f"no more output: {self.text}"
        data = b""
        with contextlib.suppress(OSError):  # at the end of a terminal
            data = os.read(self._master, 65536)
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return data
