"""`/metrics`: every number is exact after known traffic, and says nothing of anybody."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from support.command import BOUND_S, ORIGIN, Server
from support.scraping import Scrape, scrape
from support.service import declared, head
from support.sse import Stream
from support.traffic import SECRETS, offer, traffic

from tornado_signal import COMMIT

pytest_plugins = ["support.http_fixtures"]


@pytest.fixture
def server(tmp_path):
    """A function that starts the installed command with an admin listener."""
    with contextlib.ExitStack() as stack:

        def start(*arguments):
            started = Server("--admin-port", "0", "--data-dir", tmp_path / "data", *arguments)
            stack.callback(started.end)
            return started

        yield start


def until(ask, wanted):
    """Ask again and again until an answer is as wanted; that one."""
    deadline_s = time.monotonic() + BOUND_S
    while not wanted(found := ask()):
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)
    return found


def counted(pairs):
    """How often each is among them."""
    found = {}
    for each in pairs:
        found[each] = found.get(each, 0) + 1
    return found


def test_every_number_is_exact(server):
    """After known traffic every counter says exactly what was sent, and what became of it."""
    running = server()
    asked, _ = traffic(running)
    found = scrape(running.admin_url)
    kinds = counted((endpoint, method, str(status)) for endpoint, method, status, *_ in asked)
    assert found.all("requests") == kinds
    refused = counted((reason, str(status)) for _, _, status, reason, _ in asked if reason)
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
    assert found.all("build_info") == {(COMMIT,): 1}
    # Three offers, one answer (the second was the same), a refresh, a withdrawal; each had the disk to itself.
    written = found.histogram("store_write_changes")
    assert (written[1], written[2]) == (6, 6) == (written[0]["1.0"], written[0]["+Inf"])
    assert found.histogram("store_write_duration_seconds")[1] == 6
    assert (found.one("store_failed_writes"), found.one("store_reopenings")) == (0, 0)
    assert found.one("store_size_bytes") > 0
    assert 0 < found.one("store_cache_bytes") < 64 * 1024 * 1024
    assert found.one("running_requests") == 0


def test_histograms_are_whole(server):
    """Every histogram is cumulated, ends with all, and has as many values as it says; all are in one text."""
    running = server()
    traffic(running)
    until(lambda: scrape(running.admin_url), lambda found: found.histogram("event_loop_lag_seconds")[1] >= 2)
    found = scrape(running.admin_url)
    histograms = [family for family in found.families.values() if family.type == "histogram"]
    assert len(histograms) == 8
    for family in histograms:
        name = family.name.removeprefix("tornado_signal_")
        for labels in {tuple(v for k, v in sorted(s.labels.items()) if k != "le") for s in family.samples}:
            buckets, number, total = found.histogram(name, *labels)
            counts = list(buckets.values())
            assert counts == sorted(counts)
            assert list(map(float, buckets)) == sorted(map(float, buckets))
            assert counts[-1] == number
            assert total >= 0
            assert (total > 0) == (number > 0) or name in ("sweep_duration_seconds", "event_loop_lag_seconds")


def test_nothing_is_said_of_anybody(server):
    """No topic, origin, code, address, path or query is in the answer, and its labels are of few kinds."""
    running = server()
    _, code = traffic(running)
    found = scrape(running.admin_url)
    assert not [word for word in [*SECRETS, "app.example", code] if word in found.text.lower()]
    ours = [family for name, family in found.families.items() if name.startswith("tornado_signal_")]
    labels = {label for family in ours for sample in family.samples for label in sample.labels}
    assert labels == {"endpoint", "method", "status", "reason", "version", "le"}
    routes = {*(path.replace("{topic}", ":topic") for path in declared()), "unknown"}
    assert {endpoint for endpoint, *_ in found.all("requests")} <= routes
    assert {method for _, method, _ in found.all("requests")} == {"GET", "HEAD", "POST", "OPTIONS", "other"}


def test_listed_origins(server, tmp_path):
    """Requests are told apart by the entries of the allow-list, and by nothing that clients make up."""
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
    shown = until(lambda: scrape(running.admin_url).all("origin_requests"), lambda shown: len(shown) < 3)
    assert shown == {labels: number for labels, number in expected.items() if ORIGIN in labels}
    config.write_text("")
    running.process.send_signal(signal.SIGHUP)
    until(lambda: scrape(running.admin_url).families, lambda shown: "tornado_signal_origin_requests" not in shown)


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say(server):
    """Names, types and texts are as Prometheus' own tool wants them."""
    running = server()
    traffic(running)
    for text, good in ((scrape(running.admin_url).text, True), ("# TYPE requests counter\nrequests 1\n", False)):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=BOUND_S, check=False
        )
        assert ((done.returncode, done.stdout + done.stderr) == (0, "")) == good, done.stdout + done.stderr


def test_expired_sessions(server):
    """What expires is counted once it has been swept, and how long that took."""
    running = server("--session-timeout-ms", "100", "--sweep-interval-ms", "10")
    for _ in range(5):
        offer(running)
    found = until(lambda: scrape(running.admin_url), lambda found: found.one("sessions_swept") == 5)
    assert (found.one("sessions_unanswered"), found.one("topics")) == (0, 0)
    assert found.histogram("sweep_duration_seconds")[1] >= 1


def test_the_process(server):
    """The process is described: descriptors, memory, when it began; collections of garbage, too."""
    before_s = time.time()
    running = server()
    found = scrape(running.admin_url)
    values = {sample.name: sample.value for family in found.families.values() for sample in family.samples}
    assert before_s - 1 <= values["process_start_time_seconds"] <= time.time() + 1
    assert 5 < values["process_open_fds"] < values["process_max_fds"]
    assert values["process_resident_memory_bytes"] > 10_000_000
    assert values["process_cpu_seconds_total"] > 0
    assert "python_gc_collections_total" in values
    assert found.families["python_info"].samples[0].labels["implementation"] == "CPython"


def test_where_proc_shows_processes_alone():
    """The process is described also where the unit hides everything but processes from it (ProcSubset=pid)."""
    code = (
        "import json; from tornado_signal.admin.exposition import Process; from pathlib import Path;"
        "assert not Path('/proc/stat').exists();"
        "print(json.dumps({s.name: s.value for f in Process().collect() for s in f.samples}))"
    )
    # Who is not root may mount it only where the processes are its own, too.
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rmpf"]
    script = 'mount -t proc -o subset=pid proc /proc && exec "$0" -c "$1"'
    done = subprocess.run(
        [*own, "bash", "-c", script, sys.executable, code], stdout=subprocess.PIPE, timeout=BOUND_S, check=True
    )
    values = json.loads(done.stdout)
    assert 2 < values["process_open_fds"] < values["process_max_fds"]
    assert values["process_resident_memory_bytes"] > 10_000_000
    assert time.time() - BOUND_S < values["process_start_time_seconds"] <= time.time() + 1


# In this process, where the clock is turned by hand and the store can be taken away.


async def scraped(service):
    """What the admin listener of a server in this process says."""
    response = await service.raw(head("GET", "/metrics", [("Host", "localhost")]), "GET", service.admin_port)
    assert response.status == 200
    return Scrape(response.body.decode())


async def test_how_long_offers_waited(service):
    """An answer counts the time that its offer waited; the same answer again and a late one do not."""
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


async def test_waits_and_streams(service):
    """Who waits is shown while waiting, and is counted apart from those who do not, when it is over."""
    code = await service.offer()
    async with service.connect() as polling, service.connect() as streaming:
        body = json.dumps({"code": code, "side": "offerer", "wait": 60}).encode()
        headers = [("Host", "x"), ("Origin", ORIGIN), ("Content-Length", str(len(body)))]
        await polling.send(head("POST", "/poll", headers) + body)
        await streaming.send(head("GET", "/lobby/events", headers[:2]))
        await Stream(streaming).begin()
        while (found := await scraped(service)).all("waiting_requests") != {("/poll",): 1, ("/:topic/events",): 1}:
            pass
        assert found.one("running_requests") == 2
        assert found.families["tornado_signal_wait_duration_seconds"].samples == []
        await service.post("/answer", code=code, side="answerer", answer="a")
        assert (await polling.receive()).json["answer"] == "a"
    while any((found := await scraped(service)).all("waiting_requests").values()):
        pass
    for endpoint, method in (("/poll", "POST"), ("/:topic/events", "GET")):
        assert found.histogram("wait_duration_seconds", endpoint)[1] == 1
        assert found.one("requests", endpoint, method, "200") == 1
    durations = found.families["tornado_signal_request_duration_seconds"].samples
    assert {sample.labels["endpoint"] for sample in durations} == {"/:topic/offer", "/answer"}
    assert found.one("running_requests") == 0


async def test_the_store_out_of_service(service):
    """Without its store the server shows that it is not ready, and counts whom it refuses for that."""
    await service.offer()
    await service.close_store()
    assert (await service.call("GET", "/topics")).status == 503
    found = await scraped(service)
    assert (found.one("ready"), found.one("store_available")) == (0, 0)
    assert found.all("refusals") == {("the database is being reopened", "503"): 1}


async def test_draining(service):
    """A server that stops shows that it is not ready, though its store is."""
    service.site.stopping = True
    assert (await service.call("GET", "/topics")).status == 200
    assert (await scraped(service)).one("ready") == 0
    service.site.stopping = False
    service.site.draining = True
    assert (await service.call("GET", "/topics")).status == 503
    found = await scraped(service)
    assert (found.one("ready"), found.one("store_available")) == (0, 1)
    assert found.all("refusals") == {("draining", "503"): 1}


async def test_a_defect(service, caplog, monkeypatch):
    """A defect is counted as one, whatever the client is told."""

    async def broken(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(service.store, "topics", broken)
    assert (await service.call("GET", "/topics")).status == 500
    found = await scraped(service)
    assert found.one("defects") == 1
    assert found.all("refusals") == {}
    assert found.all("requests") == {("/topics", "GET", "500"): 1}
    caplog.clear()


async def test_limits(start_service):
    """What a limit refuses is counted under its own reason."""
    service = await start_service(max_sessions_per_topic=1)
    await service.offer()
    response = await service.call("POST", "/lobby/offer", {"info": "i", "offer": "other"})
    assert response.status == 429
    found = await scraped(service)
    assert found.all("refusals") == {("sessions of a topic", "429"): 1}
    assert found.one("requests", "/:topic/offer", "POST", "429") == 1


async def test_writes_that_share_a_sync(service, monkeypatch):
    """Changes that come while the disk is busy share a write, and are counted as what they are."""
    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(service.connect()) for _ in range(20)]
        body = json.dumps({"info": "i", "offer": "o"}).encode()
        headers = [("Host", "x"), ("Origin", ORIGIN), ("Content-Length", str(len(body)))]
        for connection in connections:
            await connection.send(head("POST", "/lobby/offer", headers) + body)
        for connection in connections:
            assert (await connection.receive()).status == 200
    _, writes, changes = (await scraped(service)).histogram("store_write_changes")
    assert changes == 20
    assert 1 <= writes < 20


def test_connections(server):
    """Open connections are counted, and counted off."""
    running = server()
    where = urlsplit(running.url)
    assert scrape(running.admin_url).one("connections") == 0
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection((where.hostname, where.port)))
        until(lambda: scrape(running.admin_url).one("connections"), lambda number: number == 5)
    until(lambda: scrape(running.admin_url).one("connections"), lambda number: number == 0)


async def test_head(service):
    """HEAD is answered like GET, without the numbers."""
    response = await service.raw(head("HEAD", "/metrics", [("Host", "localhost")]), "HEAD", service.admin_port)
    assert (response.status, response.body) == (200, b"")
    assert re.match("text/plain; version=", response.headers["Content-Type"])
