"""The client's requests over HTTP."""

import asyncio
import calendar
import contextlib
import email.utils
import ipaddress
import logging
import os
import ssl
import time
import urllib.request
from collections.abc import Callable, Collection
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx

from .authorization import Authorization
from .errors import (
    HUNG_UP,
    MAX_RESPONSE_BYTES,
    RESPONSE_S,
    SIGN_OF_LIFE_S,
    SLOW,
    THROUGH_PROXY,
    Foreign,
    SignalError,
    TooLarge,
    Unreachable,
    refused,
)
from .parsing import MAX_VALUES, is_result, parse_json, parse_object
from .tasks import Tasks
from .types import Fields

# httpx logs every URL at INFO, and the query can contain a secret.
logging.getLogger("httpx").setLevel(logging.WARNING)

WAIT_S = 15.0  # the longest `wait`, so that a dead connection is noticed
LOOK_S = 2.0  # limit for the first bytes of a server
HTTP: Final = b"HTTP/"  # the first bytes of a response
INTERRUPTED: Final = 0.0  # the time of a timeout that `HttpClient.check` has set

REQUESTS: Final = {
    "version": ("GET", "/"),
    "health": ("GET", "/health"),
    "iceServers": ("GET", "/ice-servers"),
    "report": ("POST", "/report"),
    "nearby": ("GET", "/nearby"),
    "topics": ("GET", "/topics"),
    "sessions": ("GET", "/{topic}/sessions"),
    "offer": ("POST", "/{topic}/offer"),
    "answer": ("POST", "/answer"),
    "poll": ("POST", "/poll"),
    "withdraw": ("POST", "/withdraw"),
    "refresh": ("POST", "/refresh"),
}


class HttpClient:
    """An HTTP client for all servers."""

    def __init__(self, origin: str, tls: Callable[[], ssl.SSLContext], authorization: Authorization) -> None:
        # A few compressed bytes can be a response of any size.
        self._headers = {"Origin": origin, "Accept-Encoding": "identity"}
        self._authorization = authorization
        self._tls = tls
        self._clients: dict[str | None, httpx.AsyncClient] = {}  # by proxy
        self._waits: set[asyncio.Timeout] = set()  # of requests that wait for something new
        self._replaced: set[httpx.AsyncClient] = set()  # that are closed soon
        self._closing = Tasks()
        self._known: set[str] = set()  # the servers that have responded

    async def close(self) -> None:
        await self._closing.cancel()
        for client in [*self._clients.values(), *self._replaced]:
            await client.aclose()

    def check(self) -> None:
        """Repeat the requests that wait over new connections. Close the others soon."""
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(INTERRUPTED)

        async def close(clients: Collection[httpx.AsyncClient]) -> None:
            await asyncio.sleep(SIGN_OF_LIFE_S)
            for client in clients:
                await client.aclose()
            self._replaced.difference_update(clients)

        self._replaced.update(self._clients.values())
        self._closing.start(close(self._clients.values()))
        self._clients = {}

    async def call(self, server: str, operation: str, fields: Fields) -> Fields:
        """Send the request of an operation and return the fields of the response."""
        method, path = REQUESTS[operation]
        fields = {name: value for name, value in fields.items() if name != "hold"}
        if wait_s := min(fields.get("wait", 0), WAIT_S):
            fields["wait"] = wait_s
        if "{topic}" in path:
            path = path.replace("{topic}", _segment(fields.pop("topic")))
        token = await self._authorization.token()
        for retries in (1, 0):
            options = {"json" if method == "POST" else "params": fields, "timeout": None}
            headers = self._headers | ({"Authorization": f"Bearer {token}"} if token else {})
            response, content = await self._send(wait_s, server, method, path, headers=headers, **options)
            refused = response.status_code == 401
            if not (refused and retries) or (newer := await self._authorization.replace(token)) is None:
                break
            token = newer
        if response.status_code not in (200, 204):
            raise _error_of(response, content)
        try:
            result = parse_json(content or b"{}")
        except ValueError:
            raise TooLarge if content.count(b",") > MAX_VALUES else Foreign from None
        if not isinstance(result, dict) or not is_result(operation, fields, result):
            raise Foreign
        return result

    async def _send(
        self, wait_s: float, server: str, method: str, path: str, **options: Any
    ) -> tuple[httpx.Response, bytes]:
        """Send a request, and return the response with its body. One that waits is repeated after `check`."""
        limit_s = max(RESPONSE_S, wait_s + SIGN_OF_LIFE_S)
        connecting: list[Any] = []

        async def trace(event: str, fields: dict[str, Any]) -> None:
            if event.endswith("connect_tcp.complete"):
                connecting.append(fields["return_value"])
            elif event.endswith("start_tls.complete"):
                connecting.clear()

        options["extensions"] = {"trace": trace}
        while True:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    if wait_s:
                        self._waits.add(limit)
                    try:
                        async with self._client(server).stream(method, server + path, **options) as response:
                            self._known.add(server)
                            return response, await _read(response)
                    except asyncio.CancelledError:
                        for stream in connecting:  # httpx leaves it open if its TLS handshake is cancelled
                            await stream.aclose()
                        raise
                    finally:
                        self._waits.discard(limit)
            except (httpx.RemoteProtocolError, httpx.ReadError) as error:
                raise await self._broken(server, _unreachable(server, error)) from None
            except httpx.TransportError as error:
                raise _unreachable(server, error) from None
            except TimeoutError:
                if limit.when() != INTERRUPTED:
                    raise await self._broken(server, Unreachable(_through_proxy(server), SLOW)) from None

    async def _broken(self, server: str, error: SignalError) -> SignalError:
        """Return the error of a response that broke, or another one if the server speaks another protocol than HTTP."""
        url, first = urlsplit(server), b""
        tls, port = (self._tls(), 443) if url.scheme == "https" else (None, 80)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(LOOK_S):
                if server not in self._known and proxy_of(server) is None:
                    reader, writer = await asyncio.open_connection(url.hostname, url.port or port, ssl=tls)
                    with contextlib.closing(writer):
                        writer.write(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")
                        first = await reader.read(len(HTTP))
        return error if HTTP.startswith(first) else Foreign(0)

    def _client(self, server: str) -> httpx.AsyncClient:
        proxy = proxy_of(server)
        if proxy not in self._clients:
            # Each long poll occupies a connection.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            try:
                self._clients[proxy] = httpx.AsyncClient(
                    limits=limits, verify=self._tls(), proxy=proxy, trust_env=False
                )
            except (ImportError, ValueError, httpx.InvalidURL) as error:  # ImportError: SOCKS needs another package
                raise Unreachable(_through_proxy(server), str(error), sent=False) from None
        return self._clients[proxy]


def is_local(server: str) -> bool:
    """Return whether the host of a server is a loopback address or localhost."""
    host = urlsplit(server).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_of(server: str) -> str | None:
    """Return the URL of the proxy that the environment names for a server, or None. Local servers need none."""
    url = urlsplit(server)
    if is_local(server) or urllib.request.proxy_bypass(url.netloc):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def _through_proxy(server: str) -> str:
    """Return the name of a server in an error, with its proxy. The proxy's password is not part of it."""
    server = "/".join(server.split("/")[:3])
    proxy = proxy_of(server)
    if proxy is None:
        return server
    scheme, _, rest = proxy.partition("://")
    return f"{server}{THROUGH_PROXY}{scheme}://{rest.rpartition('@')[2]}"


def _segment(topic: str) -> str:
    segment = quote(topic, safe="")
    return segment.replace(".", "%2E") if topic in (".", "..") else segment


async def _read(response: httpx.Response) -> bytes:
    """Return the body of a response. Raise SignalError if it is too large, or compressed."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Foreign
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > MAX_RESPONSE_BYTES:
            raise TooLarge
    return bytes(content)


def _unreachable(server: str, error: httpx.TransportError) -> Unreachable:
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
    why = str(error) or (SLOW if isinstance(error, httpx.TimeoutException) else HUNG_UP)
    cause: BaseException | None = error
    while cause is not None:  # the operating system's error is among the causes
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and (cause.errno or 0) > 0:
            why = os.strerror(cause.errno or 0)
        cause = cause.__cause__ or cause.__context__
    return Unreachable(_through_proxy(server), why, sent)


def _error_of(response: httpx.Response, content: bytes) -> SignalError:
    if response.next_request is not None:  # another host would receive the token and the secrets
        hosts = (f"{url.scheme}://{url.netloc.decode()}" for url in (response.url, response.next_request.url))
        return Foreign(response.status_code, "{} redirects to {}, which is not followed".format(*hosts))
    text = parse_object(content).get("error")
    if not isinstance(text, str):
        if response.status_code in (400, 403, 404, 405, 501):  # others can be from a proxy
            return Foreign(response.status_code)
        text = response.reason_phrase
    return refused(response.status_code, text, _retry_after_s(response.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date, or None if it is invalid."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        # A date without a time zone is one of UTC, as in the form of C's asctime.
        return calendar.timegm(email.utils.parsedate_to_datetime(value).utctimetuple()) - time.time()
    except (ValueError, OverflowError):
        return None
