"""The receiver of webhooks: its URL, and signed requests to it (https://www.standardwebhooks.com)."""

import base64
import email.utils
import hashlib
import hmac
import ipaddress
import ssl
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tornado.httpclient import HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..settings.settings import Settings
from ..system.secrets import webhook_key
from .events import Batch

REQUEST_S: Final = 10.0
MAX_RESPONSE_BYTES: Final = 64 * 1024
LOCAL_SUFFIXES: Final = (".localhost", ".local", ".internal")


class RequestFailed(Exception):
    """A request that the receiver did not accept."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        # The time of the next attempt that the receiver asks for, in seconds from now. 0 for none.
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, repr=False)
class Target:
    """The receiver."""

    url: str
    key: bytes  # the key that signs requests
    tls: ssl.SSLContext | None  # the verification of its certificate, or None without TLS
    client: SimpleAsyncHTTPClient  # the HTTP client, which limits responses. It ignores the proxies of the environment

    @property
    def name(self) -> str:
        """The URL without path and query, which can contain secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    async def post(self, batch: Batch) -> None:
        """Send a batch. Raise RequestFailed if the receiver did not respond with 2xx in time."""
        request = HTTPRequest(
            self.url,
            "POST",
            {"Content-Type": "application/json", "User-Agent": "tornado-signal", **self._signature(batch)},
            batch.body,
            connect_timeout=REQUEST_S,
            request_timeout=REQUEST_S,
            follow_redirects=False,
            decompress_response=False,
            ssl_options=self.tls,
        )
        try:
            response = await self.client.fetch(request, raise_error=False)
        except Exception as error:  # of sockets, TLS, name resolution and HTTP, which have no common class
            raise RequestFailed(str(error) or type(error).__name__) from error
        if not 200 <= response.code < 300:
            raise RequestFailed(f"HTTP {response.code}", parse_retry_after(response.headers.get("Retry-After", "")))

    def _signature(self, batch: Batch) -> dict[str, str]:
        timestamp = str(int(time.time()))
        digest = hmac.digest(self.key, f"{batch.id}.{timestamp}.".encode() + batch.body, hashlib.sha256)
        return {
            "webhook-id": batch.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def make_target(settings: Settings) -> Target | None:
    """Return the configured receiver, or None if webhooks are off. Needs a running event loop."""
    key, url = webhook_key(settings), settings.webhook_url
    if url is None:
        return None
    client = SimpleAsyncHTTPClient(
        force_instance=True, max_buffer_size=MAX_RESPONSE_BYTES, max_body_size=MAX_RESPONSE_BYTES
    )
    return Target(url, key, ssl.create_default_context() if url.startswith("https:") else None, client)


def unencrypted(settings: Settings) -> str | None:
    """Return the host that gets events unencrypted through the internet, if the URL names one."""
    parts = urlsplit(settings.webhook_url or "")
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_private
    except ValueError:
        local = "." not in host or host.endswith(LOCAL_SUFFIXES)
    return host if parts.scheme == "http" and not local else None


def parse_retry_after(text: str) -> float:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3). 0 if it is missing, past or invalid."""
    if text.isdecimal() and text.isascii():
        return float(text[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0
