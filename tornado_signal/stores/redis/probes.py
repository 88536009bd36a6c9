"""Regular writes and reads of a key of each primary: they find out whether requests would be served.

A primary that responds can still refuse all writes, for want of memory, of replicas, or of a permission.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import Unavailable
from ...redis.client import RETRIED, RedisClient
from ...redis.connections import Failure
from ...redis.nodes import Node
from ...redis.slots import key_slot
from ...system.loop import Repeating

log = logging.getLogger(__name__)

PAUSE_S: Final = 5.0
KEPT_MS: Final = 60_000  # the lifetime of a key
KNOWN_S: Final = 45.0  # a key that was written within this time still exists, unless the data is lost
NUMBERS: Final = 16_384  # enough keys for one in each primary, unless a primary has very few slots


class Probes:
    """The probes of all primaries. `on_lost` is called after a primary has lost its data."""

    def __init__(self, client: RedisClient, on_lost: Callable[[Node], Awaitable[None]]) -> None:
        self._client = client
        self._topology = client.topology
        self._on_lost = on_lost
        self._written_s: dict[bytes, float] = {}  # when each key was written
        self._repeating: Repeating | None = None
        self._logged = False  # whether the problem is in the log
        self.problem = ""  # why the last probe failed, or empty

    async def start(self) -> None:
        """Probe now, so that a loss of data is noticed from the start, and regularly."""
        await self._repeat()
        self._repeating = Repeating(self._repeat, PAUSE_S)

    async def stop(self) -> None:
        if self._repeating is not None:
            await self._repeating.stop()

    async def probe(self) -> None:
        try:
            await asyncio.gather(*map(self._probe, self._topology.primaries))
        except Unavailable as error:
            self.problem = error.reason
            if self._topology.available and not self._logged:  # otherwise the topology has logged it
                self._logged = True
                if isinstance(error.__cause__, Failure) and error.__cause__.kind in RETRIED:  # likewise the client
                    log.warning("requests for some or all sessions are refused: %s", self.problem)
            raise
        self.problem = ""
        if self._logged:
            self._logged = False
            log.warning("requests for all sessions are served again")

    async def _repeat(self) -> None:
        with contextlib.suppress(Unavailable):  # it is logged
            await self.probe()

    async def _probe(self, node: Node) -> None:
        for number in range(NUMBERS):
            key = self._client.key(f"{{{number:x}}}:probe:{self._client.process_id.hex()}")
            if self._topology.node(key_slot(key)) is node:
                await self._write_and_read(node, key)
                return

    async def _write_and_read(self, node: Node, key: bytes) -> None:
        began_s = asyncio.get_running_loop().time()
        before = await self._client.call_key(b"SET", key, b"", b"PX", KEPT_MS, b"GET", write=True)
        known = began_s - self._written_s.get(key, began_s - KEPT_MS) < KNOWN_S
        self._written_s[key] = began_s
        if known and before is None:
            await self._on_lost(node)
        if await self._client.call_key(b"EXISTS", key) != 1:
            raise Unavailable("Redis at {}:{}: a written value cannot be read back".format(*node.address))
