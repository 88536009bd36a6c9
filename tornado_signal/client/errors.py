"""Errors of the client."""

FOREIGN = "the answer is not one of this API"
ANSWER_S = 15.0  # for an answer, beyond what was asked to wait
SLOW = "it does not answer in time"
HUNG_UP = "it hung up"


class APIError(Exception):
    """A call has failed: the server has refused it, or cannot be reached (`Unreachable`).

    Attributes:
        status: HTTP's.
        text: the server's message.
        retry_after_s: when to try again, if the server sent `Retry-After`.
    """

    def __init__(self, status: int, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {text}" if status else text)
        self.status, self.text, self.retry_after_s = status, text, retry_after_s

    @property
    def lost_race(self) -> bool:
        """Whether another peer has the session: with secrets that is a 404, too (contract C5)."""
        return self.status in (404, 409)

    @property
    def is_transient(self) -> bool:
        """Whether the same call may work later, or at another server."""
        return self.status == 0 or is_transient(self.status)


class Unreachable(APIError):
    """No answer: no connection, or one that broke; the status is 0.

    Attributes:
        sent: whether the server may have got the request.
    """

    def __init__(self, text: str, sent: bool) -> None:
        super().__init__(0, text)
        self.sent = sent


def unreachable(server: str, why: str, sent: bool = True) -> Unreachable:
    """The error of a server that does not answer."""
    return Unreachable(f"cannot reach {'/'.join(server.split('/')[:3])}: {why}", sent)


def is_transient(status: int) -> bool:
    """Whether what HTTP says with a status may be over a moment later."""
    return status in (429, 502, 503, 504)
