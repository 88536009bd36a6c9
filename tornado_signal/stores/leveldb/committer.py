"""How a change gets to the disk with all that goes with it: locks, counters, and what is kept in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from . import layout
from .changes import Change
from .database import Database
from .layout import StoreCounters
from .locks import SessionLocks, Token
from .state import StoreState


@dataclass
class Committer:
    """Commits changes.

    Attributes:
        database: where to.
        state: the state in memory to update.
        locks: those of the sessions that change.
    """

    database: Database
    state: StoreState
    locks: SessionLocks

    def commit(
        self,
        tokens: list[Token],
        change: Change,
        apply: Callable[[], None],
        *,
        counted: bool = False,
    ) -> "asyncio.Future[None]":
        """Commit a change and hold the locks of its sessions until it is settled.

        Args:
            tokens: of these locks; none for a session that no other request can know of yet.
            change: what to write.
            apply: brings what is kept in memory up to date once it is committed.
            counted: whether it moves the store's time, its order of events or the number of those that are listed.

        Returns:
            A future that is done once it is committed, or fails with Unavailable.
        """
        state, locks = self.state, self.locks
        listed = state.listed + change.listed
        if counted:
            counters = StoreCounters(state.created_ms, state.serial, listed)
            change.puts.append((layout.COUNTERS_KEY, layout.pack_counters(counters)))
        locks.enter(tokens)
        appends = bool(tokens) and tokens[0].appends

        def settled(committed: bool) -> None:
            locks.release(tokens)
            if committed:
                if not appends:  # candidates have no expiry of their own, and change nothing for others
                    for token in tokens:
                        state.accesses.pop(token.key, None)
                    state.on_expiries(put for put, _ in change.puts if put.startswith(layout.EXPIRY))
                apply()

        waiter = self.database.commit(change, settled)
        state.listed = listed  # once the change is on its way: one that the database does not take changes nothing
        return waiter
