"""`--workers`: processes of one machine behind one port, which end, start again and stop without being noticed."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import websockets.sync.client
from support.certificates import client_context, make_pair
from support.command import BOUND_S, call, run
from support.needs import require
from support.redis_servers import RedisServer
from support.redis_traffic import in_background, until
from support.scraping import PREFIX, scrape
from support.service_manager import check_fullness, receive_message, wait_for_message
from support.tokens import make_token
from support.waiting import run_command

from tornado_signal.process import supervisor
from tornado_signal.process.handover import create_balance_memory
from tornado_signal.settings.settings import Settings

WORKERS = 2


@pytest.fixture
def start(start, redis, monkeypatch):
    """A function that starts a server of several workers. Its directory of sockets is in `tmp_path`."""
    require("ps")
    monkeypatch.setenv("TMPDIR", tempfile.mkdtemp(prefix="ts-"))  # short: the name of a socket has a limit

    def starting(*arguments, number=WORKERS, **options):
        flags = ("--durability", "os", "--workers", number, "--admin-port", 0)
        return start(*flags, *arguments, redis=redis, **options)

    yield starting
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)  # its servers still run


def pids(server):
    shown = run_command("ps", "-ww", "--ppid", server.process.pid, "-o", "pid=,args=")
    found = (re.fullmatch(r" *(\d+) .*worker (\d+)", line) for line in shown.stdout.splitlines())
    return {int(each[2]): int(each[1]) for each in found if each}


def numbers(server, name):
    shown = scrape(server.admin_url).text
    found = re.findall(rf'^tornado_signal_{name}{{(?:.*,)?worker="(\d)"}} (\S+)$', shown, re.MULTILINE)
    return {int(worker): float(value) for worker, value in found}


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_status_line_and_readiness_say_what_is_full_in_any_worker(start, manager):
    manager, name = manager
    server = start("--max-connections", 3, number=2, NOTIFY_SOCKET=name, WATCHDOG_USEC="2000000")
    check_fullness(server, manager, "connections", count=12)
    assert any("room for 3 connections in each worker, by --max-connections" in line for line in server.log)


def test_killed_worker_is_replaced_without_failed_requests_and_a_stop_ends_all(start):
    server = start("--admin-address", "0.0.0.0")
    assert server.ask_admin("/readyz") == (200, {"status": "ok"})
    poll = {"code": server.offer(), "side": "offerer"}
    cursor = server.call("/poll", poll | {"wait": 0})[1]["cursor"]
    answered = in_background(lambda: server.call("/poll", poll | {"wait": 60, "since": cursor}))
    waiting = until(lambda: 1 in (found := numbers(server, "running_requests")).values() and found)
    (busy,) = (worker for worker, running in waiting.items() if running)
    assert set(waiting) == set(pids(server)) == set(range(1, WORKERS + 1))
    before = pids(server)
    victim = next(worker for worker in before if worker != busy)
    os.kill(before[victim], signal.SIGKILL)
    for _ in range(30):
        assert server.call("/lobby/sessions")[0] == 200
    assert server.process.stderr.readline().endswith(f": worker {victim} was killed by SIGKILL; restarting it\n")
    after = until(lambda: len(found := pids(server)) == WORKERS and found)
    assert {worker for worker in before if before[worker] != after[worker]} == {victim}
    until(lambda: set(numbers(server, "running_requests")) == set(before))
    assert numbers(server, "worker_restarts_total") == {each: float(each == victim) for each in before}
    assert server.call("/answer", poll | {"side": "answerer", "answer": "a"})[0] == 200
    assert answered()[1]["answer"] == "a"
    waiting = in_background(lambda: server.call("/lobby/sessions?wait=60"))
    until(lambda: sum(numbers(server, "running_requests").values()) == 1)
    server.process.send_signal(signal.SIGTERM)
    assert waiting()[0] == 200
    assert server.wait() == 0
    assert all(gone(pid) for pid in after.values())
    assert server.log[-1].endswith(": stopped\n")
    assert sum("the admin listener accepts other machines: only health" in line for line in server.log) == 1
    assert not list(Path(os.environ["TMPDIR"]).iterdir())


def test_stuck_worker_hides_only_its_own_metrics_and_is_replaced_silently(start, manager):
    assert supervisor.CHECK_S + supervisor.STUCK_S + supervisor.ABORT_S <= 5
    manager, name = manager
    server = start(NOTIFY_SOCKET=name, WATCHDOG_USEC="6000000")
    wait_for_message(manager, "READY")
    before = pids(server)
    os.kill(before[2], signal.SIGSTOP)
    assert set(numbers(server, "store_available")) == {1}
    assert server.process.stderr.readline().endswith(": worker 2 does not respond within 3 s; killing it\n")
    until(lambda: len(found := pids(server)) == 2 and found[2] != before[2])
    until(lambda: set(numbers(server, "store_available")) == {1, 2})
    assert receive_message(manager)["WATCHDOG"] == "1"
    server.process.send_signal(signal.SIGTERM)
    wait_for_message(manager, "STOPPING")
    assert server.wait() == 0


def test_metrics_are_served_while_redis_is_down(start):
    redis = RedisServer("redis")
    flags = ("--store", "redis", "--redis-nodes", redis.address)
    several, one = start(*flags), start(*flags, number=1)
    one.offer()
    until(lambda: "tornado_signal_topics" in scrape(one.admin_url).families)
    assert scrape(several.admin_url).text
    redis.kill()
    until(lambda: numbers(several, "store_available") == {1: 0, 2: 0})
    found = until(lambda: (found := scrape(one.admin_url)).one("store_available") == 0 and found)
    assert (found.one("sessions_unanswered"), found.one("topics"), found.one("ready")) == (1, 1, 0)


def test_other_workers_serve_while_one_cannot_start(start, tmp_path):
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    # The interpreter is a link: an upgrade replaces it in the same way.
    paths = os.pathsep.join([os.getcwd(), *filter(None, sys.path)])
    server = start(prefix=[python, "-m"], command="tornado_signal", PYTHONPATH=paths)
    python.unlink()
    unnamed = signal.SIGRTMIN + 1
    os.kill(pids(server)[2], unnamed)
    assert server.process.stderr.readline().endswith(f": worker 2 was killed by signal {unnamed}; restarting it\n")
    line = server.process.stderr.readline()
    assert re.search(r": worker 2 cannot be started: .*No such file or directory.*; trying again$", line)
    assert server.call("/health")[0] == 200
    python.symlink_to(sys.executable)
    until(lambda: set(pids(server)) == {1, 2})
    until(lambda: set(numbers(server, "running_requests")) == {1, 2})
    assert server.stop() == 0


async def test_worker_that_hangs_at_its_start_is_replaced(tmp_path, monkeypatch, caplog):
    settings = Settings(data_dir=tmp_path / "data", port=0, durability="os")
    monkeypatch.setattr(supervisor, "START_S", 0.5)
    balance = create_balance_memory(1)
    with socket.create_server(("127.0.0.1", 0)) as public:
        worker = supervisor.Worker(1, settings, [public], balance, tmp_path, 30)
        starting = asyncio.create_task(worker.try_to_start())
        for _ in iter(lambda: worker.running, True):
            await asyncio.sleep(0.001)
        worker.send(signal.SIGSTOP)
        assert not await starting
        monkeypatch.undo()
        keeping = asyncio.create_task(worker.keep_running())
        assert (await worker.listener.request("/healthz")).code == 200
        keeping.cancel()
        worker.stop()
        await worker.ended()
        worker.close()
    os.close(balance)
    assert [record.message for record in caplog.records if record.name == supervisor.__name__] == [
        "worker 1 does not serve within 0.5 s; killing it",
        "worker 1 was killed by SIGKILL; restarting it",
    ]


def test_worker_with_fewer_websockets_gets_the_next_ones_and_all_end_with_their_supervisor(start):
    server = start()
    url = f"{server.url.replace('http', 'ws')}/ws"

    def connect():
        opened.enter_context(websockets.sync.client.connect(url, origin=server.origin, subprotocols=["signal.v1"]))
        return numbers(server, "websockets")

    with contextlib.ExitStack() as opened:
        until(lambda: sum(connect().values()) >= 40)
        os.kill(pids(server)[2], signal.SIGKILL)
        until(lambda: numbers(server, "websockets").get(2) == 0)
        until(lambda: abs((found := connect())[1] - found[2]) <= 5)
        workers = pids(server).values()
        server.process.kill()
        until(lambda: all(gone(pid) for pid in workers))


def test_unusable_file_on_reload_is_refused_once_and_changes_no_worker(start, tmp_path):
    key, config = tmp_path / "app.secret", tmp_path / "signal.toml"
    key.write_text("k" * 32)
    config.write_text("")
    server = start("--config", config, "--auth-keys", key, "--auth-anonymous", "list", number=2)

    def publish(token):
        return server.exchange("/lobby/offer", {"info": "i", "offer": "o"}, token=token)[0]

    old, new = (make_token({"exp": time.time() + 600}, letter * 32, name="app") for letter in (b"k", b"n"))
    for content, token, expected in (
        ("k", old, "ERROR .* reload failed, keeping the current settings: the key "),
        ("n" * 32, new, "INFO .* applied: --max-offer, keys of tokens"),
    ):
        key.write_text(content)
        config.write_text("max_offer = 100")
        server.process.send_signal(signal.SIGHUP)
        assert re.search(expected, server.process.stderr.readline())
        ours = rf"^{PREFIX}last_reload_successful {float('INFO' in expected)}$"
        until(lambda ours=ours: re.search(ours, scrape(server.admin_url).text, re.MULTILINE))
        until(lambda token=token: {publish(token) for _ in range(30)} == {200})
    assert {publish(None), publish(old)} == {401}
    assert server.stop() == 0
    assert sum("reload" in line for line in server.log) == 0


def test_passed_sockets_and_sighup_reach_all_workers(start, tmp_path):
    pair = make_pair(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as public, socket.create_server(("127.0.0.1", 0)) as admin:
        (tmp_path / "signal.toml").write_text("")
        flags = (*pair.flags, "--config", tmp_path / "signal.toml")
        server = start(*flags, passed=[public, admin], LISTEN_FDNAMES="public:admin")
        assert server.url == f"https://127.0.0.1:{public.getsockname()[1]}"
        assert server.admin_url == f"http://127.0.0.1:{admin.getsockname()[1]}"
    for settings, applied in ("", "nothing new"), ("access_log = true\nredis_timeout_ms = 2000\n", "--access-log"):
        (tmp_path / "signal.toml").write_text(settings)
        server.process.send_signal(signal.SIGHUP)
        said = server.process.stderr.readline()
        assert said.endswith(f": settings reloaded, applied: {applied}\n")
    assert server.process.stderr.readline().endswith(" need a restart: --redis-timeout-ms\n")
    server.tls = client_context(pair)

    said = []
    reading = threading.Thread(target=lambda: said.extend(iter(server.process.stderr.readline, "")))
    reading.start()

    def both_log(since):
        assert server.call("/health")[0] == 200
        found = (re.search(r" worker=(\d) .* endpoint=/health ", line) for line in said[since:])
        return len({each[1] for each in found if each}) == 2

    until(lambda: both_log(0))
    os.kill(pids(server)[1], signal.SIGKILL)
    until(lambda: any("worker 1 was killed by SIGKILL" in line for line in said))
    begun = len(said)
    until(lambda: both_log(begun))
    server.process.terminate()
    assert server.process.wait(BOUND_S) == 0
    reading.join(BOUND_S)


def test_startup_error_is_reported_once():
    flags = ("--store", "redis", "--redis-nodes", "127.0.0.1:1", "--port", 0)
    one, several = call("serve", *flags), run("serve", *flags, "--workers", 3)
    assert (several.returncode, several.stderr.count("\n")) == (1, 1)
    assert several.stderr == one.stderr
    refused = call("serve", "--workers", "auto")
    assert refused.returncode == 2
    assert "--workers = 'auto': expected 1, or --store redis" in refused.stderr
