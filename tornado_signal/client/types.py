"""The words of the API as types. Times are milliseconds since the Unix epoch."""

import abc
from typing import Any, Literal, NamedTuple, NotRequired, Self, TypedDict

Side = Literal["offerer", "answerer"]
Fields = dict[str, Any]


class Closable(abc.ABC):
    """What is closed at the end of an `async with`, or by itself."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abc.abstractmethod
    async def close(self) -> None:
        """Close it."""


class Token(str):
    """A code or a cursor, and which server gave it out: no other one knows it.

    Attributes:
        server: the server's address.
    """

    __slots__ = ("server",)
    server: str

    def __new__(cls, text: str, server: str) -> "Token":
        """A string that remembers."""
        token = super().__new__(cls, text)
        token.server = server
        return token


class Session(TypedDict):
    """A session of a listing; its code is a `Token`."""

    code: str
    info: str
    offer: str
    offerCandidates: list[str]
    createdAt: int
    expiresAt: int


class Topic(TypedDict):
    """A topic, and how many sessions of it wait for an answer."""

    topic: str
    count: int


class Pagination(TypedDict):
    """Where in a listing a page is."""

    page: int
    limit: int
    total: int
    hasMore: bool


class Topics(TypedDict):
    """A page of topics."""

    topics: list[Topic]
    pagination: Pagination


class Health(TypedDict):
    """That the server answers, and its time."""

    status: str
    timestamp: int


class IceServer(TypedDict):
    """A STUN or TURN server, as WebRTC takes it."""

    urls: str | list[str]
    username: NotRequired[str]
    credential: NotRequired[str]


class IceServers(TypedDict):
    """The ICE servers, and until when their credentials are good."""

    iceServers: list[IceServer]
    expiresAt: int


class Listing(NamedTuple):
    """The unanswered sessions of a topic.

    Attributes:
        sessions: newest first.
        cursor: for `since`; None if neither `wait` nor `since` was given, or the server does not know them.
    """

    sessions: list[Session]
    cursor: Token | None


class SessionUpdate(NamedTuple):
    """What the other side has sent.

    Attributes:
        description: its offer, or its answer (None until there is one).
        candidates: in their order; only new ones where `since` was asked for.
        cursor: for `since`; None if neither `wait` nor `since` was given, or the server does not know them.
    """

    description: str | None
    candidates: list[str]
    cursor: Token | None


class Event(NamedTuple):
    """An event of a stream.

    Attributes:
        name: `session` or `gone` of a topic's; `offer`, `answer`, `candidate` or `gone` of a session's.
        data: a session; `code` and `reason`; or the text under the event's name.
    """

    name: str
    data: dict[str, Any]


class StreamEvent(NamedTuple):
    """An event as it comes.

    Attributes:
        name: see `Event`.
        data: likewise; None if it only says where the stream is.
        cursor: where that is; None for where it was.
        retry_s: how long to wait when the stream breaks, if that is told.
    """

    name: str
    data: Fields | None
    cursor: str | None
    retry_s: float | None = None
