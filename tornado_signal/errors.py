"""Exceptions of the package. They carry fields and know nothing of HTTP."""

import re


class SignalError(Exception):
    """Base of the errors that clients see. `service/statuses.py` maps them to HTTP statuses.

    `message` is the text for the client. `reason` is the kind for metrics, one of a fixed set, without a client's
    input.
    """

    message = reason = ""

    def __init__(self) -> None:
        super().__init__(self.message)

    def __init_subclass__(cls) -> None:
        """Derive the default reason from the name of the class."""
        cls.reason = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()


class InvalidParameter(SignalError):
    """A required parameter is missing or invalid. `parameter` is its name as clients send it. `advice` follows it."""

    def __init__(self, parameter: str, advice: str = "") -> None:
        self.message = f"Missing or invalid required parameter: {parameter}{advice}"
        super().__init__()
        self.reason = self.parameter = parameter


class SessionNotFound(SignalError):
    """The session does not exist, has expired, or belongs to another origin. Clients cannot distinguish these cases."""

    message = "Session not found, expired, or origin mismatch"


class StalePosition(Exception):
    """A position belongs to an earlier session with the same content-derived code.

    It is not a SignalError, because its meaning depends on the caller. For a new request the cursor is invalid. For a
    waiting request the session has ended.
    """


class AlreadyAnswered(SignalError):
    """Another answer was accepted before (docs/decisions.md#first-answer)."""

    message = "Session already answered"


class OriginNotAllowed(SignalError):
    """`--allowed-origins` does not contain this origin."""

    message = "Origin not allowed"


class Unauthorized(SignalError):
    """A token is required, and there is none or an invalid one. `reason` is for the operator, never for the client."""

    message = "Missing or invalid token"

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason


class NotAllowed(SignalError):
    """The token does not allow the request. `reason` is the kind of the missing right, for the operator."""

    message = "Not allowed by the token"

    def __init__(self, right: str) -> None:
        super().__init__()
        self.reason = f"not allowed: {right}"


class PathNotFound(SignalError):
    """No endpoint has this path."""

    def __init__(self, message: str = "Not found") -> None:
        self.message = message
        super().__init__()


class MethodNotAllowed(SignalError):
    """The endpoint exists, but only with the methods in `allowed`."""

    message = "Method not allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__()
        self.allowed = allowed


class BodyTooLarge(SignalError):
    """The request body exceeds `--max-body-bytes`."""

    message = "Request body too large"


class TransientError(SignalError):
    """An error that may not occur again in `retry_after_s`. `reason` is for the operator, never for the client."""

    def __init__(self, reason: str, retry_after_s: int = 1) -> None:
        super().__init__()
        self.reason = reason
        self.retry_after_s = retry_after_s


class TooMany(TransientError):
    """A rate limit or a quota is exceeded. If it `persists`, the connection is to be closed: the client ignores it."""

    message = "Too many requests"

    def __init__(self, reason: str, retry_after_s: int = 1, *, persists: bool = False) -> None:
        super().__init__(reason, retry_after_s)
        self.persists = persists


class Unavailable(TransientError):
    """The server cannot serve this request now."""

    message = "Service unavailable"


class OperatorError(Exception):
    """An error that the operator can fix. The message says what is wrong, where, and what to do. Exit status 1."""


class DatabaseError(OperatorError):
    """The data directory cannot be opened, or holds no usable database of tornado-signal."""


class DatabaseInUse(DatabaseError):
    """Another process has the data directory open."""


class DamagedDatabase(DatabaseError):
    """The database in the data directory is damaged. `damage` says where and how, without the advice."""

    def __init__(self, damage: str) -> None:
        super().__init__(
            f"{damage}; stop the server and move the directory away, or serve with --start-empty-if-damaged"
        )
        self.damage = damage


class DamagedListing(Exception):
    """A part of a session or of a listing is missing."""
