"""Errors of the client."""

FOREIGN = "the response is not from this API"
RESPONSE_S = 15.0  # for a response, in addition to the requested wait
SIGN_OF_LIFE_S = 5.0  # for a message or byte of a server that is asked for a sign of life
SLOW = "no response in time"
HUNG_UP = "connection closed by the server"
THROUGH_PROXY = " through the proxy "
MAX_RESPONSE_BYTES = 16 * 2**20  # of a response, an event or a WebSocket message
MAX_RETRY_AFTER_S = 3600.0  # a longer `Retry-After` counts as this
NOT_ALLOWED = "Not allowed by the token"
CODES = {401: "unauthorized", 403: "origin-not-allowed", 404: "not-found", 409: "already-answered", 429: "server-busy"}


class APIError(Exception):
    """A failed request: the server has refused it, or cannot be reached (`Unreachable`).

    Attributes:
        status: the HTTP status, or 0 without a response.
        retry_after_s: the seconds of `Retry-After`, at most 3600, or None if the server sent none.
    """

    def __init__(self, status: int, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {text}" if status else text)
        self.status, self.text, self.retry_after_s = status, text, retry_after_s

    @property
    def code(self) -> str:
        """A name of the error, as in docs/browser-client.md#errors."""
        if self.status < 400:
            return "not-a-server" if self.status else "server-unreachable"
        if self.text == NOT_ALLOWED:
            return "not-allowed"
        return CODES.get(self.status, "invalid-request" if self.status < 500 else "server-busy")

    @property
    def lost_race(self) -> bool:
        """Whether another peer has answered first. With secrets that is also a 404 (docs/http-api.md#secrets)."""
        return self.status in (404, 409)

    @property
    def is_transient(self) -> bool:
        """Whether the same request can succeed later or at another server."""
        return self.status == 0 or is_transient(self.status)


class Unreachable(APIError):
    """No response: the connection failed or broke. The status is 0."""

    def __init__(self, text: str, sent: bool) -> None:
        super().__init__(0, text)
        self.sent = sent


class Foreign(APIError):
    """A response that no server of this API sends."""

    code = "not-a-server"
    lost_race = is_transient = False

    def __init__(self, status: int = 200) -> None:
        super().__init__(status, FOREIGN)


class TooLarge(Foreign):
    """A response of more than 16 MiB, or with more values than this client parses."""


def unreachable(server: str, why: str, sent: bool = True) -> Unreachable:
    """Return the error for a server that does not respond."""
    return Unreachable(f"cannot reach {server}: {why}", sent)


def foreign(status: int = 200) -> Foreign:
    """Return the error for a response that no server of this API sends."""
    return Foreign(status)


def is_foreign(status: int) -> bool:
    """Return whether an error without the format of this API is from another server, not from a proxy."""
    return status in (400, 403, 404, 405, 501)


def bounded_pause_s(pause_s: float) -> float:
    """Return a pause that a server asks for, between 0 and `MAX_RETRY_AFTER_S`."""
    return max(0.0, min(pause_s, MAX_RETRY_AFTER_S))


def is_transient(status: int) -> bool:
    """Return whether an HTTP status stands for a transient error."""
    return status in (429, 502, 503, 504)
