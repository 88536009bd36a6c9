"""Where sessions live: what every engine answers, and which one is opened."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OperatorError
from ..metrics import Family, SessionMetrics
from ..session import EventBatch, ListedSession, ListingState, Position, SessionPosition, SessionUpdate, Side
from ..settings.settings import Settings
from ..system.clock import Clock
from ..system.secrets import redis_passwords
from .quotas import Quotas

if TYPE_CHECKING:  # a command that looks at files starts faster without asyncio
    from .watches import Watch


SIDE_BODIES = 4
"""How many of the largest bodies a side of a session may store."""


class Maintenance(Protocol):
    """What an operator can do with the files of a store while it is in use.

    Coroutines raise `Unavailable` if that does not work now.
    """

    def size_bytes(self) -> int:
        """Return the size of the files."""

    async def inspect(self, most: int) -> dict[str, Any]:
        """Return the numbers of `census` and the size, with the `most` largest origins and topics by name."""

    async def compact(self) -> None:
        """Return the space of what was deleted to the disk."""


class Store(Protocol):
    """The sessions. Every operation comes under the origin that asks for it, and sees that origin's sessions only.

    What an operation has acknowledged is kept; one that raises has changed nothing. An engine raises nothing but
    `errors`: `Unavailable` from any of these, whenever it cannot serve. The time is its own clock's. Secrets are shown
    by their hashes. A code is 16 bytes.

    An offer with leases is held: it lives as long as its holders renew them. A lease has 12 bytes, of which the first 8
    are the identifier of the process. An offer whose holders are gone without releasing it is withdrawn by the store.

    Attributes:
        metrics: what has become of the sessions.
        process_id: the identifier of this process, 8 random bytes.
    """

    metrics: SessionMetrics
    process_id: bytes

    @property
    def maintenance(self) -> Maintenance | None:
        """What an operator can do with the files of the store; None if the engine has none of its own."""

    async def open(self) -> None:
        """Make ready, and begin the work in the background.

        Raises:
            DatabaseError: it cannot be used; the message says why and what to do.
        """

    async def close(self) -> None:
        """End the work in the background, finish what was asked for, and let go of everything."""

    def now_ms(self, watch: "Watch | None" = None) -> int:
        """Return the store's time, Unix milliseconds. Compare times from the store with this clock only.

        `watch` selects the clock of the node that has what is watched, if the store has several.
        """

    def allow(self, quotas: Quotas) -> None:
        """Apply other quotas from now on; what there is already stays."""

    def use_passwords(self, password: str | None, sentinel_password: str | None) -> None:
        """Use these passwords of the engine and of its Sentinels for new connections, if it has any."""

    def metric_families(self) -> Iterator[Family]:
        """Yield the engine's own metrics."""

    @property
    def available(self) -> bool:
        """Whether it can serve now, as far as it knows."""

    @property
    def capacity_bytes(self) -> int:
        """How much it may hold."""

    async def probe(self) -> None:
        """Write and read, as a request would."""

    async def counts(self) -> tuple[int, int]:
        """How many sessions are unanswered and how many topics have such, of all origins; some may have expired."""

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
        """Publish an offer (specification 4, POST /:topic/offer).

        Args:
            origin: whose.
            topic: where.
            info: the peer's own words.
            offer: its signaling data.
            ttl_ms: how long the session lives, if not as long as configured (contract C6).
            secret_hash: of the secret that the offerer will show (contract C5).
            lease: the holder's, in addition to those of other holders of the same content; empty if it is not held.

        Returns:
            The session's code, and its expiry in Unix milliseconds.

        Raises:
            SessionNotFound: the same content was published before with another secret (contract B16).
            TooMany: the origin or the topic has as many as it may.
        """

    async def answer(self, origin: str, code: bytes, answer: str, *, secret_hash: bytes = b"") -> None:
        """Answer a session; it is no longer listed (contract B9).

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or was answered with another secret.
            AlreadyAnswered: with another answer.
        """

    async def add_candidates(
        self, origin: str, code: bytes, side: Side, candidates: Sequence[str], *, secret_hash: bytes = b""
    ) -> None:
        """Append candidates of one side, all or none, in their order.

        Raises:
            SessionNotFound: as `read`.
            TooMany: that side has as many candidates, or as much, as it may.
        """

    async def read(
        self,
        origin: str,
        code: bytes,
        reader: Side,
        *,
        since: SessionPosition | None = None,
        secret_hash: bytes = b"",
    ) -> SessionUpdate:
        """What the other side has sent so far (specification 4, POST /poll).

        Args:
            origin: the session's.
            code: its code.
            reader: the side that asks.
            since: only candidates after this position.
            secret_hash: of the secret that the reader shows.

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not the reader's.
            StalePosition: `since` is a position in an earlier session with this code.
        """

    async def withdraw(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> None:
        """End a session at once (contract C6).

        Raises:
            SessionNotFound: as `read`.
        """

    async def refresh(self, origin: str, code: bytes, side: Side, *, secret_hash: bytes = b"") -> int:
        """Move a session's expiry to now and its timeout (contract C6).

        Returns:
            The new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: as `read`.
        """

    # Holding offers (contract C10)

    async def hold(self, origin: str, code: bytes, lease: bytes, *, secret_hash: bytes = b"") -> int:
        """Take an offer over from all its holders, and refresh it.

        Returns:
            The new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: as `read`, for the offerer.
        """

    async def renew(self, origin: str, code: bytes, lease: bytes) -> int:
        """Refresh an offer if it still has a lease.

        Returns:
            The new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: the offer is answered, withdrawn, expired, or held by others.
        """

    async def release(self, origin: str, code: bytes, lease: bytes) -> None:
        """Give a lease back; the offer is withdrawn with the last one.

        Raises:
            SessionNotFound: as `renew`.
        """

    # Discovery

    async def topics(self, origin: str, offset: int, limit: int) -> tuple[list[tuple[str, int]], int]:
        """A page of the topics that have unanswered sessions, in the order of their code points.

        Returns:
            Pairs of topic and number of unanswered sessions, and the number of topics in all.
        """

    def sessions(self, origin: str, topic: str, limit: int | None = None) -> AsyncGenerator[list[ListedSession], None]:
        """The unanswered sessions of a topic, newest first.

        Yields:
            Steps of the listing, none of them empty, each the work of one turn of the event loop and each as of
            its own turn: what is answered meanwhile may be left out, nothing comes twice.
        """

    async def listing_state(self, origin: str, topic: str, since: Position | None = None) -> ListingState:
        """Whether a topic's listing holds other sessions than at a position (contract C2); None is an empty listing."""

    # Events of a topic (contract C3)

    async def begin_topic(self, origin: str, topic: str, since: Position | None) -> tuple[Position, bool]:
        """Where a reader of a topic begins.

        Args:
            origin: whose.
            topic: which.
            since: where it has come to; None if it knows nothing.

        Returns:
            The position to go on from, and whether that is `since`. If not, the reader has to be told the listing
            anew, as it may be after a loss of power.
        """

    async def topic_step(self, origin: str, topic: str, position: Position) -> EventBatch:
        """What has happened to a topic's listing since a position, a step of it.

        First what has left of the sessions that the reader knows, in that order, then what has come and is still
        there. What came and left since is not mentioned.
        """

    # Waiting

    def watch_session(self, origin: str, code: bytes) -> "Watch":
        """Watch what both sides of a session send, and its end; not its expiry, which its news tell.

        Await `opened` of the watch before reading. A read without a watch never waits for another's watch.
        """

    def watch_topic(self, origin: str, topic: str) -> "Watch":
        """Watch the listing of a topic, expiries included."""

    def end_watches(self) -> None:
        """End every wait, spread over two seconds; no other begins."""

    # Positions as text

    def format_position(self, position: Position | SessionPosition) -> str:
        """A position as text: digits, lower-case letters and dots; it names the store."""

    def parse_position(self, text: str) -> Position | None:
        """Inverse of `format_position`, for topics and listings.

        Returns:
            The position; None for another store's.

        Raises:
            ValueError: it is no position.
        """

    def parse_session_position(self, text: str) -> SessionPosition | None:
        """As `parse_position`, for sessions."""


@contextlib.contextmanager
def engine_of_redis() -> Iterator[None]:
    """Load what is for Redis, which need not be installed.

    Raises:
        OperatorError: it is not.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise OperatorError("--store redis needs another package; install tornado-signal[redis]") from error


def quotas_of(settings: Settings) -> Quotas:
    """The quotas of the settings."""
    return Quotas(
        settings.max_sessions_per_origin,
        settings.max_sessions_per_origin,  # all of them may share a topic
        settings.max_sessions_per_origin,  # a topic exists while it has a session
        settings.max_candidates,
        SIDE_BODIES * settings.max_body_bytes,
        settings.max_store_bytes,
        settings.min_free_bytes,
    )


def make_store(settings: Settings, clock: Clock) -> Store:
    """The store as configured, not open yet. Only the engine that is asked for is loaded.

    Raises:
        OperatorError: something that it needs cannot be read, or is not installed.
    """
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
    """Where the sessions live, in words."""
    if settings.store == "leveldb":
        return str(settings.data_dir)
    return f"{settings.redis_prefix}* on Redis at {', '.join(f'{host}:{port}' for host, port in settings.redis_nodes)}"


def check_files(settings: Settings) -> None:
    """Check that the data directory, if the engine has one, is for nothing else.

    Raises:
        OperatorError: there are files in it that are no database's.
    """
    if settings.store == "leveldb":
        from .leveldb.files import check_own

        check_own(settings.data_dir)


async def open_store(settings: Settings, clock: Clock) -> Store:
    """The store as configured, opened.

    Raises:
        OperatorError: it cannot be used.
    """
    store = make_store(settings, clock)
    await store.open()
    return store
