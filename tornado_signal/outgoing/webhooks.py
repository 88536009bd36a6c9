"""Collection of events, and their delivery with retries (https://www.standardwebhooks.com)."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ..metrics import WebhookMetrics
from ..service.service import Service
from ..settings.settings import Settings
from ..system.secrets import webhook_key
from .endpoint import Endpoint, RequestFailed, make_endpoint
from .webhook_events import BATCH_EVENTS, MAX_EVENTS, Batch, EventQueue, Fields, connection_event, session_event

log = logging.getLogger(__name__)

GATHER_S: Final = 0.2  # more events within this time share a request
MAX_SENDING: Final = 8  # requests in flight, while each of them is full
FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
GIVE_UP_S: Final = 600.0  # events are dropped this long after their first attempt
FLUSH_S: Final = 2.0
STOPPED: Final = "stopped"
LOCAL_SUFFIXES: Final = (".localhost", ".local", ".internal")


@dataclass(frozen=True, repr=False)
class Target:
    """The receiver."""

    endpoint: Endpoint
    key: bytes  # the key that signs requests

    async def post(self, batch: Batch) -> None:
        """Send a batch, signed. Raise RequestFailed if the receiver did not respond with 2xx in time."""
        timestamp = str(int(time.time()))
        digest = hmac.digest(self.key, f"{batch.id}.{timestamp}.".encode() + batch.body, hashlib.sha256)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": batch.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
        await self.endpoint.send("POST", headers, batch.body)


def make_target(settings: Settings) -> Target | None:
    """Return the configured receiver, or None if webhooks are off. Needs a running event loop."""
    url, path = settings.webhook_url, settings.webhook_secret_file
    return None if url is None or path is None else Target(make_endpoint(url), webhook_key(path))


def warn_of_unencrypted_events(settings: Settings) -> None:
    """Log a warning if events are sent unencrypted through the internet."""
    parts = urlsplit(settings.webhook_url or "")
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_private
    except ValueError:
        local = "." not in host or host.endswith(LOCAL_SUFFIXES)
    if parts.scheme == "http" and not local:
        log.warning("--webhook-url sends events to %s unencrypted; use https://", host)


class Webhooks:
    """The events of one process. It needs a running event loop. Without a receiver it observes nothing."""

    def __init__(self, service: Service) -> None:
        self.metrics = WebhookMetrics()
        self.metric_families = self.metrics.families
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._queue = EventQueue(service.store.process_id.hex(), self.metrics)
        self._target: Target | None = None
        self._types: frozenset[str] = frozenset()
        self._with_addresses = False
        self._changed = asyncio.Event()  # whether an event was added, or a request is done
        self._hurry = asyncio.Event()  # ends a pause
        self._closing = self._stopped = False  # whether the server stops, and a last request was not accepted
        self._failing = self._overflows = False  # whether the log says so
        self._task: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    # Settings

    def use(self, target: Target | None, settings: Settings) -> None:
        self._target = target
        self._types = frozenset(settings.webhook_events if target else ())
        self._with_addresses = settings.access_log == "addresses"
        self._failing = False
        self._hurry.set()
        observes = any(name.startswith("session.") for name in self._types)
        self._service.store.observe(self.session_event if observes else None)
        self._service.observer = self if target else None
        if target is None:
            if self._task is not None:
                self._cancel()
                self._task = None
                self._queue.clear("off")
        elif self._task is None:
            self._task = asyncio.create_task(self._run())

    @property
    def needs_expiries(self) -> bool:
        """Whether the store must look for expired sessions regularly."""
        return "session.expired" in self._types

    # Observers

    def session_event(
        self, outcome: str, origin: str, code: bytes, topic: str | None, created_ms: int | None, expires_ms: int | None
    ) -> None:
        if f"session.{outcome}" in self._types:
            now_ms = self._service.clock.now_ms()
            self._add(code, session_event(now_ms, outcome, origin, code, topic, created_ms, expires_ms))

    def opened(self, protocol: str, connection: str, origin: str, address: str) -> Callable[[int], None] | None:
        shown = address if self._with_addresses else None
        opened_s = self._loop.time()

        def report(kind: str, duration_ms: int | None = None, code: int | None = None) -> None:
            if f"connection.{kind}" in self._types:
                now_ms = self._service.clock.now_ms()
                fields = connection_event(kind, now_ms, connection, protocol, origin, shown, duration_ms, code)
                self._add(connection, fields)

        report("opened")
        if "connection.closed" not in self._types:
            return None
        return lambda code: report("closed", round((self._loop.time() - opened_s) * 1000), code)

    def _add(self, subject: bytes | str, fields: Fields) -> None:
        try:
            added = self._queue.add(subject, fields)
        except Exception:
            log.exception("webhooks: cannot send an event; dropping it")
            self._queue.drop("rejected", 1)
            return
        if added:
            self._changed.set()
        elif not self._overflows:
            self._overflows = True
            log.warning(
                "the queue of webhooks is full: new events are dropped until the receiver has accepted half of it"
            )

    # Delivery

    async def close(self) -> None:
        """Send what is queued, for at most `FLUSH_S`, and drop the rest."""
        self._closing = True
        self._changed.set()
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=FLUSH_S)
            self._cancel()
            await asyncio.wait((self._task, *self._sending))
        self._queue.clear(STOPPED)
        if dropped := self.metrics.dropped[STOPPED]:
            log.warning("the server stops: %d events of webhooks were not delivered", dropped)

    def _cancel(self) -> None:
        for task in (self._task, *self._sending):
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        while not (self._closing and (self._stopped or not self._queue)):
            # Further requests begin only if each has a full batch, and the receiver accepts them.
            most = 1 if self._failing or len(self._queue) < BATCH_EVENTS else MAX_SENDING
            batch = None
            if self._queue and len(self._sending) < most:
                if len(self._queue) < BATCH_EVENTS:
                    await self._pause(GATHER_S)
                batch = self._queue.take()
            if batch is None:  # a request has to end first
                self._changed.clear()
                await self._changed.wait()
                continue
            task = asyncio.create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sent)
        if self._sending:
            await asyncio.wait(self._sending)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._changed.set()

    async def _send(self, batch: Batch) -> None:
        reason = "rejected"
        try:
            reason = await self._deliver(batch)
        except asyncio.CancelledError:
            reason = self._undelivered_reason
            raise
        except Exception:
            log.exception("webhooks: cannot send %d events; dropping them", batch.size)
        finally:
            self._queue.done(batch, reason)
            self._stopped |= reason == STOPPED

    @property
    def _undelivered_reason(self) -> str:
        """Why events are dropped when delivery ends now."""
        return STOPPED if self._closing else "off"

    async def _deliver(self, batch: Batch) -> str:
        """Send a batch until the receiver accepts it. Return an empty text, or why it is dropped."""
        give_up_s = self._loop.time() + GIVE_UP_S
        retry_s = FIRST_RETRY_S
        while self._target is not None:
            target, last = self._target, self._closing
            try:
                await target.post(batch)
            except RequestFailed as error:
                self._failed(target, error)
                remaining_s = give_up_s - self._loop.time()
                if last:
                    break
                if remaining_s <= 0:
                    log.warning(
                        "webhooks: %s has not accepted %d events; dropping them", target.endpoint.name, batch.size
                    )
                    return "rejected"
                pause_s = max(retry_s * random.uniform(0.5, 1), error.retry_after_s)
                await self._pause(min(pause_s, remaining_s))
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            else:
                self._succeeded(target)
                return ""
        return self._undelivered_reason

    def _failed(self, target: Target, error: RequestFailed) -> None:
        self.metrics.failed += 1
        if not self._failing:
            self._failing = True
            log.warning("webhooks: %s does not accept events: %s; retrying", target.endpoint.name, error)

    def _succeeded(self, target: Target) -> None:
        self.metrics.succeeded_s = time.time()
        if self._failing:
            log.info("webhooks: %s accepts events again", target.endpoint.name)
            self._changed.set()
        self._failing = False
        if self._overflows and len(self._queue) <= MAX_EVENTS // 2:
            self._overflows = False
            log.warning(
                "the queue of webhooks is not full any more: %d events were dropped", self.metrics.dropped["full"]
            )

    async def _pause(self, seconds: float) -> None:
        """Wait, but not while the server stops or after a reload."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        if not self._closing:
            self._hurry.clear()
