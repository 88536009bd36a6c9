"""What can go wrong, as exceptions that carry fields and know nothing of HTTP."""

import re


class SignalError(Exception):
    """Base of everything a call can fail with; `service/statuses.py` has the one table from these to statuses.

    Attributes:
        message: what the client is told.
        reason: which it is, in a few words, for counting refusals: one of a few, and nothing that a client said.
    """

    message = reason = ""

    def __init__(self) -> None:
        super().__init__(self.message)

    def __init_subclass__(cls) -> None:
        """The reason is the name of the class, unless one says more."""
        cls.reason = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()


class InvalidParameter(SignalError):
    """A required parameter is missing or invalid (specification 7; contract B1 to B8).

    It has the name that the client used or should have used.
    """

    def __init__(self, parameter: str) -> None:
        self.message = f"Missing or invalid required parameter: {parameter}"
        super().__init__()
        self.reason = self.parameter = parameter


class SessionNotFound(SignalError):
    """No such session, or expired, or of another origin: the three are never told apart."""

    message = "Session not found, expired, or origin mismatch"


class StalePosition(Exception):
    """A position is in an earlier session with the same code; the content of both is the same (contract B16).

    No SignalError: what it means depends on the request. A cursor that says so was wrong from the beginning; for a
    request that waits it is the end of its session.
    """


class AlreadyAnswered(SignalError):
    """Another answer came first, and stands (contract B9)."""

    message = "Session already answered"


class OriginNotAllowed(SignalError):
    """The operator's allow-list does not name this origin (contract B14)."""

    message = "Origin not allowed"


class PathNotFound(SignalError):
    """No endpoint has this path (contract B13)."""

    message = "Not found"


class MethodNotAllowed(SignalError):
    """The endpoint exists, and has the allowed methods, but not this one (contract B13)."""

    message = "Method not allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__()
        self.allowed = allowed


class BodyTooLarge(SignalError):
    """The body is over the limit (contract B15)."""

    message = "Request body too large"


class TransientError(SignalError):
    """What may work later.

    Args:
        reason: for the operator, never for the client.
        retry_after_s: when trying again makes sense.
    """

    def __init__(self, reason: str, retry_after_s: int = 1) -> None:
        super().__init__()
        self.reason = reason
        self.retry_after_s = retry_after_s


class TooMany(TransientError):
    """A rate or a quota is used up (contract B15).

    Args:
        reason: as `TransientError`; so is `retry_after_s`.
        persists: whether the client goes on all the same, and is to lose its connection.
    """

    message = "Too many requests"

    def __init__(self, reason: str, retry_after_s: int = 1, *, persists: bool = False) -> None:
        super().__init__(reason, retry_after_s)
        self.persists = persists


class Unavailable(TransientError):
    """The server cannot serve this now (contract B15)."""

    message = "Service unavailable"


class OperatorError(Exception):
    """Something that the operator can mend: says what, where, and what to do (exit status 1)."""


class DatabaseError(OperatorError):
    """The database directory cannot be opened or does not hold a sound database of ours."""


class DamagedDatabase(DatabaseError):
    """It was ours, and is damaged."""


class DamagedListing(Exception):
    """The listings do not hold as many entries as they should."""

    def __init__(self, found: int, expected: int) -> None:
        super().__init__(f"{found} sessions are listed, there should be {expected}")
