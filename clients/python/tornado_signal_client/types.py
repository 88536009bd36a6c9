"""Types of the API. Times are milliseconds since the Unix epoch."""

import abc
from typing import Any, Literal, NamedTuple, NotRequired, Self, TypedDict, TypeVar

Side = Literal["offerer", "answerer"]
Fields = dict[str, Any]
T = TypeVar("T")


def check_type(name: str, value: T, *types: type | None) -> T:
    """Return an argument that has one of the types. As in annotations, an integer is also a float."""
    allowed = [type(None) if each is None else each for each in types] + [int] * (float in types)
    if not isinstance(value, tuple(allowed)) or (isinstance(value, bool) and bool not in types):
        names = " or ".join("None" if each is None else each.__name__ for each in types)
        raise TypeError(f"{name} is {names}, not {type(value).__name__}")
    return value


class Closable(abc.ABC):
    """An object that is closed at the end of an `async with` or by `close`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @abc.abstractmethod
    async def close(self) -> None:
        """Release the resources."""


class Token(str):
    """A code or a cursor, with the server that issued it. No other server knows it."""

    __slots__ = ("server",)
    server: str

    def __new__(cls, text: str, server: str) -> "Token":
        token = super().__new__(cls, text)
        token.server = server
        return token


class Session(TypedDict):
    """A listed session. Its code is a `Token`."""

    code: str
    info: str
    offer: str
    offerCandidates: list[str]
    createdAt: int
    expiresAt: int


class Topic(TypedDict):
    """A topic and its number of unanswered sessions."""

    topic: str
    count: int


class Pagination(TypedDict):
    """The position of a page in a listing."""

    page: int
    limit: int
    total: int
    hasMore: bool


class Topics(TypedDict):
    """A page of topics."""

    topics: list[Topic]
    pagination: Pagination


class RoomSummary(TypedDict):
    """A room and its number of members."""

    name: str
    members: int


class Rooms(TypedDict):
    """A page of rooms."""

    rooms: list[RoomSummary]
    pagination: Pagination


class Health(TypedDict):
    """The status and the time of a server."""

    status: str
    timestamp: int


class IceServer(TypedDict):
    """A STUN or TURN server in the form of WebRTC's `RTCIceServer`."""

    urls: str | list[str]
    username: NotRequired[str]
    credential: NotRequired[str]


def urls_of(server: IceServer) -> list[str]:
    """Return the URLs of an ICE server, which can also be a single text."""
    urls = server["urls"]
    return [urls] if isinstance(urls, str) else urls


class IceServers(TypedDict):
    """The ICE servers, the expiry of their credentials, and whether the server wants reports of connections."""

    iceServers: list[IceServer]
    expiresAt: int
    reports: NotRequired[bool]


class Listing(NamedTuple):
    """The unanswered sessions of a topic."""

    sessions: list[Session]  # newest first
    cursor: Token | None  # for `since`. None without `wait` and `since`, or if the server does not support them


class SessionUpdate(NamedTuple):
    """Description and candidates from the other side."""

    description: str | None  # the offer, or the answer, or None until the session is answered
    candidates: list[str]  # in the order in which they were sent. With `since`, only new ones
    cursor: Token | None  # for `since`, as that of a `Listing`


class Event(NamedTuple):
    """An event of a stream."""

    name: str  # for a topic `session` or `gone`, for a session `offer`, `answer`, `candidate` or `gone`
    data: dict[str, Any]  # a session, `code` and `reason`, or the text under the event's name


class StreamEvent(NamedTuple):
    """An event as received. `Event` describes names and data."""

    name: str
    data: Fields | None  # None if the event only updates the cursor
    cursor: str | None  # the position after this event, or None if unchanged
