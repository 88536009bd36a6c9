"""The parts of a server that describe it to its operator, and act on it."""

import dataclasses
import functools
import socket
from collections.abc import Callable
from typing import Any

from ..admin.actions import Actions, Fields, parse_level
from ..admin.control import Control
from ..admin.messages import Messages
from ..admin.status import Status, StoredSessions
from ..lifecycle import LEAVING
from ..relay import Relay
from ..service.service import Service
from ..settings.live import LiveSettings
from ..settings.settings import Settings
from ..system.sockets import port_or_path
from ..transport import ServerState


def server_name(public: list[socket.socket]) -> str:
    """Return the name of a server among those that share its store: its host, and its port or Unix socket."""
    return f"{socket.gethostname()}:{port_or_path(public[0])}".replace(" ", "_")


def make_control(
    service: Service,
    relay: Relay,
    transport: ServerState,
    apply: Callable[[Settings], object],
    server: str,
    worker: int,
) -> Control:
    """Make the operator's view of a process.

    The number of the worker is 0 if the server is one process.
    """
    status = Status(service, transport, lambda: service.settings, server, worker)
    stored = StoredSessions(service.store, lambda: service.settings.admin_topics)
    stop = functools.partial(service.lifecycle.reach, LEAVING)
    actions = Actions(service, transport, stop, lambda changes: apply(changed(service.settings, changes)))
    name = f"{server}/{worker}" if worker else server
    messages = Messages(lambda: service.store.secret, service.store.now_ms)
    return Control(relay, service.store.process_id.hex(), name, status, stored, actions, service.lifecycle, messages)


def changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    """Return settings with changes by the operator. A reload replaces them."""
    sources = {**settings.sources, **dict.fromkeys(changes, "operator")}
    return dataclasses.replace(settings, **changes, sources=sources)


def make_server_actions(
    stop: Callable[[], None], live: LiveSettings, apply: Callable[[Settings], object]
) -> dict[str, Callable[[Fields], dict[str, Any]]]:
    """Return the actions of a supervisor by name.

    `apply` applies other settings to all workers.
    """

    def drain(fields: Fields) -> dict[str, Any]:
        stop()
        return {"state": "leaving"}

    def log_level(fields: Fields) -> dict[str, Any]:
        level = parse_level(fields)
        apply(changed(live.current, {"log_level": level}))
        return {"level": level}

    return {"drain": drain, "log-level": log_level}
