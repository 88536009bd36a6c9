"""Commits of changes together with their locks, counters and the state in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from . import layout
from .changes import Change
from .database import Database
from .layout import StoreCounters
from .locks import LockToken, SessionLocks
from .state import StoreState


@dataclass
class Committer:
    """Commits changes."""

    database: Database
    state: StoreState  # the state in memory to update
    locks: SessionLocks

    def commit(
        self,
        tokens: list[LockToken],
        change: Change,
        apply: Callable[[], None],
        *,
        now_ms: int | None = None,
    ) -> "asyncio.Future[None]":
        """Commit a change and hold the locks of its sessions until it is committed or has failed.

        The future is done after the commit, or fails with Unavailable.

        Args:
            tokens: tokens of these locks, empty for a session that no other request can know yet.
            apply: updates the state in memory after the commit.
            now_ms: the time by which the change was decided. It is written, so that no later process decides by an
                earlier one. None if the change affects neither times, serials nor the number of listed sessions.
        """
        state, locks = self.state, self.locks
        listed = state.listed + change.listed
        if now_ms is not None:
            counters = StoreCounters(state.advance_time(now_ms), state.serial, listed)
            change.puts.append((layout.COUNTERS_KEY, layout.pack_counters(counters)))
        locks.enter(tokens)
        appends = bool(tokens) and tokens[0].appends

        def on_committed(committed: bool) -> None:
            locks.release(tokens)
            if committed:
                if not appends:  # appended candidates change neither expiries nor access data
                    for token in tokens:
                        state.accesses.pop(token.key, None)
                    state.on_expiries(put for put, _ in change.puts if put.startswith(layout.EXPIRY))
                apply()

        waiter = self.database.commit(change, on_committed)
        state.listed = listed  # after `commit`: a change that the database refuses changes nothing
        return waiter
