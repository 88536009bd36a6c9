"""`/metrics`: every number is exact after known traffic, and says nothing of anybody."""

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import time
from collections import Counter

import pytest
from support.command import BOUND_S, ORIGIN, Server, commit
from support.scraping import Scrape, scrape
from support.service import declared, request
from support.sse import Stream
from support.traffic import SECRETS, offer, traffic
from support.waiting import output, run_command, until

from tornado_signal.operator import exposition
from tornado_signal.system.lifecycle import DRAINING, LEAVING


@pytest.fixture(scope="module")
def after_traffic(tmp_path_factory):
    """Return the requests to a server, the code of a session, and the metrics of the server."""
    running = Server("--data-dir", tmp_path_factory.mktemp("traffic") / "data", "--admin-port", 0)
    asked, code = traffic(running)
    found = until_scraped(running, lambda found: found.histogram("event_loop_lag_seconds")[1] >= 2)
    running.end()
    return asked, code, found


@pytest.fixture
def server(start):
    return functools.partial(start, "--admin-port", 0)


def until_scraped(server, wanted):
    return until(lambda: wanted(found := scrape(server.admin_url)) and found)


def test_every_number_is_exact_after_known_traffic(after_traffic):
    asked, _, found = after_traffic
    kinds = Counter((endpoint, method, str(status)) for endpoint, method, status, *_ in asked)
    assert found.all("requests") == kinds
    refused = Counter((reason, str(status)) for _, _, status, reason, _ in asked if reason)
    assert found.all("refusals") == refused | {("transport", "400"): 1, ("transport", "431"): 1}
    for endpoint in {endpoint for endpoint, *_ in asked}:
        buckets, number, total = found.histogram("request_duration_seconds", endpoint)
        assert number == sum(times for kind, times in kinds.items() if kind[0] == endpoint) == buckets["+Inf"]
        assert 0 < total < BOUND_S
    assert found.families["tornado_signal_wait_duration_seconds"].samples == []
    assert found.one("defects") == 0
    assert (found.one("sessions_created"), found.one("sessions_answered"), found.one("sessions_withdrawn")) == (3, 1, 1)
    assert (found.one("sessions_unanswered"), found.one("topics"), found.one("sessions_swept")) == (1, 1, 0)
    assert found.histogram("offer_wait_seconds")[1] == 1
    assert (found.one("ready"), found.one("store_available")) == (1, 1)
    assert found.all("build_info") == {(commit(),): 1}
    # Three offers, one answer (the second was equal), a refresh and a withdrawal, each in a write of its own.
    written = found.histogram("store_write_changes")
    assert (written[1], written[2]) == (6, 6) == (written[0]["1.0"], written[0]["+Inf"])
    assert found.histogram("store_write_duration_seconds")[1] == 6
    assert (found.one("store_failed_writes"), found.one("store_reopenings")) == (0, 0)
    assert found.one("store_size_bytes") > 0
    assert 0 < found.one("store_cache_bytes") < 64 * 1024 * 1024
    assert found.one("running_requests") == 0


def test_labels_contain_nothing_that_clients_send(after_traffic):
    _, code, found = after_traffic
    assert not [word for word in [*SECRETS, "app.example", code] if word in found.text.lower()]
    ours = [family for name, family in found.families.items() if name.startswith("tornado_signal_")]
    labels = {label for family in ours for sample in family.samples for label in sample.labels}
    assert labels == {"endpoint", "method", "status", "reason", "version", "what", "le"}
    routes = {*(path.replace("{topic}", ":topic") for path in declared()), "unknown"}
    assert {endpoint for endpoint, *_ in found.all("requests")} <= routes
    assert {method for _, method, _ in found.all("requests")} == {"GET", "HEAD", "POST", "OPTIONS", "other"}


def test_allowed_origins_are_separate_labels_until_removed(server, tmp_path):
    config = tmp_path / "signal.toml"
    config.write_text(f"allowed_origins = ['{ORIGIN}', 'https://*.many.example']")
    running = server("--config", config)
    assert scrape(running.admin_url).all("origin_requests") == {}
    for number in range(5):
        assert running.call("/topics", origin=f"https://{number}.many.example")[0] == 200
        assert running.call("/topics", origin=f"https://{number}.example")[0] == 403
    running.offer()
    assert running.call("/poll", {})[0] == 400
    expected = {
        ("/:topic/offer", ORIGIN, "200"): 1,
        ("/poll", ORIGIN, "400"): 1,
        ("/topics", "https://*.many.example", "200"): 5,
    }
    found = scrape(running.admin_url)
    assert found.all("origin_requests") == expected
    assert "//1." not in found.text
    config.write_text(f"allowed_origins = '{ORIGIN}'")
    running.process.send_signal(signal.SIGHUP)
    found = until_scraped(running, lambda found: len(found.all("origin_requests")) < 3)
    assert found.all("origin_requests") == {labels: expected[labels] for labels in expected if ORIGIN in labels}
    config.write_text("")
    running.process.send_signal(signal.SIGHUP)
    until_scraped(running, lambda found: "tornado_signal_origin_requests" not in found.families)


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_metrics(after_traffic):
    _, _, found = after_traffic
    for text, good in ((found.text, True), ("# TYPE requests counter\nrequests 1\n", False)):
        done = run_command("promtool", "check", "metrics", input=text, stdin=None)
        assert ((done.returncode, done.stdout + done.stderr) == (0, "")) == good, done.stdout + done.stderr


def check_process(values, since_s):
    assert 2 < values["process_open_fds"] < values["process_max_fds"]
    assert values["process_resident_memory_bytes"] > 10_000_000
    assert since_s <= values["process_start_time_seconds"] <= time.time() + 1


def test_process_its_connections_and_expired_sessions_are_counted(server):
    since_s = time.time() - 1
    running = server("--session-timeout-ms", "100", "--sweep-interval-ms", "10")
    found = scrape(running.admin_url)
    values = {sample.name: sample.value for family in found.families.values() for sample in family.samples}
    check_process(values, since_s)
    assert values["process_open_fds"] > 5
    assert values["process_cpu_seconds_total"] > 0
    assert "python_gc_collections_total" in values
    assert found.families["python_info"].samples[0].labels["implementation"] == "CPython"
    assert found.one("connections") == 0
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
        until_scraped(running, lambda found: found.one("connections") == 5)
    for _ in range(5):
        offer(running)
    found = until_scraped(running, lambda found: (found.one("sessions_swept"), found.one("topics")) == (5, 0))
    assert found.one("sessions_unanswered") == 0
    assert found.histogram("sweep_duration_seconds")[1] >= 1
    until_scraped(running, lambda found: found.one("connections") == 0)


@pytest.mark.needs("namespace")
def test_process_metrics_work_with_a_restricted_proc():
    code = (
        "import asyncio, json, time; from tornado_signal.operator.exposition import process_metrics;"
        "from tornado_signal.system.usage import count_descriptors;"
        "from pathlib import Path;"
        "assert not Path('/proc/stat').exists();"
        "found = process_metrics(time.time(), asyncio.run(count_descriptors()));"
        "print(json.dumps({s.name: s.value for f in found for s in f.samples}))"
    )
    # An ordinary user can mount it only in its own PID namespace.
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rmpf"]
    script = 'mount -t proc -o subset=pid proc /proc && exec "$0" -c "$1"'
    said = output(run_command(*own, "bash", "-c", script, sys.executable, code))
    check_process(json.loads(said), time.time() - BOUND_S)


async def scraped(service):
    return Scrape((await service.ask_admin("/metrics")).body.decode())


async def test_time_to_answer_is_measured_for_the_first_answer(service):
    codes = [await service.offer() for _ in range(3)]
    for number, code in enumerate(codes):
        service.clock.ms += 7000
        for _ in range(2):
            await service.post("/answer", code=code, side="answerer", answer=f"{number}")
        await service.call("POST", "/answer", {"code": code, "side": "answerer", "answer": "late"})
    buckets, number, total = (await scraped(service)).histogram("offer_wait_seconds")
    assert (number, total) == (3, 7 + 14 + 21)
    assert [buckets[bound] for bound in ("5.0", "10.0", "20.0", "60.0")] == [0, 1, 2, 3]
    assert (await scraped(service)).one("sessions_answered") == 3


async def test_waits_and_streams_are_counted_separately(service):
    code = await service.offer()
    tasks = (await scraped(service)).one("tasks")
    async with service.connect() as polling, service.connect() as streaming:
        await polling.send(request("POST", "/poll", {"code": code, "side": "offerer", "wait": 60}))
        await streaming.send(request("GET", "/lobby/events"))
        await Stream(streaming).begin()
        while (found := await scraped(service)).all("waiting_requests") != {("/poll",): 1, ("/:topic/events",): 1}:
            pass
        assert found.one("running_requests") == 2
        assert found.one("tasks") >= tasks + 2
        assert found.families["tornado_signal_wait_duration_seconds"].samples == []
        await service.post("/answer", code=code, side="answerer", answer="a")
        assert (await polling.receive()).json["answer"] == "a"
    while any((found := await scraped(service)).all("waiting_requests").values()) or found.one("tasks") > tasks:
        pass
    for endpoint, method in (("/poll", "POST"), ("/:topic/events", "GET")):
        assert found.histogram("wait_duration_seconds", endpoint)[1] == 1
        assert found.one("requests", endpoint, method, "200") == 1
    durations = found.families["tornado_signal_request_duration_seconds"].samples
    assert {sample.labels["endpoint"] for sample in durations} == {"/:topic/offer", "/answer"}
    assert found.one("running_requests") == 0


async def test_many_tasks_are_not_listed_at_once(service, monkeypatch):
    tasks = (await scraped(service)).one("tasks")
    monkeypatch.setattr(exposition, "TASKS_COUNTED", 999)
    monkeypatch.setattr(exposition.asyncio, "all_tasks", lambda: pytest.fail("all tasks are listed"))
    service.shared.running += 1000
    try:
        assert (await scraped(service)).one("tasks") == tasks + 1000
    finally:
        service.shared.running -= 1000


@pytest.mark.parametrize("part", ["store", LEAVING, DRAINING])
async def test_unready_server_shows_the_reason(part, service):
    if part == "store":
        await service.close_store()
    else:
        service.shared.lifecycle.reach(part)
    status = (await service.call("GET", "/topics")).status
    found = await scraped(service)
    assert (found.one("ready"), found.one("store_available")) == (0, part != "store")
    alive, ready = [await service.ask_admin(path) for path in ("/healthz", "/readyz")]
    assert (alive.status, alive.json, ready.status, ready.json["status"]) == (200, {"status": "ok"}, 503, "unavailable")
    assert {"store": "database", DRAINING: "draining"}.get(part, "") in ready.json["reason"]
    reasons = {"store": {("the database is being reopened", "503"): 1}, DRAINING: {("draining", "503"): 1}}
    assert (status, found.all("refusals")) == (503 if part in reasons else 200, reasons.get(part, {}))
