"""The queue of webhooks: its bounds, its batches, and what they say about dropped events."""

import email.utils
import time
from collections import Counter

import orjson
import pytest

from tornado_signal.metrics import WebhookMetrics
from tornado_signal.outgoing import webhook_events
from tornado_signal.outgoing.endpoint import parse_retry_after
from tornado_signal.outgoing.webhook_events import EventQueue, connection_event, session_event
from tornado_signal.outgoing.webhooks import warn_of_unencrypted_events
from tornado_signal.service import wire
from tornado_signal.session import make_uuid
from tornado_signal.settings.settings import Settings

CODE = make_uuid(b"\0" * 16, 4)
UNUSUAL = '"\\\0\1\x7f\u2028\ufeff\uffffä😀'


def event(topic="topic", origin="https://a.example", code=CODE):
    return code, session_event(1_000, "created", origin, code, topic, 500, 1_500)


@pytest.fixture
def metrics():
    return WebhookMetrics()


@pytest.fixture
def queue(metrics):
    return EventQueue("a1", metrics)


def sequences(batch):
    return [each["sequence"] for each in orjson.loads(batch.body)["events"]]


def test_events_have_their_fields_and_unknown_ones_are_omitted(queue):
    queue.add(*event())
    queue.add(CODE, session_event(2_000, "expired", "null", CODE, UNUSUAL, None, 1_500))
    queue.add("c1", connection_event("opened", 3_000, "c1", "peerjs", "", None))
    queue.add("c1", connection_event("closed", 4_000, "c1", "peerjs", "null", "192.0.2.1", 1_000, 1001))
    code = "00000000-0000-4000-8000-000000000000"
    fields = {
        "session.created": {"origin": "https://a.example", "code": code, "topic": "topic", "createdAt": 500},
        "session.expired": {"origin": "null", "code": code, "topic": UNUSUAL},
        "connection.opened": {"connection": "c1", "protocol": "peerjs"},
        "connection.closed": {"connection": "c1", "protocol": "peerjs", "origin": "null", "address": "192.0.2.1"},
    }
    for name in ("session.created", "session.expired"):
        fields[name]["expiresAt"] = 1_500
    fields["connection.closed"] |= {"durationMs": 1_000, "closeCode": 1001}
    events = [
        {"sequence": number, "server": "a1", "type": name, "time": 1_000 * number, **more}
        for number, (name, more) in enumerate(fields.items(), 1)
    ]
    assert orjson.loads(queue.take().body) == {"events": events, "dropped": 0}


def test_batches_are_bounded_in_number_and_size_and_lose_nothing(queue, metrics):
    for number in range(250):
        queue.add(*event(code=make_uuid(number.to_bytes(16), 4)))
    batches = [queue.take(), queue.take(), queue.take()]
    assert [batch.size for batch in batches] == [100, 100, 50]
    assert [number for batch in batches for number in sequences(batch)] == [*range(1, 251)]
    assert len({batch.id for batch in batches}) == 3
    assert (len(queue), metrics.queued) == (0, 250)
    for batch in batches:
        queue.done(batch, "")
    assert (metrics.queued, metrics.sent, metrics.dropped.total()) == (0, 250, 0)
    for _ in range(100):  # each control character takes six bytes
        queue.add(*event(topic="\1" * 256, origin="\1" * 512))
    found = []
    while queue:
        batch = queue.take()
        assert len(batch.body) <= 256 * 1024
        found += sequences(batch)
        queue.done(batch, "")
    assert found == [*range(251, 351)]


def test_queue_that_is_full_by_bytes_drops_the_newest_and_a_rejected_batch_is_reported_with_what_it_reported(
    queue, metrics, monkeypatch
):
    """The bound in events is in process/test_webhooks.py."""
    size = webhook_events.EVENT_BYTES + len(wire.encode({"sequence": 1, "server": "a1", **event()[1]}))
    monkeypatch.setattr(webhook_events, "MAX_BYTES", 3 * size)
    assert [queue.add(*event()) for _ in range(5)] == [True, True, True, False, False]
    queue.done(queue.take(), "rejected")
    assert metrics.dropped == Counter({"full": 2, "rejected": 3})
    queue.add(*event())
    assert queue.take().dropped == 5


@pytest.fixture(params=["UTC0", "JST-9", "PET5"])
def local_time(request, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("local_time")
def test_retry_after_is_a_number_of_seconds_or_a_date():
    now_s = time.time()
    assert [parse_retry_after(text) for text in ("0", "7", "", "soon", "-1", "1.5", "٣")] == [0, 7, 0, 0, 0, 0, 0]
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"):
        assert 1000 < parse_retry_after(time.strftime(form, time.gmtime(now_s + 3600))) <= 3600, form
        assert parse_retry_after(time.strftime(form, time.gmtime(now_s - 3600))) == 0
    assert 1000 < parse_retry_after(email.utils.formatdate(now_s + 3600)) <= 3600  # with -0000
    assert parse_retry_after("Mon, 01 Jan 0001 00:00:00 +0100") == 0
    assert parse_retry_after("9" * 5000) < 1e9


def test_urls_through_the_internet_without_tls_are_logged(caplog):
    local = "https://a.example http://127.0.0.1:1/ http://[::1]/ http://localhost http://receiver:80 http://10.1.2.3"
    local += " http://192.168.1.1 http://hook.svc.cluster.local http://[fd00::1]"
    for url in (None, *local.split()):
        warn_of_unencrypted_events(Settings(webhook_url=url))
    assert caplog.records == []
    for host in ("a.example", "8.8.8.8", "2001:4860::1"):
        warn_of_unencrypted_events(Settings(webhook_url=f"http://{f'[{host}]' if ':' in host else host}/a"))
        assert f"sends events to {host} unencrypted" in caplog.records.pop().getMessage()
