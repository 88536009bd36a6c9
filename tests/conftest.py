"""Fixtures of several test files, such as stores that are checked when their test ends, and the levels of tests."""

import asyncio
import collections
import contextlib
import gc
import itertools
import logging
import os
import signal

import hypothesis
import pytest

pytest.register_assert_rewrite("support")  # before any of it is imported
FIXTURES = ("browser_fixtures", "certificates", "networks", "proxies", "redis_traffic", "service", "service_manager")
pytest_plugins = [f"support.{name}" for name in FIXTURES]

from support import families, forked, redis_servers
from support.command import Server
from support.disks import SIZE_MIB, mounted
from support.needs import require
from support.runs import pytest_configure  # noqa: F401
from support.stores import ENGINES, HandClock, Under
from support.waiting import end_all
from support.webhooks import Receiver

from tornado_signal.errors import Unavailable

# How long an example takes says something about the machine, not about the code; nothing is left behind.
# Every run has other examples.
hypothesis.settings.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("suite"), max_examples=20)
hypothesis.settings.load_profile("suite")


# A shell's background job ignores SIGINT, and whatever a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# They take longest, and begin.
HEAVY = "artefacts kubernetes containers packaging systemd_real protocols_across_servers client_socket monitoring"


def pytest_addoption(parser):
    """How much runs: `tests/run` passes its level on."""
    parser.addoption(
        "--level",
        choices=("default", "changed", "all", "weekly"),
        help="default: no slow tests; all: every test that is not weekly, and a skipped one fails; changed: the same "
        "without the families whose files are unchanged (tests/support/families.py); weekly: only weekly tests. "
        "Otherwise every chosen test runs.",
    )


def pytest_collection_modifyitems(config, items):
    """Select the tests of the level, and begin with those that take long."""
    level = config.getoption("level")
    if level is not None:
        left_out = [item for item in items if (item.get_closest_marker("weekly") is None) == (level == "weekly")]
        if level == "changed":
            unchanged = families.tests_of(families.unchanged())
            left_out += [item for item in items if item.nodeid.startswith(unchanged)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in {*left_out}]
    slow = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow"):
            slow[item.path].append(item)
            if level == "default":
                item.add_marker(pytest.mark.skip(reason="slow"))
    # pytest-xdist divides the list evenly, and workers that are done steal from the end of another one's part. So each
    # part begins with its share of the files that have slow tests.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    shares = [[] for _ in range(workers)]
    heavy = [f"test_{name}.py" for name in HEAVY.split()]
    by_weight = sorted(slow, key=lambda path: heavy.index(path.name) if path.name in heavy else len(heavy))
    for number, path in enumerate(by_weight):
        shares[number % workers] += slow[path]
    rest = iter([item for item in items if not item.get_closest_marker("slow")])
    size = len(items) // workers
    items[:] = [item for share in shares for item in (*share, *itertools.islice(rest, max(0, size - len(share))))]
    items += rest


def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        require(*mark.args)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Unless the level is the default one, a skipped test fails."""
    return fail_if_skipped(item.config, (yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """The same for a file that is skipped as a whole."""
    return fail_if_skipped(collector.config, (yield))


def fail_if_skipped(config, report):
    """Return a report, as a failure if the test was skipped and may not be."""
    level = config.getoption("level")
    if report.skipped and not hasattr(report, "wasxfail") and level in ("changed", "all", "weekly"):
        report.outcome, report.longrepr = "failed", f"`tests/run {level}` does not allow skips. {report.longrepr[2]}"
    return report


def pytest_sessionfinish(session, exitstatus):
    config = session.config
    whole = config.args == config.getini("testpaths") and not (config.option.keyword or config.option.collectonly)
    is_run = not hasattr(config, "workerinput")
    if is_run and exitstatus == 0 and whole and config.getoption("level") in ("changed", "all"):
        families.record_passed()


def pytest_terminal_summary(terminalreporter, config):
    """Print one line for each reason for which tests were skipped."""
    if skipped := terminalreporter.stats.get("skipped"):
        terminalreporter.section("skipped")
        reasons = collections.Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5} {reason}")
        if config.getoption("level") == "default":
            terminalreporter.write_line(
                f"{len(skipped)} skipped. `tests/run all` installs what they need and runs them."
            )


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Spare garbage collections the thousands of tests and their imports, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def default_loop():
    """The loop that Tornado replaces while its own is current. Without this fixture it would stay open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="module", autouse=True)
def collected():
    """A collection of garbage after each file, so that what it has left open fails its last test."""
    yield
    gc.collect()


@pytest.fixture
def uncollected():
    """Without garbage collection, objects in reference cycles stay."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def shared_processes():
    """The servers of Redis and the process to fork from that serve all tests of this process."""
    yield
    redis_servers.end_shared()
    forked.end()


class Log(pytest.LogCaptureFixture):
    """A log whose records are those of the project, and errors: which others there are depends on the load."""

    @property
    def records(self):
        return [
            each for each in super().records if each.name.startswith("tornado_signal") or each.levelno >= logging.ERROR
        ]


@pytest.fixture
def caplog(caplog):
    """The log of a test, whose `records` and `messages` can be compared. Its `text` has those of all packages."""
    caplog.__class__ = Log
    return caplog


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture(params=["leveldb", pytest.param("redis-cluster", marks=pytest.mark.slow)])
def engine(request, tmp_path, clock):
    """A factory of stores of one engine. A test that uses it runs with LevelDB and, as a slow test, with a cluster."""
    return ENGINES[request.param](tmp_path, clock)


@pytest.fixture
def open_store(io_loop, engine):
    """A function that opens a store. At the end of the test each store is checked, reopened and checked again."""
    opened = {}

    async def open_one(name="data", **options):
        store = await engine.open(name, **options)
        opened[name] = (store, options)
        return store

    async def prove():
        for name, (store, options) in opened.items():
            with contextlib.suppress(Unavailable):  # the test has closed it
                await engine.check(store)
            await store.close()
            if not engine.in_files:  # another process of Redis would read the same
                continue
            again = await engine.open(name, **options)
            try:
                await engine.check(again)
            finally:
                await again.close()

    yield open_one
    io_loop.run_sync(prove)


@pytest.fixture
def store(io_loop, open_store):
    """A fresh store with random codes, under `TIMEOUT_MS`."""
    return io_loop.run_sync(open_store)


@pytest.fixture
def under():
    """A function that makes a store speak for one origin: `under(store, origin)`."""
    return lambda store, origin="https://one.example": Under(store, origin)


@pytest.fixture
def start(tmp_path):
    """A function that starts the installed command in an empty directory, by default on the same data each time.

    With a `redis`, a server or a cluster, the data is there. Other options are those of `support.command.Server`.
    """

    def starting(*arguments, data=None, redis=None, **options):
        flags = [] if data is None else ["--data-dir", tmp_path / data]
        flags += [] if redis is None else ["--store", "redis", "--redis-nodes", redis.address]
        return Server(*flags, *arguments, **{"cwd": tmp_path, **options})

    with end_all(starting, Server.end) as start:
        yield start


redis = redis_servers.fixture(redis_servers.RedisServer, "redis", scope="module")


@pytest.fixture
def receiver():
    """A receiver of webhooks, which gets nothing that it has to complain about."""
    with Receiver() as receiver:
        yield receiver
        assert receiver.problems == []


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of its own with little room."""
    with mounted(tmp_path / "disk", SIZE_MIB) as path:
        yield path
