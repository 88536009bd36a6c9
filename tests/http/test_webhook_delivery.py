"""Delivery of webhooks by a server in this process, with shorter times than those of users."""

import dataclasses
import json
import threading
from collections import Counter

import pytest
from support.backend import hang
from support.rpc import until
from support.webhooks import status, write_secret

from tornado_signal.outgoing import endpoint, webhook_events, webhook_target
from tornado_signal.outgoing import webhooks as sender
from tornado_signal.outgoing.webhooks import Webhooks


@pytest.fixture
def webhooks(service, receiver, tmp_path, monkeypatch, io_loop):
    """The webhooks of the server, which retry after few milliseconds."""
    monkeypatch.setattr(sender, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(sender, "MAX_RETRY_S", 0.02)
    path = write_secret(tmp_path)[1]
    settings = dataclasses.replace(service.settings, webhook_url=receiver.url, webhook_secret_file=path)

    async def make():
        webhooks = Webhooks(service.shared)
        webhooks.use(webhook_target.make_target(settings), settings)
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
    await until(lambda: webhooks.metrics.dropped["rejected"])
    assert webhooks.metrics.failed >= 1
    assert "has not accepted 1 events; dropping them" in caplog.text
    receiver.behaviour = status(200)
    await service.offer()
    await until(lambda: receiver.events)
    assert [
        (event["sequence"], content["dropped"]) for content in receiver.contents for event in content["events"]
    ] == [(2, 1)]
    await until(lambda: webhooks.metrics.queued == 0)


@pytest.mark.parametrize("part", ["take", "_deliver"])
async def test_internal_error_drops_events_and_delivery_goes_on(service, webhooks, receiver, monkeypatch, caplog, part):
    with monkeypatch.context() as broken:
        broken.setattr(webhooks._queue if part == "take" else webhooks, part, lambda *batch: 1 // 0)
        await service.offer()
        await until(lambda: webhooks.metrics.dropped["rejected"] == 1)
    assert webhooks.metrics.queued == 0
    await service.offer()
    await until(lambda: receiver.events)
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


async def test_full_queue_drops_new_events_and_requests_go_on(service, webhooks, receiver, monkeypatch, caplog):
    monkeypatch.setattr(webhook_events, "MAX_EVENTS", 10)
    monkeypatch.setattr(sender, "MAX_EVENTS", 10)
    receiver.behaviour = status(500)
    await service.offer()
    await until(lambda: receiver.requests)
    for _ in range(50):
        await service.offer()
    assert webhooks.metrics.queued == 11
    assert webhooks.metrics.dropped == Counter({"full": 40})
    assert caplog.text.count("the queue of webhooks is full") == 1
    assert "not full any more" not in caplog.text
    receiver.behaviour = status(200)
    await until(lambda: webhooks.metrics.sent == 11)
    assert [event["sequence"] for event in receiver.events] == [*range(1, 12)]
    assert sum(content["dropped"] for content in receiver.contents) == 40
    assert caplog.text.count("the queue of webhooks is full") == caplog.text.count("not full any more") == 1
    await service.offer()
    await until(lambda: len(receiver.events) == 12)
    assert (receiver.events[-1]["sequence"], receiver.contents[-1]["dropped"]) == (52, 0)


async def test_slow_receiver_gets_the_events_again_after_the_time_limit(service, webhooks, receiver, monkeypatch):
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.1)
    receiver.behaviours.append(hang)
    await service.offer()
    await until(lambda: receiver.events)
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


async def test_one_request_is_in_flight_and_the_next_one_has_what_gathered(service, webhooks, receiver):
    begun, ends = hold_answers(receiver)
    await service.offer()
    await until(lambda: begun)
    for _ in range(5):
        await service.offer()
    assert len(begun) == 1
    ends.set()
    await until(lambda: len(receiver.events) == 6)
    assert [len(content["events"]) for content in receiver.contents] == [1, 5]


async def test_full_batches_are_sent_in_parallel_with_the_events_of_a_session_in_order(
    service, webhooks, receiver, monkeypatch
):
    monkeypatch.setattr(sender, "BATCH_EVENTS", 5)
    monkeypatch.setattr(webhook_events, "BATCH_EVENTS", 5)
    begun, ends = hold_answers(receiver)
    codes = [await service.offer() for _ in range(5)]
    await until(lambda: len(begun) == 1)
    for code in codes:  # these wait, because the first events of these sessions are being sent
        await service.post("/withdraw", code=code, side="offerer")
    for _ in range(5 * sender.MAX_SENDING):
        await service.offer()
    await until(lambda: len(begun) == sender.MAX_SENDING)
    assert len(receiver.requests) == sender.MAX_SENDING
    sent = [event for attempt in receiver.requests for event in json.loads(attempt.body)["events"]]
    assert {event["type"] for event in sent} == {"session.created"}
    ends.set()
    await until(lambda: webhooks.metrics.queued == 0)
    for code in codes:
        kinds = [event["type"] for event in receiver.events if event["code"] == code]
        assert kinds == ["session.created", "session.withdrawn"]
    assert len({event["sequence"] for event in receiver.events}) == 10 + 5 * sender.MAX_SENDING


async def test_off_and_on_again_drops_what_waits_and_continues(service, webhooks, receiver, tmp_path):
    receiver.behaviour = status(500)
    settings = dataclasses.replace(
        service.settings, webhook_url=receiver.url, webhook_secret_file=tmp_path / "webhook.secret"
    )
    for round_ in range(1, 4):
        await service.offer()
        await service.offer()
        await until(lambda round_=round_: len(receiver.requests) >= round_)
        webhooks.use(webhook_target.make_target(service.settings), service.settings)
        webhooks.use(webhook_target.make_target(settings), settings)
    receiver.behaviour = status(200)
    await service.offer()
    await until(lambda: webhooks.metrics.sent == 1)
    assert (webhooks.metrics.queued, webhooks.metrics.dropped) == (0, Counter({"off": 6}))
    # A request that was being sent can still be accepted, also after the next one.
    assert {7} <= {event["sequence"] for event in receiver.events} <= {5, 6, 7}


async def test_unusual_topics_and_origins_arrive_as_they_are(service, webhooks, receiver):
    topics = ['"\\', "\1\x7f", "\u2028\ufeff\uffff", "\U0001f600", "\0", "ä" * 256]
    origins = ["https://a.example", "null", "app://\xff\xe4", '"}],', "x" * 512]
    offered = [(topic, origin) for topic in topics for origin in origins]
    for topic, origin in offered:
        await service.offer(topic, origin=origin)
    refused = await service.call("POST", "/%ED%A0%80/offer", {"info": "i", "offer": "o"})
    assert refused.status in (400, 404)
    await service.offer("last")
    await until(lambda: len(receiver.events) > len(offered))
    assert [(event["topic"], event["origin"]) for event in receiver.events][:-1] == offered


async def test_nothing_is_observed_without_webhooks(service, webhooks):
    assert service.shared.observer is webhooks
    webhooks.use(webhook_target.make_target(service.settings), service.settings)
    assert service.shared.observer is None
    await service.offer()
    assert (webhooks.metrics.queued, webhooks.metrics.dropped.total()) == (0, 0)
