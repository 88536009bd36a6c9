"""Requests to HTTP servers that the operator names, bounded in time and size."""

import calendar
import email.utils
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..system.fetching import fetch

REQUEST_S: Final = 10.0
MAX_RESPONSE_BYTES: Final = 64 * 1024


class RequestFailed(Exception):
    """A request without a response of 2xx. `status` is 0 if there is no response."""

    def __init__(self, reason: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.status = status
        # The time of the next attempt that the server asks for, in seconds from now. 0 for none.
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The URL of a server."""

    url: str
    tls: ssl.SSLContext | None  # the verification of its certificate, or None without TLS
    client: SimpleAsyncHTTPClient  # the HTTP client, which limits responses. It ignores the proxies of the environment

    @property
    def name(self) -> str:
        """The URL without path and query, which can contain secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    async def send(self, method: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        """Send a request and return the body of the response. Raise RequestFailed if that is not 2xx in time."""
        request = HTTPRequest(
            self.url,
            method,
            {"User-Agent": "tornado-signal", **headers},
            body,
            connect_timeout=REQUEST_S,
            request_timeout=REQUEST_S,
            follow_redirects=False,
            decompress_response=False,
            ssl_options=self.tls,
        )
        try:
            response = await fetch(self.client, request)
        except Exception as error:  # of sockets, TLS, name resolution and HTTP, which have no common class
            raise RequestFailed(str(error) or type(error).__name__) from error
        if not 200 <= response.code < 300:
            retry_after_s = parse_retry_after(response.headers.get("Retry-After", ""))
            raise RequestFailed(f"HTTP {response.code}", response.code, retry_after_s)
        return response.body


def make_endpoint(url: str) -> Endpoint:
    """Return the endpoint at a URL. Needs a running event loop."""
    client = SimpleAsyncHTTPClient(
        force_instance=True, max_buffer_size=MAX_RESPONSE_BYTES, max_body_size=MAX_RESPONSE_BYTES
    )
    return Endpoint(url, ssl.create_default_context() if url.startswith("https:") else None, client)


def parse_retry_after(text: str) -> float:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3). 0 if it is missing, past or invalid."""
    if text.isdecimal() and text.isascii():
        return float(text[:9])  # bounded; 30 years are enough
    try:
        # A date without a time zone is one of UTC, as in the form of C's asctime.
        return max(0.0, calendar.timegm(email.utils.parsedate_to_datetime(text).utctimetuple()) - time.time())
    except (ValueError, OverflowError):
        return 0.0
