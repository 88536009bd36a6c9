"""The sessions on LevelDB: what may be asked of the store, each operation under the origin that asks.

Every change is decided against what is committed, without an `await` between reading and asking for the write.
While a change of a session is on its way to the disk, a second one waits for it, unless both only append
candidates; so two answers at one moment have one winner, and nothing is acknowledged because of a change that
may still fail.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from . import changes, layout, records
from .changes import Change
from .check import problems
from .database import Database
from .errors import SessionNotFound
from .index import TopicIndex
from .session import ListedSession, News, Session, Side, changes_answer, content_code
from .turns import Turns

# How much is done in one turn of the event loop: a millisecond or two.
SETTLING_STEP = 500  # topics whose counts are brought up to date
SWEEP_STEP = 200  # keys deleted


class Store:
    """The sessions in one LevelDB directory.

    Time is an argument (`now_ms`, Unix milliseconds). Creation times never go backwards (contract B11): a session
    is never older than the newest one before it, whatever `now_ms` says.

    Args:
        path: the directory; made if missing.
        timeout_ms: how long a session lives.
        durability: `fsync` (acknowledged means on disk) or `os` (with the operating system).
        codes: `random` or `content` (contract B16).

    Raises:
        DatabaseError: the directory cannot be used; the message says why and what to do.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_ms: int,
        durability: Literal["fsync", "os"] = "fsync",
        codes: Literal["random", "content"] = "random",
    ) -> None:
        self._timeout_ms = timeout_ms
        self._codes = codes
        self._turns = Turns()
        self._index: TopicIndex
        self._created_ms: int
        self._serial: int
        # No expiry entry comes before this key: the sweep need not pass over all that it has deleted before.
        self._unswept: bytes
        self._db = Database(path, sync=durability == "fsync", load=records.load, loaded=self._loaded)

    @property
    def created_ms(self) -> int:
        """The creation time of the newest session there ever was here; 0 for none."""
        return self._created_ms

    async def close(self) -> None:
        """Commit what was asked for and close the database."""
        await self._db.close()

    async def create(self, origin: str, topic: str, info: str, offer: str, now_ms: int) -> bytes:
        """Publish an offer (specification 4, POST /:topic/offer).

        Returns:
            The session's code, 16 bytes.
        """
        if self._codes == "content":
            return await self._create_from_content(origin, topic, info, offer, now_ms)
        code = uuid.uuid4().bytes
        session = self._new_session(code, topic, info, now_ms)
        await self._commit([], changes.created(origin, session, offer), lambda: self._count(origin, session))
        return code

    async def _create_from_content(self, origin: str, topic: str, info: str, offer: str, now_ms: int) -> bytes:
        """Contract B16: the same content again refreshes, leaves alone, or begins anew."""
        code = content_code(origin, [topic], offer)
        key = layout.pack_session_prefix(origin, code)
        await self._turns.mine(key)
        before = records.find(self._db.view, key, code)
        if before is not None and before.live(now_ms):
            if self._db.view.get(key + layout.ANSWER) is None:
                after = replace(before, expires_ms=now_ms + before.timeout_ms)

                def moved() -> None:
                    self._index.remove(origin, topic, before.expires_ms)
                    self._count(origin, after)

                await self._commit([key], changes.refreshed(origin, before, after), moved)
            return code
        session = self._new_session(code, topic, info, now_ms)
        change = changes.created(origin, session, offer)
        if before is not None:
            change = change._replace(
                deletes=changes.removed(origin, before, records.part_keys(self._db.view, key)).deletes
            )
        await self._commit([key], change, lambda: self._count(origin, session))
        return code

    async def answer(self, origin: str, code: bytes, answer: str, now_ms: int) -> None:
        """Answer a session; it is no longer listed (contract B9).

        Raises:
            SessionNotFound: it does not exist, has expired or is another origin's.
            AlreadyAnswered: with another answer.
        """
        key = layout.pack_session_prefix(origin, code)
        await self._turns.mine(key)
        session = self._live(key, code, now_ms)
        current = self._db.view.get(key + layout.ANSWER)
        if changes_answer(None if current is None else current.decode(), answer):
            await self._commit(
                [key],
                changes.answered(origin, session, answer),
                lambda: self._index.remove(origin, session.topic, session.expires_ms),
            )

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], now_ms: int
    ) -> None:
        """Append candidates of one side, all or none, in their order.

        Raises:
            SessionNotFound: it does not exist, has expired or is another origin's.
        """
        key = layout.pack_session_prefix(origin, code)
        await self._turns.mine(key, appends=True)
        self._must_live(key, now_ms)
        change = changes.candidates_added(key, side, [(self._next_serial(), text) for text in candidates])
        change.puts.append(changes.mark(self._created_ms, self._serial))
        await self._commit([key], change, _nothing, appends=True)

    async def read(self, origin: str, code: bytes, side: Side, now_ms: int) -> News:
        """What a side has sent so far; the other one polls for it (specification 4, POST /poll).

        Raises:
            SessionNotFound: it does not exist, has expired or is another origin's.
        """
        key = layout.pack_session_prefix(origin, code)
        self._must_live(key, now_ms)
        return records.news(self._db.view, key, side)

    async def sessions(self, origin: str, topic: str, now_ms: int) -> AsyncIterator[list[ListedSession]]:
        """The unanswered sessions of a topic, newest first.

        Yields:
            Steps of the listing, none of them empty, each the work of one turn of the event loop and each as of
            its own turn: what is answered meanwhile may be left out, nothing comes twice.
        """
        at = layout.pack_listing_prefix(origin, topic)
        stop = layout.pack_listing_stop(at)
        more = True
        while more:
            step, at, more = records.listing_step(self._db.view, origin, at, stop, now_ms)
            if step:
                yield step
            if more:
                await asyncio.sleep(0)

    async def topics(self, origin: str, offset: int, limit: int, now_ms: int) -> tuple[list[tuple[str, int]], int]:
        """A page of the topics that have unanswered sessions, in the order of their code points.

        Returns:
            Pairs of topic and number of unanswered sessions, and the number of topics in all.
        """
        while not self._index.settle(origin, now_ms, SETTLING_STEP):  # noqa: ASYNC110 (others get their turn)
            await asyncio.sleep(0)
        _ = self._db.view  # counts of a database that cannot be read are no answer
        return self._index.page(origin, offset, limit)

    async def sweep(self, now_ms: int) -> int:
        """Delete one step of what has expired.

        Returns:
            How many keys were deleted; 0 when nothing is left to do.
        """
        deletes: list[bytes] = []
        keys: list[bytes] = []
        stop = layout.pack_expired_stop(now_ms)
        view = self._db.view
        left: bytes | None = None  # the first entry that this step does not delete
        with view.iterator(start=self._unswept, stop=stop, include_value=False) as entries:
            for entry in entries:
                _, origin, code = layout.unpack_expiry_key(entry)
                key = layout.pack_session_prefix(origin, code)
                session = records.find(view, key, code)
                if session is None or self._turns.taken(key):
                    left = left or entry
                    continue
                self._index.settle(origin, now_ms, 1)
                keys.append(key)
                parts = records.part_keys(view, key, SWEEP_STEP)
                if len(parts) == SWEEP_STEP:
                    # The head leads the next step to the rest; with the offer, whoever still reads it finds it sound.
                    deletes += parts[2:]
                    left = left or entry
                else:
                    deletes += changes.removed(origin, session, parts).deletes
                if len(deletes) >= SWEEP_STEP:
                    break
        if deletes:
            self._unswept = left or entry
            await self._commit(keys, Change([], deletes), _nothing)
        return len(deletes)

    async def compact(self) -> None:
        """Give the space of what was swept back to the disk; requests go on meanwhile.

        Raises:
            Unavailable: that does not work now.
        """
        await self._db.compact()

    def size_bytes(self) -> int:
        """How much the directory holds."""
        return self._db.size_bytes()

    async def probe(self) -> None:
        """Write to the store and read from it, as a request would.

        Raises:
            Unavailable: that does not work now.
        """
        await self._commit([], Change([changes.mark(self._created_ms, self._serial)], []), _nothing)
        self._db.view.get(layout.MARK_KEY)

    def check(self, now_ms: int) -> None:
        """Prove that every index agrees with the records. Reads the whole store; for tests and for repair.

        Raises:
            AssertionError: lists what does not agree.
        """
        found = problems(self._db.view, self._index, now_ms)
        if found:
            raise AssertionError("\n".join(found))

    def _live(self, key: bytes, code: bytes, now_ms: int) -> Session:
        session = records.find(self._db.view, key, code)
        if session is None or not session.live(now_ms):
            raise SessionNotFound
        return session

    def _must_live(self, key: bytes, now_ms: int) -> None:
        head = self._db.view.get(key + layout.HEAD)
        if head is None or now_ms >= layout.unpack_head_expiry(head):
            raise SessionNotFound

    def _new_session(self, code: bytes, topic: str, info: str, now_ms: int) -> Session:
        self._created_ms = created_ms = max(now_ms, self._created_ms)
        expires_ms = created_ms + self._timeout_ms
        return Session(code, topic, info, created_ms, expires_ms, self._timeout_ms, self._next_serial())

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _loaded(self, loaded: tuple[TopicIndex, int, int]) -> None:
        self._index, self._created_ms, self._serial = loaded
        self._unswept = layout.EXPIRY

    def _count(self, origin: str, session: Session) -> None:
        self._index.add(origin, session.topic, session.expires_ms)
        self._unswept = min(self._unswept, layout.pack_expiry_key(origin, session))

    async def _commit(
        self, keys: list[bytes], change: Change, apply: Callable[[], None], *, appends: bool = False
    ) -> None:
        """Commit a change and hold the turns of the sessions with these keys until it is settled.

        Args:
            keys: sessions whose turn it must be; none for a session that nobody else can know of yet.
            change: what to write.
            apply: brings what is kept in memory up to date once it is committed.
            appends: whether it only appends candidates.
        """
        self._turns.take(keys, appends=appends)

        def settled(committed: bool) -> None:
            self._turns.release(keys)
            if committed:
                apply()

        await self._db.commit(change, settled)


def _nothing() -> None:
    """For a change that only the database keeps."""
