"""`serve --check`: a check of everything that the server needs."""

import dataclasses
import errno
import logging
import os
import re
import socket

from ..errors import DamagedDatabase, DatabaseInUse, OperatorError
from ..operator.health import ask_health
from ..outgoing.turn import check_provider
from ..outgoing.webhooks import warn_of_unencrypted_events
from ..service.ice import NO_ICE_SERVERS
from ..settings.settings import Settings
from ..settings.value_types import UNIX_PREFIX
from ..stores import check_files, check_unused, open_store, where
from ..system.clock import Clock
from ..system.owner import become_owner
from ..system.secrets import warn_of_readable_secrets
from ..system.sockets import url
from ..tracing import open_tracing
from .listeners import open_all_sockets
from .reload import read_resources
from .tuning import raise_descriptor_limit

log = logging.getLogger(__name__)


async def check(settings: Settings) -> list[str]:
    """Open everything that `serve` needs and close it again. Return a line for each resource."""
    results = [f"open files: room for {raise_descriptor_limit()} connections"]
    resources = read_resources(settings)
    if resources.certificate is not None:
        results.append(f"certificate and key: {settings.tls_certificate}, {settings.tls_key}")
    if resources.admin_token:
        results.append(f"admin token: {settings.admin_token_file}")
    if resources.keys is not None:
        keys = (f"{key.name} ({key.algorithm})" for key in resources.keys.values())
        anonymous = ", ".join(settings.auth_anonymous) or "nothing"
        results.append(f"keys of tokens: {', '.join(keys)}; allowed without a token: {anonymous}")
    if (tracer := open_tracing(settings)) is not None:
        await tracer.close(1)
        results.append(f"spans: to {settings.otlp_endpoint}")
    if resources.turn_provider is not None:
        results.append(f"TURN provider: {await check_provider(resources.turn_provider, int(Clock().wall_s() * 1000))}")
    ice = resources.ice
    results.append(f"ICE servers: {', '.join((*ice.stun, *ice.turn_urls)) or NO_ICE_SERVERS}")
    if (target := resources.webhooks) is not None:
        results.append(f"webhooks: {target.endpoint.name}, {', '.join(settings.webhook_events)}")
    warn_of_readable_secrets(settings)
    warn_of_unencrypted_events(settings)
    if settings.store == "leveldb":
        address = tuple(re.sub(f"(?<=^{UNIX_PREFIX})(?!/)", f"{os.getcwd()}/", each) for each in settings.address)
        data_dir = become_owner(settings.data_dir, enter=True)
        settings = dataclasses.replace(settings, address=address, data_dir=data_dir)
    for name, scheme, sockets in open_listeners(settings):
        for listening in sockets:
            results.append(f"{name}: {url(listening, scheme)}")
            listening.close()
    results.append(f"store: {where(settings)}, {await _check_store(settings)}")
    return results


def open_listeners(settings: Settings) -> list[tuple[str, str, list[socket.socket]]]:
    """Return the sockets of each listener with its name and scheme. Empty if a running server uses the addresses."""
    try:
        public, admin = open_all_sockets(settings)
    except OperatorError as error:
        if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE or not is_served(settings):
            raise
        log.warning("a running server uses the port or socket, which is not checked: %s", error)
        return []
    scheme = "https" if settings.tls_certificate else "http"
    return [("listener", scheme, public), ("admin listener", "http", admin)]


def is_served(settings: Settings) -> bool:
    try:
        ask_health(settings)
    except OperatorError:
        return False
    return True


async def _check_store(settings: Settings) -> str:
    """Open the store and close it again. Return what it holds."""
    check_files(settings)
    try:
        check_unused(settings)
        # A check does not move a damaged database aside.
        store = await open_store(dataclasses.replace(settings, start_empty_if_damaged=False), Clock())
    except DatabaseInUse as error:
        log.warning("a running server uses the data, which is not checked: %s", error)
        return "in use"
    except DamagedDatabase as error:
        if not settings.start_empty_if_damaged:
            raise
        log.warning("%s; the server will move it aside and start empty", error.damage)
        return "damaged"
    counts = await store.counts()
    await store.close()
    return "{} sessions listed in {} topics".format(*counts) if counts else "too much to count at once"
