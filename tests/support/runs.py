"""The end of a run of tests: every process, thread, network and temporary file is gone, or the run fails."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from . import keeper
from .keeper import GRACE_S, MARK, mounts, processes

NETWORKS = Path("/run/netns")
# Programs leave these in the folder for temporary files, some only when they are killed: browsers, Node.js, pip, and
# the supervisor of several workers. They are removed with the run's folder.
FORGOTTEN = ("org.chromium.", ".org.chromium.", "pulse-", "playwright", "node-compile-cache", "pip-", "tornado-signal-")
# pytest-tornasync closes event loops without the threads of their executors. An idle one stays until it is collected.
IDLE = "asyncio_"


class Process:
    """The plugin of each process that runs tests: no thread and no child process is left at its end."""

    def __init__(self) -> None:
        self.before = {*threading.enumerate()}

    def left(self) -> list[str]:
        return settle(self._left)

    def _left(self, folder=None):
        threads = [each.name for each in threading.enumerate() if each not in self.before]
        left = [f"thread {name}" for name in threads if not name.startswith(IDLE)]
        return left + [f"process {pid}: {text}" for pid, text in processes(folder, os.getpid()).items()]


class Worker(Process):
    """The plugin of a worker of pytest-xdist."""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        session.config.workeroutput["left"] = self.left()


class Run(Process):
    """The plugin of the process that starts the run and waits for its end.

    Attributes:
        folder: the run's folder, in which `tempfile` creates all files.
    """

    def __init__(self, config) -> None:
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # survives SIGINT, and SIGKILL for the process group of the run
        )
        self.folder, self.killed = json.loads(self._keeper.stdout.readline())
        os.environ |= {MARK: self.folder, "TMPDIR": self.folder, "NODE_DISABLE_COMPILE_CACHE": "1"}
        tempfile.tempdir = self.folder
        self.results = Path(config.option.basetemp or f"{self.folder}/t")  # of pytest, with what failed tests wrote
        config.option.basetemp = str(self.results)
        self.networks = named_networks()
        self.reported, self.failed = [], True
        super().__init__()

    def pytest_report_header(self):
        return f"ended {self.killed} processes that a killed run had left" if self.killed else []

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.reported += getattr(node, "workeroutput", {}).get("left", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """Fail the run if something is left. By now all workers have exited."""
        left = self.reported + self.left()
        self.failed = bool(left or session.testsfailed or session.exitstatus)
        if left:
            reporter = session.config.pluginmanager.getplugin("terminalreporter")
            report = pytest.TestReport("the run", ("", None, "the run"), {}, "failed", "\n".join(left), "teardown")
            reporter.stats.setdefault("error", []).append(report)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _left(self):
        left = [each for each in super()._left(self.folder) if not each.startswith(f"process {self._keeper.pid}:")]
        left += [f"mount {place}" for place in mounts(self.folder)]
        left += [f"network namespace {name}" for name in named_networks() - self.networks]
        files = [each for each in Path(self.folder).iterdir() if not each.name.startswith(FORGOTTEN)]
        return left + [f"file {each}" for each in files if each != self.results]

    def pytest_unconfigure(self):
        """Keep what failed tests wrote, until the checkout's next run."""
        self._keeper.communicate("keep" if self.failed else "")


def named_networks() -> set[str]:
    return {each.name for each in NETWORKS.iterdir()} if NETWORKS.exists() else set()


def settle(find) -> list[str]:
    """Return what is left, after a while in which it may exit."""
    end_s = time.monotonic() + GRACE_S
    while (left := find()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return left


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Register the plugin of this process, before pytest creates files. A test's own run is part of the outer one."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker())
    elif MARK not in os.environ:
        config.pluginmanager.register(Run(config))
