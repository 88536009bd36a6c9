"""Withdrawal of held offers of lost processes: each process records its held offers and renews a heartbeat.

The records are outside the partitions of the offers, so that one heartbeat serves all of them. They can be outdated:
an offer is withdrawn only if it still has a lease of that process.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import SessionNotFound, Unavailable
from ...redis.client import RedisClient
from ...settings.settings import Settings
from ...system.loop import Repeating

BEAT_S: Final = 2.0
LATE_BEATS: Final = 2  # missed beats before the grace period. After both, and one more beat, a process counts as lost
PIECE: Final = 50  # offers withdrawn per step
CLAIM_MS: Final = 10_000  # how long one process may withdraw the offers of a lost one; each step renews it
NOTE_MS: Final = 3_600_000  # lifetime of records when no process is left
CODE_BYTES: Final = 16


class Leases:
    """The held offers of all processes of a store. Those of a lost process wait `hold_grace_ms` for their holders."""

    def __init__(
        self, client: RedisClient, settings: Settings, release: Callable[[str, bytes, bytes], Awaitable[None]]
    ) -> None:
        self._client = client
        self._late_ms = int(LATE_BEATS * BEAT_S * 1000) + settings.hold_grace_ms
        self._note_ms = settings.session_timeout_ms + NOTE_MS
        self._release = release
        self._processes = client.key("processes")
        self._held = self._held_key(client.process_id)
        self._holds = False  # whether this process has ever held an offer
        self._suspects: dict[bytes, bytes] = {}  # late processes, with their last heartbeats
        self._repeated: list[Repeating] = []

    def start(self) -> None:
        """Start the heartbeat, and separately the release of the offers of lost processes, which can take long."""
        self._repeated = [Repeating(self._show_alive, BEAT_S), Repeating(self._release_lost, BEAT_S)]

    async def close(self) -> None:
        """Send the last heartbeat. The grace period of the holders starts now."""
        if self._repeated:
            for each in self._repeated:
                await each.stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._show_alive()

    async def record(self, origin: str, code: bytes, expires_ms: int) -> None:
        """Record that this process holds an offer until its expiry. Without the record, it lives until then."""
        if not self._holds:
            self._holds = True
            await self._show_alive()
        with contextlib.suppress(Unavailable):
            member = code + origin.encode("utf-8", "surrogatepass")
            await self._client.call_key(b"ZADD", self._held, expires_ms, member)

    def _held_key(self, process_id: bytes) -> bytes:
        return self._client.key(f"held:{process_id.hex()}")

    async def _show_alive(self) -> None:
        if self._holds:
            now_ms = self._client.now_ms()
            with contextlib.suppress(Unavailable):  # the next heartbeat follows soon
                await self._client.call_key(b"ZADD", self._processes, now_ms, self._client.process_id)
                await self._client.call_key(b"ZREMRANGEBYSCORE", self._held, b"-inf", now_ms)
                await self._client.call_key(b"PEXPIRE", self._held, self._note_ms)

    async def _release_lost(self) -> None:
        """Release the offers of processes whose heartbeats are overdue, one process at a time.

        After an outage of a node the heartbeats of all processes are late. So each gets one more interval.
        """
        with contextlib.suppress(Unavailable):
            until_ms = self._client.now_ms() - self._late_ms
            reply = await self._client.call_key(
                b"ZRANGE", self._processes, b"-inf", until_ms, b"BYSCORE", b"WITHSCORES"
            )
            late = dict(zip(reply[::2], reply[1::2], strict=True))
            gone = [process_id for process_id, beaten in late.items() if self._suspects.get(process_id) == beaten]
            self._suspects = late
            for process_id in gone:
                await self._release_all(process_id, late[process_id])

    async def _release_all(self, process_id: bytes, beaten: bytes) -> None:
        held = self._held_key(process_id)
        while await self._client.claim(process_id.hex(), CLAIM_MS):
            if await self._client.call_key(b"ZSCORE", self._processes, process_id) != beaten:
                return  # its heartbeat has returned, or another process has released all
            members = await self._client.call_key(b"ZRANGE", held, 0, PIECE - 1)
            if not members:
                await self._client.call_key(b"ZREM", self._processes, process_id)
                return
            await asyncio.gather(*(self._release_one(member, process_id) for member in members))
            await self._client.call_key(b"ZREM", held, *members)

    async def _release_one(self, member: bytes, process_id: bytes) -> None:
        origin = member[CODE_BYTES:].decode("utf-8", "surrogatepass")
        with contextlib.suppress(SessionNotFound):
            await self._release(origin, member[:CODE_BYTES], process_id)
