"""Errors of the client."""

import logging
from collections.abc import Sequence
from typing import Any, Final, Self

FOREIGN = "the response is not from this API"
RESPONSE_S = 15.0  # for a response, in addition to the requested wait
SIGN_OF_LIFE_S = 5.0  # for a message or byte of a server that is asked for a sign of life
SLOW = "no response in time"
HUNG_UP = "connection closed by the server"
THROUGH_PROXY = " through the proxy "
MAX_RESPONSE_BYTES = 16 * 2**20  # of a response, an event or a WebSocket message
MAX_RETRY_AFTER_S = 3600.0  # a longer `Retry-After` counts as this
NOT_ALLOWED = "Not allowed by the token"
CODES: Final = {
    401: "unauthorized",
    403: "origin-not-allowed",
    404: "not-found",
    409: "already-answered",
    429: "server-busy",
}
TABLE = "docs/browser-client.md#errors"  # of all codes


class SignalError(Exception):
    """An error of a request, a connection, a room or a file.

    Attributes:
        code: its name in docs/browser-client.md#errors.
        retryable: whether the same call can succeed later or at another server.
        status: the HTTP status, or 0 without a response.
        text: the message of the server, or what is wrong.
        retry_after_s: the seconds of `Retry-After`, at most 3600, or None if the server sent none.
        peer: the recipient of a message or file that was not sent, or None for other errors.
        sent: whether a server may have received the request, and its response was lost.
    """

    sent = False

    def __init__(
        self, code: str, text: str, *, retryable: bool = False, status: int = 0, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status} {text}" if status else text)
        self.code, self.retryable = code, retryable
        self.status, self.text, self.retry_after_s = status, text, retry_after_s
        self.peer: Any = None

    @property
    def lost_race(self) -> bool:
        """Whether another peer has answered first, or the session has ended.

        With secrets the first is also a 404 (docs/http-api.md#secrets).
        """
        return self.code in ("not-found", "already-answered")


class Unreachable(SignalError):
    """No response: the connection failed or broke."""

    def __init__(self, server: str, why: str, sent: bool = True) -> None:
        super().__init__("server-unreachable", f"cannot reach {server}: {why}", retryable=True)
        self.sent = sent


class Foreign(SignalError):
    """A response that no server of this API sends."""

    def __init__(self, status: int = 200, text: str = FOREIGN) -> None:
        super().__init__("not-a-server", text, status=status)


class TooLarge(Foreign):
    """A response of more than 16 MiB, or with more values than this client parses."""


class TimeLimit(SignalError, TimeoutError):
    """The `timeout` of a call has passed."""

    def __init__(self, text: str) -> None:
        super().__init__("timeout", text, retryable=True)


class Incomplete(ExceptionGroup[Exception], SignalError):
    """Some of several peers did not receive a message or file. The others have it."""

    def __new__(cls, code: str, text: str, errors: Sequence[Exception]) -> Self:
        return super().__new__(cls, text, errors)

    def __init__(self, code: str, text: str, errors: Sequence[Exception]) -> None:
        SignalError.__init__(self, code, text)

    def derive(self, errors: Sequence[Exception]) -> "Incomplete":  # type: ignore[override]
        return Incomplete(self.code, self.message, errors)


def refused(status: int, text: str, retry_after_s: float | None = None) -> SignalError:
    """Return the error of a response with an HTTP status and the server's text."""
    if status < 400:
        return Foreign(status, text)
    code = CODES.get(status, "invalid-request" if status < 500 else "server-busy")
    if text == NOT_ALLOWED:
        code = "not-allowed"
    if retry_after_s is not None:
        retry_after_s = max(0.0, min(retry_after_s, MAX_RETRY_AFTER_S))
    return SignalError(code, text, retryable=is_transient(status), status=status, retry_after_s=retry_after_s)


def is_transient(status: int) -> bool:
    """Return whether an HTTP status stands for a transient error."""
    return status in (429, 502, 503, 504)


def log_unheard(log: logging.Logger, what: str, error: BaseException) -> None:
    """Log the error that ends something, because the program does not wait for it."""
    code = getattr(error, "code", type(error).__name__)
    log.error("%s is closed, and nothing listens to its error: %s (%s, see %s)", what, error, code, TABLE)
