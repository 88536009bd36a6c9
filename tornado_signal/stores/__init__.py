"""The interface of the engines, and the choice of one."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import OperatorError
from ..metrics import Family, SessionMetrics
from ..session import (
    EventBatch,
    ListedSession,
    ListingState,
    Observer,
    Position,
    Refreshed,
    SessionPosition,
    SessionUpdate,
    Side,
    TopicRange,
)
from ..settings.settings import Settings
from ..system.clock import Clock
from ..system.secrets import redis_passwords
from .quotas import Quotas

if TYPE_CHECKING:  # a command that looks at files starts faster without asyncio
    from ..redis.client import RedisClient
    from .watches import Watch


SIDE_BODIES = 4
"""The data of one side of a session is limited to this many bodies of the maximum size."""


class Store(Protocol):
    """A store of sessions. Every operation has an origin and sees only the sessions of that origin.

    Acknowledged changes are never lost. An operation that raises has changed nothing. An engine raises only `errors`,
    and `Unavailable` from any operation while it cannot serve. Times are those of its own clock. Secrets are passed as
    hashes. A code has 16 bytes. SessionNotFound means that a session does not exist, has expired, or is another
    origin's. It is also raised if the secret is not the one of the side.

    An offer with leases is held: it lives as long as its holders renew them. A lease has 12 bytes, of which the first 8
    are the identifier of the process. The store withdraws an offer whose holders have exited without releasing it.

    `process_id` is the identifier of this process, 8 random bytes. `on_lost` is called after the loss of acknowledged
    sessions.
    """

    metrics: SessionMetrics
    process_id: bytes
    on_lost: Callable[[], object]

    @property
    def secret(self) -> bytes:
        """A secret of 32 random bytes, the same in all processes of the store. It lasts as long as the store."""

    @property
    def shared_redis(self) -> "RedisClient | None":
        """The client of the engine on Redis, or None."""

    async def open(self) -> None:
        """Open the store and start the background work. A DatabaseError says why it cannot be used, and what to do."""

    async def close(self) -> None:
        """Stop the background work, finish pending operations, and release all resources."""

    def now_ms(self, watch: "Watch | None" = None) -> int:
        """Return the store's time, Unix milliseconds. Compare times from the store with this clock only.

        `watch` selects the clock of the node that holds the watched key, if the store has several nodes.
        """

    def allow(self, quotas: Quotas) -> None:
        """Apply new quotas. Existing sessions stay."""

    def observe(self, observer: Observer | None) -> None:
        """Report the events of sessions to an observer, or to none. Each is reported by one process of the store."""

    def metric_families(self) -> Iterator[Family]:
        """Yield the engine's own metrics."""

    @property
    def available(self) -> bool:
        """Whether the store can serve, according to its last operation."""

    @property
    def full(self) -> str:
        """The full resource, because of which offers are refused: `store`, `disk`, `redis`, or empty."""

    @property
    def capacity_bytes(self) -> int:
        """The maximum size of the store."""

    async def probe(self) -> None:
        """Write and read, as a request would."""

    async def counts(self) -> tuple[int, int] | None:
        """Return the latest numbers of unanswered sessions and of their topics in all origins. Some may have expired.

        None if they are not known. It takes at most half a second, also while the store is unavailable.
        """

    async def largest_origins(self, max_items: int) -> list[tuple[str, int, int]]:
        """Return the origins with the most unanswered sessions, in descending order. Some may have expired.

        Each entry has the origin, its number of unanswered sessions, and the number of their topics.
        """

    # Publishing and connecting

    async def create(
        self,
        origin: str,
        topic: str,
        info: str,
        offer: str,
        *,
        ttl_ms: int | None = None,
        secret_hash: bytes = b"",
        lease: bytes = b"",
    ) -> tuple[bytes, int]:
        """Publish an offer. Return the session's code, and its expiry in Unix milliseconds.

        None as `ttl_ms` is the configured lifetime. A lease is added to those of other holders of the same content.
        Raise SessionNotFound if the same content was published before with another secret, and TooMany if a quota is
        used up.
        """

    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        """Answer a session, which removes it from its listing (docs/decisions.md#first-answer).

        Raise AlreadyAnswered if it has another answer, and SessionNotFound if the answer had another secret.
        """

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        """Append candidates of one side in order, all or none. Raise TooMany if its quota is used up."""

    async def read(
        self,
        origin: str,
        code: bytes,
        reader: Side,
        *,
        since: SessionPosition | None = None,
        secret_hash: bytes = b"",
    ) -> SessionUpdate:
        """Return the messages of the other side, of its candidates those after `since`.

        Raise StalePosition if `since` is a position in an earlier session with this code.
        """

    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        """Withdraw a session."""

    async def refresh(
        self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"", announce: bool = True
    ) -> Refreshed:
        """Set a session's expiry to now plus its timeout. With `announce`, a new expiry is an event of the listing."""

    # Held offers (docs/websocket-api.md#held-offers)

    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        """Replace all leases of an offer by this one, and refresh it. Return the new expiry, Unix milliseconds."""

    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        """Refresh an offer if it still has a lease. Return the new expiry, Unix milliseconds.

        Raise SessionNotFound if the offer is answered, withdrawn, expired, or held by others.
        """

    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        """Release a lease. Releasing the last one withdraws the offer. Raise SessionNotFound as `renew`."""

    # Discovery

    async def find_topic(self, origin: str, code: bytes) -> str:
        """Return the topic of a session."""

    async def topics(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        """Return a page of the topics with unanswered sessions, ordered by code points.

        The ranges are disjoint and in their order. None stands for all topics. Return pairs of topic and number of
        unanswered sessions, and the total number of topics.
        """

    def sessions(self, origin: str, topic: str, limit: int | None = None) -> AsyncGenerator[list[ListedSession], None]:
        """Yield the unanswered sessions of a topic, newest first, in steps that are not empty.

        Each is read in one event-loop iteration. A session that is answered during the listing can be missing. No
        session is repeated.
        """

    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        """Return whether a topic's listing differs from that at a position. None stands for an empty listing."""

    # Events of a topic (docs/http-api.md#event-streams)

    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        """Return the position from which a reader of a topic starts, and whether it is `since`.

        Otherwise send the whole listing again. `since` can be unknown after a power failure. It is also refused if
        removals after it are no longer stored.
        """

    async def topic_step(self, origin: str, topic: str, position: Position) -> EventBatch:
        """Return a step of the changes of a topic's listing since a position.

        First the removals and refreshes of sessions that the reader knows, in order, then the added sessions that still
        exist. Sessions that were added and removed since are omitted, and so are earlier refreshes of a session.

        A step resets the reader if the store has lost what the reader knows. The current listing follows.
        """

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> "Watch":
        """Watch the messages of both sides of a session, and its end. Its expiry wakes nobody: see `SessionUpdate`.

        Await `opened` of the watch before reading. A read without a watch never waits for another's watch.
        """

    def watch_topic(self, origin: str, topic: str) -> "Watch":
        """Watch the listing of a topic, expiries included."""

    def end_watches(self) -> None:
        """End all waits, spread over up to two seconds, and refuse new ones."""

    # Positions

    @property
    def identity(self) -> str:
        """The identity of the store, which numbers the messages of sessions: 12 hexadecimal digits."""

    def knows(self, identity: str) -> bool:
        """Return whether this store has made positions with this `Position.store`."""


@contextlib.contextmanager
def engine_of_redis() -> Iterator[None]:
    """Allow imports of the engine for Redis, which can be missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise OperatorError("--store redis needs hiredis; in the checkout: pip install '.[redis]'") from error


def quotas_of(settings: Settings) -> Quotas:
    return Quotas(
        settings.max_sessions_per_origin,
        settings.max_candidates,
        SIDE_BODIES * settings.max_body_bytes,
        settings.max_store_bytes,
        settings.min_free_bytes,
    )


async def open_store(settings: Settings, clock: Clock) -> Store:
    """Open the configured store. Only its engine is imported."""
    store = _make_store(settings, clock)
    await store.open()
    return store


def _make_store(settings: Settings, clock: Clock) -> Store:
    quotas = quotas_of(settings)
    if settings.store == "redis":
        with engine_of_redis():
            from .redis.store import make_redis_store
        return make_redis_store(settings, quotas, *redis_passwords(settings))

    from .leveldb.space import Space
    from .leveldb.store import LevelDBStore

    return LevelDBStore(
        settings.data_dir,
        clock,
        timeout_ms=settings.session_timeout_ms,
        durability="os" if settings.durability == "os" else "fsync",
        codes=settings.codes,
        quotas=quotas,
        start_empty=settings.start_empty_if_damaged,
        space=Space(settings.data_dir, quotas.store_bytes, quotas.free_bytes),
        sweep_interval_ms=settings.sweep_interval_ms,
        hold_grace_ms=settings.hold_grace_ms,
    )


def where(settings: Settings) -> str:
    """Return the place of the sessions as text."""
    if settings.store == "leveldb":
        return str(settings.data_dir)
    return f"{settings.redis_prefix}* on Redis at {', '.join(f'{host}:{port}' for host, port in settings.redis_nodes)}"


def check_files(settings: Settings) -> None:
    """Check that the data directory, if any, holds no files of other programs."""
    if settings.store == "leveldb":
        from .leveldb.files import check_own

        check_own(settings.data_dir)


def check_unused(settings: Settings) -> None:
    """Check that no other process uses the data directory, if any. This process must not have opened it."""
    if settings.store == "leveldb":
        from .leveldb.directory import check_unused

        check_unused(settings.data_dir)
