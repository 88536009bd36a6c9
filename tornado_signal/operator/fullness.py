"""Full resources, because of which the server refuses clients: noticed, logged once, and reported to the operator."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ..stores import Store
from ..system.usage import descriptors_left

log = logging.getLogger(__name__)

CHECK_S: Final = 1.0  # interval between two checks
CALM_S: Final = 10.0  # after this time without a refusal a resource has room again

RESOURCES: Final = {
    "connections": "all connections that --max-connections allows are open; raise it",
    "descriptors": "no file descriptor is left for a connection; raise LimitNOFILE= of a unit or ulimit -n of a shell",
    "waits": "as many requests wait as --max-connections allows; raise it",
    "admin": "all connections of the admin listener are in use, also for probes; close pages and programs that use it",
    "store": "the data directory or its sessions in memory have reached --max-store-bytes; raise it",
    "disk": "the disk of --data-dir has no free space beyond --min-free-bytes; free space on it",
    "redis": "the memory of Redis is full; raise maxmemory",
}
"""All resources that can be full, each with the cause and what to do."""
LOGGED: Final = {"redis"}
"""The resources whose engine logs that they are full, and where."""


class Fullness:
    """The resources that are full now, or were within `CALM_S`. It needs a running event loop.

    `store` is None for a process without one. `refusals` counts refused clients by resource.
    """

    def __init__(self, store: "Store | None", refusals: Counter[str]) -> None:
        self._store = store
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._counted: dict[str, int] = {}
        self._began_s: dict[str, float] = {}
        self._seen_s: dict[str, float] = {}

    @property
    def full(self) -> list[str]:
        """The names of the full resources, as in `RESOURCES`."""
        return sorted(self._began_s)

    def check(self) -> None:
        """Find out what is full. Log when a resource becomes full, and when it has room again."""
        now_s = self._loop.time()
        for name in self._find():
            self._seen_s[name] = now_s
            if name not in self._began_s:
                self._began_s[name] = now_s
                if name not in LOGGED:
                    log.warning("clients are refused: %s", RESOURCES[name])
        for name, seen_s in self._seen_s.items():
            if now_s - seen_s >= CALM_S and name in self._began_s:
                log.warning("clients are served again: %s had no room for %.0f s", name, seen_s - self._began_s[name])
                del self._began_s[name]

    def _find(self) -> set[str]:
        """Return the resources that are full, or have refused a client since the last check."""
        found = {name for name, number in self._refusals.items() if number != self._counted.get(name)}
        self._counted = dict(self._refusals)
        if self._store is not None and self._store.full:
            found.add(self._store.full)
        if not descriptors_left():
            found.add("descriptors")
        return found


def describe_full(body: Mapping[str, Any]) -> str:
    """Return the end of the status line for a response of /readyz: full resources, TURN provider, and its reason."""
    full = f"; full: {', '.join(body['full'])}" if body.get("full") else ""
    full += f"; TURN provider: {body['turnProvider']}" if body.get("turnProvider") else ""
    return f"{full}; not ready: {body['reason']}" if body.get("reason") else full
