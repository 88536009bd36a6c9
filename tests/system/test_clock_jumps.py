"""Jumps of the machine's clock under a running server. Its monotonic clock does not jump."""

import functools
import signal
import time

import pytest
from support.command import with_clock_offset
from support.scraping import scrape
from support.service_manager import wait_for_message
from support.tokens import make_token, write_secret
from support.waiting import until

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
TIMEOUT_MS = 4000  # of sessions


@pytest.fixture
def start(start, tmp_path):
    variables = with_clock_offset("+0") | {"FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"), "FAKETIME_NO_CACHE": "1"}
    del variables["FAKETIME"]  # it would win over the file
    (tmp_path / "clock").write_text("+0\n")
    return functools.partial(start, "--session-timeout-ms", TIMEOUT_MS, **variables)


@pytest.fixture
def jump(tmp_path):
    def jumping(offset):
        new = tmp_path / "clock.new"
        new.write_text(f"{offset}\n")
        new.rename(tmp_path / "clock")  # so that the server never reads half of it

    return jumping


def now_ms():
    return time.time_ns() // 1_000_000


def server_ms(server):
    return server.call("/health")[1]["timestamp"]


def poll(server, code, **fields):
    return server.call("/poll", {"code": code, "side": "offerer", **fields})


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_corrected_clock_is_that_of_tokens_and_passwords_and_ended_sessions_stay_ended(start, jump, tmp_path, end):
    keys = write_secret(tmp_path / "keys")
    flags = ("--auth-keys", keys, "--auth-anonymous", "list,offer,answer", "--turn-servers", "turn:turn.example")
    flags += ("--turn-secret-file", keys / "main.secret", "--turn-ttl-s", 600, "--admin-port", 0)
    server, token = start(*flags), make_token({"exp": time.time() + 600})

    def status():
        return server.exchange("/lobby/sessions", token=token)[0]

    def remaining_ms():
        found = server.call("/ice-servers")[1]
        (name,) = [each["username"] for each in found["iceServers"] if "username" in each]
        assert int(name.partition(":")[0]) == -(-found["expiresAt"] // 1000)
        return found["expiresAt"] - now_ms()

    assert status() == 200
    jump("+30d")
    until(lambda: status() == 401)
    code = server.offer()
    assert remaining_ms() > 30 * DAY_MS
    jump("+0")
    until(lambda: status() == 200)
    assert remaining_ms() <= 600_000

    def writes():
        return scrape(server.admin_url).histogram("store_write_changes")[1]

    until(lambda: poll(server, code)[0] == 404)
    enough = writes() + 2
    until(lambda: writes() >= enough)  # of the store's time, which it writes once a second
    assert 29 * DAY_MS < 1000 * scrape(server.admin_url).one("store_clock_ahead_seconds") < 31 * DAY_MS
    while "ahead of this machine's clock" not in server.log[-1]:
        server.log.append(server.process.stderr.readline())
    server.stop(end)
    assert "".join(server.log).count("ahead of this machine's clock") == 1
    server = start(*flags)
    assert server_ms(server) > now_ms() + 29 * DAY_MS
    assert (remaining_ms() <= 600_000, poll(server, code)[0], server.codes()) == (True, 404, [])
    assert server.stop() == 0


def until_refused(server, code, published_s):
    """Poll until a session has expired. Return the time of that.

    Only requests sent more than a second after its time show that it is late: the machine can be busy.
    """
    while True:
        sent_s = time.monotonic()
        if poll(server, code)[0] == 404:
            return time.monotonic()
        assert sent_s <= published_s + TIMEOUT_MS / 1000 + 1
        time.sleep(0.05)


# With Redis the time is that of its machine. The clock of the server matters only to its own timers and its supervisor.
@pytest.mark.parametrize(
    ("engine", "offset"),
    [*(("leveldb", offset) for offset in ("+1h", "-1h", "+30d", "-54y")), ("redis", "+30d"), ("workers", "-54y")],
)
def test_nothing_is_killed_and_sessions_live_their_time_after_a_jump(engine, offset, start, jump, manager, request):
    """`workers` are two processes on Redis."""
    manager, name = manager
    # A worker may be late by half of it, and all share a busy machine.
    watchdog_us = "7000000" if engine == "workers" else "1000000"
    flags = {"leveldb": (), "redis": ("--durability", "os"), "workers": ("--durability", "os", "--workers", 2)}[engine]
    redis = request.getfixturevalue("redis") if flags else None
    server = start("--admin-port", 0, *flags, redis=redis, NOTIFY_SOCKET=name, WATCHDOG_USEC=watchdog_us)
    wait_for_message(manager, "READY")
    old_s = time.monotonic()
    old = server.offer()
    jump(offset)
    for _ in range(2):  # the event loop continues
        wait_for_message(manager, "WATCHDOG")
    if redis is None:
        ahead = offset.startswith("+")
        assert poll(server, old)[0] == 404 or not ahead
        assert server_ms(server) >= now_ms() + (HOUR_MS if ahead else 0) - 1000
    new_s = time.monotonic()
    new = server.offer()
    published_s = time.monotonic()
    expiry_s = until_refused(server, old, published_s)
    if redis or offset.startswith("-"):  # LevelDB accepts a clock that jumps ahead
        assert expiry_s >= old_s + TIMEOUT_MS / 1000
    assert until_refused(server, new, published_s) >= new_s + TIMEOUT_MS / 1000
    waited_s = time.monotonic()
    waited = server.offer()
    wait_s = 30  # of a request that nothing wakes
    while poll(server, waited, wait=wait_s)[0] == 200:
        pass
    assert TIMEOUT_MS / 1000 <= time.monotonic() - waited_s < wait_s
    assert server.codes() == []
    assert server.call("/readyz", base=server.admin_url)[0] == 200
    for _ in range(2):
        wait_for_message(manager, "WATCHDOG")
    jump("+0")
    again = server.offer()
    assert server.codes() == [again]
    for _ in range(2):
        wait_for_message(manager, "WATCHDOG")
    assert server.stop() == 0
    log = "".join(server.log)
    assert "restarting it" not in log
    assert "Traceback" not in log
