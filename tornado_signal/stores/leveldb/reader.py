"""What may be asked of the store without changing it, each question under the origin that asks."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

from ...errors import SessionNotFound, Unavailable
from ...metrics import Metrics
from ...session import Departure, ListedSession, News, Side, TopicPosition, owns
from ..watches import Watch, Watches
from . import layout, records
from .access import Gate, Gates
from .check import problems
from .database import Database
from .locks import Turns
from .space import Space
from .topic_index import TopicIndex

SETTLING_STEP = 500  # topics whose counts are brought up to date in one turn of the event loop
NEWEST_KEPT = 10_000  # topics whose newest serial is kept in memory


class TopicStep(NamedTuple):
    """Something that has happened to a topic's listing.

    Attributes:
        left: what has left, in that order.
        arrived: what has come, the oldest first.
        position: where a reader has come to that knows it.
        more: whether there is more to be told.
    """

    left: list[Departure]
    arrived: list[ListedSession]
    position: TopicPosition
    more: bool


class ListingState(NamedTuple):
    """Two listings of a topic hold the same sessions if serial and live agree (contract C2).

    Attributes:
        serial: of the newest that came or was taken away.
        live: how many there are.
        changes_ms: when the next one expires; None if there is none.
    """

    serial: int
    live: int
    changes_ms: int | None


class Reader:
    """The questions. `Store` adds the changes.

    Attributes:
        watches: who waits for news of a session or of a topic.
        metrics: what this store counts, and everybody who works for it.
        space: the room that it has on the disk.
        identity: tells its serials and numbers from those of another one.
    """

    identity: str

    def __init__(self, path: Path, *, sync: bool, start_empty: bool, space: Space | None) -> None:
        self.watches = Watches()
        self._turns = Turns()
        self._gates: Gates  # of committed sessions
        self._index: TopicIndex
        self._created_ms: int
        self._serial: int
        self._listed: int
        self._db = Database(
            path, sync=sync, load=records.load, loaded=self._loaded, start_empty=start_empty, space=space
        )
        self.space = self._db.space
        self.metrics = Metrics(self._db.writes)

    def _loaded(self, loaded: records.Loaded) -> None:
        self._gates = Gates(self._turns.taken)
        self._index = loaded.counts
        self._newest: dict[bytes, int] = {}
        self._forgotten = 0  # departures up to this serial need not be looked for
        self.identity = loaded.identity
        self._created_ms, self._serial, self._listed = loaded.mark

    @property
    def created_ms(self) -> int:
        """The creation time of the newest session there ever was here; 0 for none."""
        return self._created_ms

    @property
    def available(self) -> bool:
        """Whether it can be read and written now, as far as is known."""
        try:
            return self._db.view is not None
        except Unavailable:
            return False

    @property
    def listed_count(self) -> int:
        """How many sessions are unanswered, expired ones included until they are swept."""
        return self._listed

    @property
    def topic_count(self) -> int:
        """How many topics have unanswered sessions, of all origins; until the sweep also expired ones."""
        return self._index.topic_count

    async def read(
        self, origin: str, code: bytes, reader: Side, now_ms: int, *, since: int = 0, secret_hash: bytes = b""
    ) -> News:
        """What the other side has sent so far (specification 4, POST /poll).

        Args:
            origin: the session's.
            code: its code.
            reader: who asks.
            now_ms: the time.
            since: only candidates with a number after this one.
            secret_hash: of the secret that the reader shows.

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not the reader's.
        """
        key = layout.pack_session_prefix(origin, code)
        gate = self._admit(key, reader, secret_hash, now_ms)
        return records.news(self._db.view, key, gate, reader.other, since)

    async def settle(self, now_ms: int) -> None:
        """Have all that has expired by now leave its listing. `Store` does it."""
        raise NotImplementedError

    def _admit(self, key: bytes, side: Side, secret_hash: bytes, now_ms: int) -> Gate:
        """Let a side of a live session act."""
        view = self._db.view
        gate = self._gates.get(key)
        if gate is None:
            gate = records.find_gate(view, key)
            if gate is None:
                raise SessionNotFound
            self._gates.keep(key, gate)
        if not owns(gate.secret_hash(side), secret_hash) or now_ms >= gate.expires_ms:
            view.get(key + layout.HEAD)  # takes the time of one that does not exist
            raise SessionNotFound
        return gate

    async def sessions(
        self, origin: str, topic: str, now_ms: int, limit: int | None = None
    ) -> AsyncGenerator[list[ListedSession], None]:
        """The unanswered sessions of a topic, newest first.

        Args:
            origin: whose.
            topic: which.
            now_ms: the time.
            limit: how many at most.

        Yields:
            Steps of the listing, none of them empty, each the work of one turn of the event loop and each as of
            its own turn: what is answered meanwhile may be left out, nothing comes twice.
        """
        prefix = layout.pack_listing_prefix(origin, topic)
        at: bytes | None = prefix
        left = limit
        if not self._index.sizes(origin, topic)[2]:
            _ = self._db.view  # counts of a database that cannot be read are no answer
            at = None  # what was listed once would be passed over entry by entry
        while at is not None and left != 0:
            most = records.LISTING_STEP if left is None else min(left, records.LISTING_STEP)
            step, at = records.listing_step(self._db.view, origin, at, layout.pack_listing_stop(prefix), now_ms, most)
            left = None if left is None else left - len(step)
            if step:
                steps = [step]
                del step  # a reader may be slow, and many: what it has got is not kept here
                yield steps.pop()
            if at is not None:
                await asyncio.sleep(0)

    async def begin_topic(self, now_ms: int) -> TopicPosition:
        """Where a reader of a topic begins that knows nothing of it."""
        await self.settle(now_ms)
        return TopicPosition(records.mark(self._db.view).serial, 0)

    def knows(self, position: TopicPosition) -> bool:
        """Whether a position can be one of this store: not after a loss of power under `durability = os`."""
        return position.listed <= position.serial <= records.mark(self._db.view).serial

    async def topic_step(self, origin: str, topic: str, position: TopicPosition, now_ms: int) -> TopicStep:
        """What has happened to a topic's listing since a position, a step of it (contract C3).

        First what has left of the sessions that the reader knows, in that order, then what has come and is still
        there. What came and left since is not mentioned.
        """
        await self.settle(now_ms)  # what has expired has left then: it is in no listing, and is not passed over
        prefix = layout.pack_listing_prefix(origin, topic)
        stop = layout.pack_listing_stop(prefix)
        at, found = (
            position.key or (prefix if position.listed else stop),
            position.key is not None or not position.listed,
        )
        while not found:
            at, found = records.listing_position(self._db.view, at, stop, position.listed)
            if not found:
                await asyncio.sleep(0)
        view = self._db.view
        mark = records.mark(view)
        left, more = records.departures(view, origin, topic, max(position.serial, self._forgotten))
        told = [each for each in left if each.session_serial <= position.listed]
        if more:
            return TopicStep(told, [], TopicPosition(left[-1].serial, position.listed, at), more=True)
        arrived: list[ListedSession] = []
        behind = None
        if self._index.sizes(origin, topic)[2]:
            arrived, behind = records.listing_step(
                view, origin, prefix, at, now_ms, records.LISTING_STEP, oldest_first=True
            )
        if behind is not None:
            listed = layout.unpack_listing_key(behind)[3]
            return TopicStep(told, arrived, TopicPosition(mark.serial, listed, behind), more=True)
        end = layout.pack_listing_position(prefix, mark)
        return TopicStep(told, arrived, TopicPosition(mark.serial, mark.serial, end), more=False)

    async def listing_state(self, origin: str, topic: str, now_ms: int) -> ListingState:
        """By what a topic's listing can be told from another one of its own."""
        prefix = layout.pack_listing_prefix(origin, topic)
        serial = self._newest.get(prefix)
        if serial is None:
            serial = records.newest_serial(self._db.view, origin, topic)
            self._newest[prefix] = serial
            if len(self._newest) > NEWEST_KEPT:
                for old in list(itertools.islice(self._newest, NEWEST_KEPT // 2)):
                    del self._newest[old]
        _ = self._db.view
        live, changes_ms = self._index.counted(origin, topic, now_ms)
        return ListingState(serial, live, changes_ms)

    async def topics(self, origin: str, offset: int, limit: int, now_ms: int) -> tuple[list[tuple[str, int]], int]:
        """A page of the topics that have unanswered sessions, in the order of their code points.

        Returns:
            Pairs of topic and number of unanswered sessions, and the number of topics in all.
        """
        while not self._index.settle(origin, now_ms, SETTLING_STEP):  # noqa: ASYNC110 (others get their turn)
            await asyncio.sleep(0)
        _ = self._db.view  # counts of a database that cannot be read are no answer
        return self._index.page(origin, offset, limit)

    def watch_session(self, origin: str, code: bytes) -> Watch:
        """Watch what both sides of a session send, and its end."""
        return self.watches.watch(layout.pack_session_prefix(origin, code))

    def watch_topic(self, origin: str, topic: str) -> Watch:
        """Watch who comes to a topic's listing and who leaves it."""
        return self.watches.watch(layout.pack_listing_prefix(origin, topic))

    def failed(self, error: BaseException) -> bool:
        """Whether an error that came up in a question or a change is the database's.

        If so, nothing is served until it has been opened again, and whoever met it is to be refused: Unavailable.
        """
        return self._db.failed(error)

    async def entries(self) -> AsyncGenerator[list[tuple[bytes, bytes]], None]:
        """Every key and value that is committed when the first step is asked for, in the order of the keys.

        Yields:
            Steps, each the work of one turn of the event loop, with a pause longer than the step after each:
            requests come first.

        Raises:
            Unavailable: the database is closed or reopened, also in the middle.
        """
        with self._db.keep() as view:
            began_s = time.monotonic()
            step = records.entries_step(view(), layout.BEFORE_ALL)
            while step:
                pause_s = 2 * (time.monotonic() - began_s)
                yield step
                await asyncio.sleep(pause_s)
                began_s = time.monotonic()
                step = records.entries_step(view(), step[-1][0])

    def size_bytes(self) -> int:
        """How much the directory holds."""
        return self._db.size_bytes()

    def cache_bytes(self) -> int:
        """How much of that is in memory."""
        return self._db.cache_bytes()

    def check(self, now_ms: int) -> None:
        """Prove that every index agrees with the records. Reads the whole store; for tests and for repair.

        Raises:
            AssertionError: lists what does not agree.
        """
        view = self._db.view
        found = problems(view, self._index, now_ms)
        for key, gate in self._gates.items():
            sent = {side: records.sent(view, key, side) for side in gate.numbers}
            known = {side: records.Sent(number, gate.sizes[side]) for side, number in gate.numbers.items()}
            if gate != records.find_gate(view, key) or (known != sent and not self._turns.taken(key)):
                found.append(f"what is known of {key!r} is not what is stored")
        if found:
            raise AssertionError("\n".join(found))
