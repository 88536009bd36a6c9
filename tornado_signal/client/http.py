"""The client's requests over HTTP."""

import contextlib
import email.utils
import logging
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import httpx

from .authorization import Authorization, bearer
from .errors import FOREIGN, HUNG_UP, RESPONSE_S, SLOW, APIError, Unreachable, unreachable
from .parsing import parse_json
from .types import Fields, StreamEvent

if TYPE_CHECKING:
    from httpx_sse import EventSource

# httpx logs every URL at INFO, and the query can contain a secret.
logging.getLogger("httpx").setLevel(logging.WARNING)

SILENCE_S = 45.0  # the longest silence of a stream. The server sends a comment every 15 s

REQUESTS: Final = {
    "version": ("GET", "/"),
    "health": ("GET", "/health"),
    "iceServers": ("GET", "/ice-servers"),
    "topics": ("GET", "/topics"),
    "sessions": ("GET", "/{topic}/sessions"),
    "offer": ("POST", "/{topic}/offer"),
    "answer": ("POST", "/answer"),
    "poll": ("POST", "/poll"),
    "withdraw": ("POST", "/withdraw"),
    "refresh": ("POST", "/refresh"),
}


class HttpClient:
    """An HTTP client for all servers.

    Args:
        origin: the Origin of every request.
        tls: creates the TLS context for HTTPS.
        authorization: the token of every request.
    """

    def __init__(self, origin: str, tls: Callable[[], ssl.SSLContext], authorization: Authorization) -> None:
        self._headers = {"Origin": origin}
        self._authorization = authorization
        self._tls = tls
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def call(self, server: str, operation: str, fields: Fields) -> Fields:
        """Send the request of an operation and return the fields of the response.

        Raises:
            APIError: the response is an error or missing.
        """
        method, path = REQUESTS[operation]
        fields = {name: value for name, value in fields.items() if name != "hold"}
        if "{topic}" in path:
            path = path.replace("{topic}", _segment(fields.pop("topic")))
        token = await self._authorization.token()
        for retries in (1, 0):
            try:
                response = await self._client().request(
                    method,
                    server + path,
                    params=fields if method == "GET" else None,
                    json=fields if method == "POST" else None,
                    headers={**self._headers, **bearer(token)},
                    timeout=_timeout(RESPONSE_S + fields.get("wait", 0)),
                )
            except httpx.TransportError as error:
                raise _unreachable(server, error) from None
            refused = response.status_code == 401
            if not (refused and retries) or (newer := await self._authorization.replace(token)) is None:
                break
            token = newer
        if response.status_code != 200:
            raise _error_of(response)
        result = _json_object(response.content)
        if result is None:
            raise APIError(response.status_code, FOREIGN)
        return result

    @contextlib.asynccontextmanager
    async def stream(
        self, server: str, fields: Fields, since: str | None
    ) -> AsyncIterator[AsyncGenerator[StreamEvent, None]]:
        """Open the event stream of a topic or session after `since`, and return its events.

        Raises:
            APIError: the stream cannot be opened. Reading the events raises it if the stream breaks.
            ModuleNotFoundError: the extra `client` is not installed.
        """
        try:
            from httpx_sse import aconnect_sse
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "event streams need httpx-sse; in the checkout: pip install '.[client]'"
            ) from error
        fields = dict(fields)
        path = f"/{_segment(fields.pop('topic'))}/events" if "topic" in fields else "/events"
        token = await self._authorization.token()
        for retries in (1, 0):
            async with contextlib.AsyncExitStack() as stack:
                try:
                    source = await stack.enter_async_context(
                        aconnect_sse(
                            self._client(),
                            "GET",
                            server + path,
                            params=fields,
                            headers={**self._headers, **bearer(token), **({"Last-Event-ID": since} if since else {})},
                            timeout=_timeout(SILENCE_S),
                        )
                    )
                    if source.response.status_code != 200:
                        await source.response.aread()
                except httpx.TransportError as error:
                    raise _unreachable(server, error) from None
                if source.response.status_code == 200:
                    yield _events(server, source)
                    return
            refused = source.response.status_code == 401
            if not (refused and retries) or (newer := await self._authorization.replace(token)) is None:
                raise _error_of(source.response)
            token = newer

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            # Each long poll and each stream occupies a connection.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._http = httpx.AsyncClient(limits=limits, verify=self._tls())
        return self._http


async def _events(server: str, source: "EventSource") -> AsyncGenerator[StreamEvent, None]:
    from httpx_sse import SSEError

    try:
        async for sse in source.aiter_sse():
            data = _json_object(sse.data) if sse.data else None
            if sse.data and data is None:
                raise APIError(200, FOREIGN)
            yield StreamEvent(sse.event, data, sse.id or None, None if sse.retry is None else sse.retry / 1000)
    except SSEError:  # before TransportError, of which it is a subclass
        raise APIError(200, FOREIGN) from None
    except httpx.TransportError as error:
        raise _unreachable(server, error) from None


def _segment(topic: str) -> str:
    """Encode a topic as one path segment."""
    segment = quote(topic, safe="")
    return segment.replace(".", "%2E") if topic in (".", "..") else segment


def _timeout(read_s: float) -> httpx.Timeout:
    return httpx.Timeout(RESPONSE_S, read=read_s, pool=None)


def _unreachable(server: str, error: httpx.TransportError) -> Unreachable:
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
    why = str(error) or (SLOW if isinstance(error, httpx.TimeoutException) else HUNG_UP)
    cause: BaseException | None = error
    while cause is not None:  # the operating system's error is among the causes
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
            why = os.strerror(cause.errno or 0)
        cause = cause.__cause__ or cause.__context__
    return unreachable(server, why, sent)


def _json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the JSON object in a response or event, or None if the content is not a JSON object."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _error_of(response: httpx.Response) -> APIError:
    if response.next_request is not None:  # another host would receive the token and the secrets
        hosts = (f"{url.scheme}://{url.netloc.decode()}" for url in (response.url, response.next_request.url))
        return APIError(response.status_code, "{} redirects to {}, which is not followed".format(*hosts))
    text = (_json_object(response.content) or {}).get("error")
    text = text if isinstance(text, str) else response.reason_phrase
    return APIError(response.status_code, text, _retry_after_s(response.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date, or None if it is invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:6])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
