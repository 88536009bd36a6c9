"""What a call can end with."""


class APIError(Exception):
    """A server's refusal.

    Attributes:
        status: HTTP's.
        text: the server's own words.
        retry_after_s: after which time to try again, if the server said so.
    """

    def __init__(self, status: int, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {text}" if status else text)
        self.status, self.text, self.retry_after_s = status, text, retry_after_s

    @property
    def taken(self) -> bool:
        """Whether somebody else has the session: where there are secrets, 404 says so too (contract C5)."""
        return self.status in (404, 409)

    @property
    def passing(self) -> bool:
        """Whether the same may work later, or at another server."""
        return self.status in (0, 429, 502, 503, 504)


class Unreachable(APIError):
    """No answer: no connection, or one that broke; the status is 0.

    Attributes:
        sent: whether the server may have got the request.
    """

    def __init__(self, text: str, sent: bool) -> None:
        super().__init__(0, text)
        self.sent = sent
