"""Webhooks of real servers, received by a real HTTP server that verifies each request with the original library."""

import asyncio
import concurrent.futures
import dataclasses
import json
import ssl
import threading
import time
from collections import Counter

import pytest
from support import rpc
from support.backend import flood, hang
from support.certificates import make_pair
from support.command import ORIGIN, call
from support.peerjs import open_peer
from support.rpc import open_socket
from support.scraping import scrape
from support.waiting import until
from support.webhooks import OTHER_SECRET, SECRET, Receiver, status, write_secret
from websockets.asyncio.client import connect

from tornado_signal.outgoing import endpoint, webhook_events
from tornado_signal.outgoing import webhooks as sender
from tornado_signal.outgoing.webhooks import Webhooks, make_target

SESSIONS = ["session.created", "session.answered", "session.expired", "session.withdrawn"]
ALL = ["--webhook-events", ",".join([*SESSIONS, "connection.opened", "connection.closed"])]
MARK = "marked-data-of-peers"


@pytest.fixture
def flags(receiver, tmp_path):
    return ["--webhook-url", receiver.url, *write_secret(tmp_path)]


def answer(server, code, text="a"):
    assert server.call("/answer", {"code": code, "side": "answerer", "answer": text})[0] == 200


def withdraw(server, code, side="offerer"):
    assert server.call("/withdraw", {"code": code, "side": side})[0] == 200


def publish(server, number):
    return [server.offer(f"topic-{at}") for at in range(number)]


def sequences(events, server=None):
    return [event["sequence"] for event in events if server is None or event["server"] == server]


def test_sessions_are_reported_with_what_is_public_of_them(start, receiver, flags):
    # Proxies of the environment are ignored.
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"), "http://127.0.0.1:1")
    server = start(*flags, "--session-timeout-ms", "1000", "--sweep-interval-ms", "100", no_proxy=None, **proxies)
    answered, withdrawn, expired = (server.offer(topic, MARK, MARK) for topic in ("one", "two", "three"))
    secret = {"secret": MARK * 2}
    body = {"code": answered, "side": "answerer", "answer": MARK}
    assert server.call("/answer", {"code": answered, "side": "answerer", "candidate": MARK})[0] == 200
    for _ in range(2):  # a repetition is not another event
        assert server.call("/answer", body | secret)[0] == 200
    withdraw(server, withdrawn)
    events = receiver.wait_for(*["session.created"] * 3, "session.answered", "session.withdrawn", "session.expired")
    assert {event["origin"] for event in events} == {ORIGIN}
    by_code = {
        code: [(event["type"], event["topic"]) for event in events if event["code"] == code]
        for code in (answered, withdrawn, expired)
    }
    assert by_code == {
        answered: [("session.created", "one"), ("session.answered", "one")],
        withdrawn: [("session.created", "two"), ("session.withdrawn", "two")],
        expired: [("session.created", "three"), ("session.expired", "three")],
    }
    assert sequences(events) == [1, 2, 3, 4, 5, 6]
    assert len({event["server"] for event in events}) == 1
    for event in events:
        assert event["expiresAt"] - event["createdAt"] == 1000
        assert event["createdAt"] <= event["time"]
    assert server.stop() == 0
    assert all(MARK.encode() not in body for body in receiver.bodies)
    assert "of-hook" not in "".join(server.log)
    (attempt, *_) = receiver.requests
    assert attempt.headers["Content-Type"] == "application/json"
    assert attempt.target == "/hook/path-of-hook?key=query-of-hook"


@pytest.mark.parametrize("with_addresses", [False, True])
def test_connections_of_all_protocols_are_reported(start, receiver, flags, with_addresses):
    server = start(*flags, *ALL, *(["--access-log", "addresses"] if with_addresses else []))

    async def connections():
        async with open_socket(server) as client:
            offered = await client.send("offer", topic="t", info=MARK, offer=MARK, secret=MARK, hold=True)
            assert "result" in offered
        peer = await open_peer(server.port, MARK, MARK)
        await peer.send("OFFER", MARK, payload=MARK)
        await peer.next()
        peer.abort()
        for path, message in (
            ("/y-webrtc", {"type": "publish", "topic": MARK, "data": MARK}),
            ("/tracker", {"action": "announce", "info_hash": MARK[:20], "peer_id": MARK[:20]}),
            ("/nostr", ["REQ", MARK, {"#x": [MARK]}]),
        ):
            async with connect(f"ws://127.0.0.1:{server.port}{path}", origin=ORIGIN) as socket:
                await socket.send(json.dumps(message))
                await socket.close(4001, MARK)

    asyncio.run(connections())
    closed = receiver.wait(lambda: len(receiver.of("connection.closed")) == 5 and receiver.of("connection.closed"))
    opened = receiver.of("connection.opened")
    assert [event["protocol"] for event in opened] == ["websocket", "peerjs", "y-webrtc", "tracker", "nostr"]
    names = {event["connection"]: event["protocol"] for event in opened}
    assert len(names) == 5
    assert {event["connection"]: event["protocol"] for event in closed} == names
    codes = {event["protocol"]: event["closeCode"] for event in closed}
    assert codes == {"websocket": 1000, "peerjs": 1006, "y-webrtc": 4001, "tracker": 4001, "nostr": 4001}
    assert all(0 <= event["durationMs"] <= closed[-1]["time"] - opened[0]["time"] + 1000 for event in closed)
    addresses = {event.get("address") for event in opened + closed}
    assert addresses == ({"127.0.0.1"} if with_addresses else {None})
    assert {event["origin"] for event in opened} == {ORIGIN}
    receiver.wait(lambda: receiver.of("session.withdrawn"))
    assert not any(mark in body for body in receiver.bodies for mark in (MARK.encode(), MARK[:20].encode()))


def test_two_servers_on_redis_report_each_event_once(redis_server, receiver, flags, start):
    redis = redis_server()
    options = ("--durability", "os", "--session-timeout-ms", "3000")
    servers = [start(*options, *flags, redis=redis) for _ in range(2)]
    one, other = servers
    codes = [server.offer(f"topic-{at}", offer=f"offer {at}") for at in range(10) for server in servers]
    answered, withdrawn, expired = codes[:6], codes[6:12], codes[12:]

    def everywhere(call, codes):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return list(pool.map(call, [one, other] * len(codes), [code for code in codes for _ in range(2)]))

    everywhere(answer, answered)
    results = everywhere(lambda server, code: server.call("/withdraw", {"code": code, "side": "offerer"})[0], withdrawn)
    assert sorted(results) == [200] * 6 + [404] * 6
    # These topics are not listed: the servers look for expired sessions themselves.
    receiver.wait(lambda: len(receiver.of("session.expired")) >= len(expired))
    receiver.wait(lambda: len(receiver.events) >= 20 + len(codes))
    for kind, those in zip(SESSIONS, (codes, answered, expired, withdrawn), strict=True):
        assert sorted(event["code"] for event in receiver.of(kind)) == sorted(those)
    assert {event["topic"] for event in receiver.events} == {f"topic-{at}" for at in range(10)}
    names = {event["server"] for event in receiver.events}
    assert len(names) == 2
    for name in names:
        assert sequences(receiver.events, name) == [*range(1, len(sequences(receiver.events, name)) + 1)]
    assert [server.stop() for server in servers] == [0, 0]
    assert len(receiver.events) == 20 + len(codes)


def test_what_is_not_accepted_is_sent_again_under_the_same_id(start, receiver, flags):
    refusals = {
        "HTTP 500": [status(500), status(503)],
        "HTTP 410": [status(410)],
        "HTTP 302": [status(302, Location="/elsewhere")],
        "": [flood],
    }
    server = start(*flags, "--admin-port", "0")
    for number, behaviours in enumerate(refusals.values(), 1):
        receiver.requests.clear()
        receiver.behaviours += behaviours
        code = server.offer()
        receiver.wait(lambda number=number: len(receiver.events) == number)
        assert receiver.events[-1]["code"] == code
        attempts = {(attempt.method, attempt.headers["Webhook-Id"]) for attempt in receiver.requests}
        assert (len(receiver.requests), len(attempts)) == (len(behaviours) + 1, 1)
        assert next(iter(attempts))[0] == "POST"
        metrics = until(lambda: (found := scrape(server.admin_url)).one("webhook_queued") == 0 and found)
    assert (metrics.one("webhook_events"), metrics.one("webhook_failed_requests")) == (4, 5)
    assert abs(metrics.one("webhook_last_success_timestamp_seconds") - time.time()) < 120
    assert server.stop() == 0
    log = [line for line in server.log if "webhooks" in line]
    assert len(log) == 2 * len(refusals)
    for reason, refused, again in zip(refusals, log[::2], log[1::2], strict=True):
        assert ("does not accept events" in refused, reason in refused) == (True, True)
        assert "accepts events again" in again


def test_killed_receiver_gets_everything_after_its_return(start, receiver, flags, tmp_path):
    server = start(*flags)
    before = publish(server, 3)
    receiver.wait_for(*["session.created"] * 3)
    receiver.close()
    during = publish(server, 250)
    with Receiver(port=receiver.server_port) as again:
        again.wait(lambda: len(again.events) >= 250)
        # Two full batches can be in flight, and both are sent again later.
        events = sorted(receiver.events + again.events, key=lambda event: event["sequence"])
        assert [event["code"] for event in events] == before + during
        assert sequences(events) == [*range(1, 254)]
        assert {content["dropped"] for content in again.contents} == {0}
        assert max(len(content["events"]) for content in again.contents) == 100
        assert server.stop() == 0


def test_drain_sends_the_last_events_and_reports_those_that_a_receiver_does_not_accept(start, receiver, flags):
    server = start(*flags, *ALL)
    codes = publish(server, 120)
    assert server.stop() == 0
    assert [event["code"] for event in receiver.of("session.created")] == codes
    for receiver.behaviour, count in ((hang, 3), (status(500), 123)):
        accepted = len(receiver.requests)
        server = start(*flags)
        server.offer()
        receiver.wait(lambda accepted=accepted: len(receiver.requests) > accepted)
        publish(server, count - 1)
        assert server.stop() == 0
        assert f"{count} events of webhooks were not delivered" in "".join(server.log)


def test_reload_changes_url_secret_and_events_and_turns_webhooks_off_and_on(start, receiver, flags, tmp_path):
    path = tmp_path / "signal.toml"

    def configure(**settings):
        path.write_text("".join(f"{name} = {json.dumps(str(value))}\n" for name, value in settings.items()))
        if server is not None:
            server.process.send_signal(1)
            line = server.process.stderr.readline()
            assert "settings reloaded" in line

    server = None
    configure()
    server = start("--config", str(path))
    secret_file = tmp_path / "webhook.secret"
    server.offer("off")
    configure(webhook_url=receiver.url, webhook_secret_file=secret_file)
    server.offer("first")
    receiver.wait(lambda: len(receiver.events) == 1)
    with Receiver(secret=OTHER_SECRET) as other:
        receiver.behaviours += [status(500)] * 1000
        server.offer("moved")
        receiver.wait(lambda: len(receiver.requests) > 1)
        write_secret(tmp_path, OTHER_SECRET)
        assert "does not accept" in server.process.stderr.readline()
        configure(webhook_url=other.url, webhook_secret_file=secret_file, webhook_events="session.withdrawn")
        other.wait(lambda: len(other.events) == 1)
        withdraw(server, server.offer("not-created"))
        other.wait(lambda: len(other.events) == 2)
        kinds = [(event["type"], event["topic"]) for event in other.events]
        assert kinds == [("session.created", "moved"), ("session.withdrawn", "not-created")]
        configure()
        withdraw(server, server.offer("off-again"))
        configure(webhook_url=other.url, webhook_secret_file=secret_file)
        server.offer("on-again")
        other.wait(lambda: len(other.events) == 3)
        assert other.events[2]["topic"] == "on-again"
        assert server.stop() == 0
        assert len(other.events) == 3
        assert other.problems == []
    assert len(receiver.events) == 1


def test_certificate_of_the_receiver_is_verified(start, tmp_path, monkeypatch):
    known, unknown = make_pair(tmp_path, "known"), make_pair(tmp_path, "unknown")
    monkeypatch.setenv("SSL_CERT_FILE", str(known.certificate))
    for pair, accepted in ((known, True), (unknown, False)):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*pair)
        with Receiver(tls=context) as receiver:
            hooks = ("--webhook-url", receiver.url, *write_secret(tmp_path))
            server = start(*hooks, data=pair.certificate.stem)
            server.offer()
            if accepted:
                receiver.wait_for("session.created")
            else:
                line = server.process.stderr.readline()
                assert "certificate" in line.lower(), line
                assert not receiver.requests
            assert server.stop() == 0


def test_serve_check_and_start_explain_incomplete_settings(tmp_path, receiver, flags):
    (_, url, *secret_file), cwd = flags, tmp_path
    check = ("serve", "--check", "--port", 0)
    done = call(*check, *flags, cwd=cwd)
    assert done.returncode == 0
    assert f"webhooks: http://127.0.0.1:{receiver.server_port}, session.created, session.answered" in done.stdout
    assert "of-hook" not in done.stdout + done.stderr
    public = call(*check, "--webhook-url", "http://hook.example.com/of-hook", *secret_file, cwd=cwd)
    assert "sends events to hook.example.com unencrypted; use https://" in public.stderr
    wrong = tmp_path / "wrong.secret"
    for content, reason in (
        ("0123456789abcdef0123456789abcdef", "must hold whsec_ and the base64 of 24 to 64 bytes"),
        ("whsec_" + "é" * 40, "must hold whsec_"),
        (SECRET + "\n" + SECRET, "must hold one line"),
    ):
        wrong.write_text(content)
        for command in (check, ("serve", "--port", 0)):
            done = call(*command, "--webhook-url", url, "--webhook-secret-file", wrong, cwd=cwd)
            assert (done.returncode, reason in done.stderr, "Traceback" in done.stderr) == (1, True, False)


# Delivery by a server in this process, with shorter times than those of users


@pytest.fixture
def webhooks(service, receiver, tmp_path, monkeypatch, io_loop):
    """The webhooks of the server, which retry after few milliseconds."""
    monkeypatch.setattr(sender, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(sender, "MAX_RETRY_S", 0.02)
    path = write_secret(tmp_path)[1]
    settings = dataclasses.replace(service.settings, webhook_url=receiver.url, webhook_secret_file=path)

    async def make():
        webhooks = Webhooks(service.shared)
        webhooks.use(make_target(settings), settings)
        return webhooks

    webhooks = io_loop.run_sync(make)
    yield webhooks
    io_loop.run_sync(webhooks.close)


async def test_events_that_are_never_accepted_are_dropped_and_reported(
    service, webhooks, receiver, monkeypatch, caplog
):
    monkeypatch.setattr(sender, "GIVE_UP_S", 0.1)
    receiver.behaviour = status(500)
    await service.offer()
    await rpc.until(lambda: webhooks.metrics.dropped["rejected"])
    assert webhooks.metrics.failed >= 1
    assert "has not accepted 1 events; dropping them" in caplog.text
    receiver.behaviour = status(200)
    await service.offer()
    await rpc.until(lambda: receiver.events)
    (content,) = receiver.contents
    assert ([event["sequence"] for event in content["events"]], content["dropped"]) == ([2], 1)
    await rpc.until(lambda: webhooks.metrics.queued == 0)


@pytest.mark.parametrize("part", ["encode", "_deliver"])
async def test_internal_error_drops_events_and_delivery_goes_on(service, webhooks, receiver, monkeypatch, caplog, part):
    with monkeypatch.context() as broken:
        broken.setattr(webhook_events if part == "encode" else webhooks, part, lambda *batch: 1 // 0)
        await service.offer()
        await rpc.until(lambda: webhooks.metrics.dropped["rejected"] == 1)
    assert webhooks.metrics.queued == 0
    await service.offer()
    await rpc.until(lambda: receiver.events)
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


async def test_full_queue_drops_new_events_and_requests_go_on(service, webhooks, receiver, monkeypatch, caplog):
    monkeypatch.setattr(webhook_events, "MAX_EVENTS", 10)
    monkeypatch.setattr(sender, "MAX_EVENTS", 10)
    receiver.behaviour = status(500)
    await service.offer()
    await rpc.until(lambda: receiver.requests)
    for _ in range(50):
        await service.offer()
    assert webhooks.metrics.queued == 11
    assert webhooks.metrics.dropped == Counter({"full": 40})
    assert caplog.text.count("the queue of webhooks is full") == 1
    assert "not full any more" not in caplog.text
    receiver.behaviour = status(200)
    await rpc.until(lambda: webhooks.metrics.sent == 11)
    assert [event["sequence"] for event in receiver.events] == [*range(1, 12)]
    assert sum(content["dropped"] for content in receiver.contents) == 40
    assert caplog.text.count("the queue of webhooks is full") == caplog.text.count("not full any more") == 1
    await service.offer()
    await rpc.until(lambda: len(receiver.events) == 12)
    assert (receiver.events[-1]["sequence"], receiver.contents[-1]["dropped"]) == (52, 0)


async def test_retry_after_is_honoured(service, webhooks, receiver):
    receiver.behaviours.append(status(429, Retry_After="1"))
    await service.offer()
    await rpc.until(lambda: receiver.events)
    first, second = receiver.times
    assert second - first >= 0.9


async def test_slow_receiver_gets_the_events_again_after_the_time_limit(service, webhooks, receiver, monkeypatch):
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.1)
    receiver.behaviours.append(hang)
    await service.offer()
    await rpc.until(lambda: receiver.events)
    first, *_, last = receiver.requests  # a busy machine may also be late with the next answer
    assert first.body == last.body
    assert webhooks.metrics.failed >= 1


def hold_answers(receiver):
    """Hold back the answers to all requests. Return the requests as they begin, and the event that ends the wait."""
    begun, ends = [], threading.Event()

    def wait_for_end(handler):
        begun.append(handler)
        ends.wait()
        status(200)(handler)

    receiver.behaviour = wait_for_end
    return begun, ends


async def test_clients_do_not_wait_for_a_receiver_and_the_next_request_has_what_gathered(service, webhooks, receiver):
    begun, ends = hold_answers(receiver)
    await service.offer()
    await rpc.until(lambda: begun)
    for _ in range(5):
        await service.offer()
    assert len(begun) == 1
    ends.set()
    await rpc.until(lambda: len(receiver.events) == 6)
    assert [len(content["events"]) for content in receiver.contents] == [1, 5]


async def test_full_batches_are_sent_in_parallel_with_the_events_of_a_session_in_order(
    service, webhooks, receiver, monkeypatch
):
    monkeypatch.setattr(sender, "BATCH_EVENTS", 5)
    monkeypatch.setattr(webhook_events, "BATCH_EVENTS", 5)
    begun, ends = hold_answers(receiver)
    codes = [await service.offer() for _ in range(5)]
    await rpc.until(lambda: len(begun) == 1)
    for code in codes:  # these wait, because the first events of these sessions are being sent
        await service.post("/withdraw", code=code, side="offerer")
    for _ in range(5 * sender.MAX_SENDING):
        await service.offer()
    await rpc.until(lambda: len(begun) == sender.MAX_SENDING)
    assert len(receiver.requests) == sender.MAX_SENDING
    sent = [event for attempt in receiver.requests for event in json.loads(attempt.body)["events"]]
    assert {event["type"] for event in sent} == {"session.created"}
    ends.set()
    await rpc.until(lambda: webhooks.metrics.queued == 0)
    for code in codes:
        kinds = [event["type"] for event in receiver.events if event["code"] == code]
        assert kinds == ["session.created", "session.withdrawn"]
    assert len({event["sequence"] for event in receiver.events}) == 10 + 5 * sender.MAX_SENDING


def arrived(receiver):
    return {event["sequence"] for each in receiver.requests for event in json.loads(each.body)["events"]}


async def test_off_and_on_again_drops_what_waits_and_continues(service, webhooks, receiver, tmp_path):
    receiver.behaviour = status(500)
    file = tmp_path / "webhook.secret"
    settings = dataclasses.replace(service.settings, webhook_url=receiver.url, webhook_secret_file=file)
    for first in (1, 3, 5):
        await service.offer()
        await service.offer()
        # Not only as many requests: an earlier event may have been sent again.
        await rpc.until(lambda first=first: first in arrived(receiver))
        webhooks.use(make_target(service.settings), service.settings)
        assert service.shared.observer is None
        webhooks.use(make_target(settings), settings)
        assert service.shared.observer is webhooks
    receiver.behaviour = status(200)
    await service.offer()
    await rpc.until(lambda: webhooks.metrics.sent == 1)
    assert (webhooks.metrics.queued, webhooks.metrics.dropped) == (0, Counter({"off": 6}))
    # A request that was being sent can still be accepted, also after the next one.
    assert {7} <= {event["sequence"] for event in receiver.events} <= {5, 6, 7}
