"""An HTTP request: Tornado's request and the context of its operation, in one object."""

import functools
import logging
import re
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

from tornado import escape, httputil, web

from .. import errors
from ..auth import ANY, Bearer, ShownToken, digest_of
from ..limits import forwarded
from ..service import wire
from ..service.request_context import RequestContext
from ..service.schemas import MAX_ORIGIN
from ..service.service import Service

log = logging.getLogger(__name__)

_WEIGHT: Final = re.compile(r"[01](\.[0-9]{0,3})?")
MAX_WEIGHTS: Final = 64  # a head of 32 KiB has room for 16,000, which would take 10 ms
METHODS: Final = frozenset(web.RequestHandler.SUPPORTED_METHODS)
UNKNOWN_METHOD: Final = "unknown"  # stands for all others, because requests are counted by method
NO_HEADERS: Final = httputil.HTTPHeaders()


class Request(httputil.HTTPServerRequest, RequestContext):
    """A request for a handler. Attributes that few handlers read are made when they are read."""

    remote_ip: str
    files: dict[str, list[httputil.HTTPFile]]
    body_arguments: dict[str, list[bytes]]
    body = b""
    body_error: errors.SignalError | None = None  # the reason why the body was not kept, or None
    received_bytes = 0  # of the body, also if it was not kept
    request_id = ""  # until it is admitted
    response_begun = False  # whether a part of the response has been sent
    _bearer: Bearer | None = None
    _query_arguments: dict[str, list[bytes]] | None = None

    def __init__(
        self,
        service: Service,
        connection: httputil.HTTPConnection,
        start_line: httputil.RequestStartLine,
        headers: httputil.HTTPHeaders,
    ) -> None:
        # Not the constructor of Tornado, which parses the query and copies the result for each request.
        self.method, self.uri, self.version = start_line
        if self.method not in METHODS:
            self.method = UNKNOWN_METHOD
        self.path, _, self.query = self.uri.partition("?")
        self.headers = headers
        self.connection: Any = connection  # both ours and Tornado's have more than the documented interface
        context = connection.context  # type: ignore[attr-defined]
        self.remote_ip = context.remote_ip or ""
        client_address = self.remote_ip
        if service.live.current.trusted_proxies or not client_address:
            client_address = service.limits.client_address(client_address, headers.get("X-Forwarded-For", ""))
            context.client_address = client_address
        client = service.limits.client(client_address)
        reports = not (client.limited or service.proxy_reported) and self.remote_ip in ("", client_address)
        if reports and "X-Forwarded-For" in headers:
            service.report_proxy(self.remote_ip)
        RequestContext.__init__(self, service, client, client_address, self.method, "unknown")

    # Attributes of Tornado's requests

    @property
    def protocol(self) -> str:  # type: ignore[override]
        return str(self.connection.context.protocol)

    @property
    def host(self) -> str:  # type: ignore[override]
        """The name of this server that the client has used."""
        return self.headers.get("Host", "127.0.0.1")

    @property
    def host_name(self) -> str:  # type: ignore[override]
        """`host` in lower case and without the port."""
        return httputil.split_host_and_port(self.host.lower())[0]

    @property
    def query_arguments(self) -> dict[str, list[bytes]]:  # type: ignore[override]
        if self._query_arguments is None:  # a `cached_property` of Python 3.11 takes a lock
            self._query_arguments = parse_query(self.query)
        return self._query_arguments

    @functools.cached_property
    def arguments(self) -> dict[str, list[bytes]]:  # type: ignore[override]
        """The values of the query and of a form by name."""
        return {name: list(values) for name, values in self.query_arguments.items()}

    def _parse_body(self) -> None:
        """Do nothing: Tornado would parse forms before `prepare` admits the request (tornadoweb/tornado#1832)."""

    def request_time(self) -> float:
        return perf_counter() - self.began_s

    # The context of the operation

    def admit_request(self, find_origin: Callable[[], str]) -> None:
        """Set the ids of the request, and admit it."""
        log = self.service.log
        self.request_id = log.request_id(self.headers, self.remote_ip)
        self.traceparent = log.traceparent(self.headers)
        self.admit(find_origin, self.received_bytes)

    def authorize(self, action: str = ANY, token: str = "") -> None:
        """Verify a token, unless the connection has shown it before and nothing has changed since."""
        service, connection = self.service, self.connection.context
        shown: ShownToken | None = getattr(connection, "shown", None)
        authority = service.authority
        if (
            shown is not None
            and shown.origin == self.origin
            and authority is not None
            and shown.keys is authority.keys
            and shown.grant.allows(action)
            and service.clock.wall_s() < shown.grant.ends_s
            and shown.digest == digest_of(token)
        ):
            self.grant, self.shown = shown.grant, shown
            service.log.metrics.tokens["accepted"] += 1
            return
        super().authorize(action, token)
        if token and authority is not None and self.grant is not None:
            connection.shown = ShownToken(digest_of(token), self.origin, authority.keys, self.grant)

    def find_token(self) -> str:
        """Return the token of the header `Authorization`, or an empty text."""
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def find_origin(self) -> str:
        """Return the Origin. Raise InvalidParameter without a valid one (docs/decisions.md#missing-origin)."""
        values = self.headers.get_list("Origin")
        if not values and self.method in ("GET", "HEAD") and (implied := self._implied_origin()):
            values = [implied]
        elif not values:
            log.debug("%s %s has no Origin; send the header Origin: https://HOST", self.method, self.pattern)
        if len(values) != 1 or not 0 < len(values[0]) <= MAX_ORIGIN:
            raise errors.InvalidParameter("Origin")
        return values[0]

    def _implied_origin(self) -> str | None:
        """Return the origin of a GET or HEAD without one. Browsers add none to requests to the page's own host.

        A default proxy changes Host and scheme, and forwards the Referer. A page can send neither that of another
        origin, nor `Sec-Fetch-Site`.
        """
        headers = self.headers
        page, same = forwarded.page_origin(headers.get("Referer", "")), headers.get("Sec-Fetch-Site") == "same-origin"
        if not same:
            return page
        own = forwarded.own_origin(self.protocol, self.remote_ip, headers, self.service.settings.trusted_proxies)
        if page is not None and page != own:
            self.service.report_origin(page, own)
        return page or own

    def find_page_origin(self) -> str:
        """Return the Origin of a request for a file, or an empty text: browsers load files without an Origin."""
        headers = self.headers
        if "Origin" not in headers or headers.get("Sec-Fetch-Site") == "same-origin":
            return ""
        return self.find_origin()

    def json_body(self) -> dict[str, Any]:
        """Return the JSON object in the body, or raise InvalidParameter.

        Raise BodyTooLarge above `--max-body-bytes`, and Unavailable if all bodies in transit take too much memory.
        """
        if self.body_error is not None:
            raise self.body_error
        return wire.parse_body(self.body)

    def wait_began(self) -> None:
        """Drop what the request came with. The wait also ends when the token expires."""
        self.headers, self.body, self.query = NO_HEADERS, b"", ""
        if self._watch is not None and not self._watch.closed:
            self._bearer = self.service.make_bearer(self.grant, self._watch.close)

    def disconnect(self) -> bool:
        self.connection.context.abort()
        return True

    def _release_wait(self) -> None:
        super()._release_wait()
        if self._bearer is not None:
            self._bearer.close()

    def count_error(self, error: BaseException) -> None:
        """Count an error. Tornado's own are refusals, unless their status is that of an internal error."""
        if not isinstance(error, web.HTTPError) or error.status_code >= 500:
            super().count_error(error)
            return
        self.refusal_reason = "handler"
        self.service.log.count_refusal(error.status_code, self.refusal_reason)
        if message := error.get_message():
            log.warning("%s %s: %s: request %s", self.method, self.pattern, message, self.request_id)

    @property
    def over(self) -> bool:
        return self._ended or self.gone

    @property
    def navigates(self) -> bool:
        """Whether a person asks for a page (docs/decisions.md#browser-navigation)."""
        headers = self.headers
        if self.method not in ("GET", "HEAD") or "Origin" in headers or "Referer" in headers:
            return False
        if (mode := headers.get("Sec-Fetch-Mode")) is not None:
            return mode == "navigate" and headers.get("Sec-Fetch-Dest", "document") == "document"
        return prefers_html(headers.get("Accept", ""))


def parse_query(query: str) -> dict[str, list[bytes]]:
    if "%" in query or "+" in query:
        return escape.parse_qs_bytes(query, keep_blank_values=True)
    values: dict[str, list[bytes]] = {}
    for field in query.split("&"):
        name, _, value = field.partition("=")
        if field:
            values.setdefault(name, []).append(value.encode("latin-1"))
    return values


def accepted_weights(accepted: str) -> dict[str, float]:
    """Return the weights in an Accept or Accept-Encoding by name (RFC 9110, 12.4.2), of the first `MAX_WEIGHTS`."""
    weights = {}
    for entry in accepted.lower().split(",", MAX_WEIGHTS)[:MAX_WEIGHTS]:
        name, *parameters = (part.strip() for part in entry.split(";", MAX_WEIGHTS))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        weights[name] = float(weight) if _WEIGHT.fullmatch(weight) else 0.0
    return weights


def prefers_html(accepted: str) -> bool:
    """Return whether an Accept prefers HTML to JSON (RFC 9110, 12.5.1)."""
    weights = accepted_weights(accepted)
    anything = weights.get("*/*", 0.0)
    html, json = (
        weights.get(kind, weights.get(kind.partition("/")[0] + "/*", anything)) for kind in ("text/html", wire.JSON)
    )
    return html > json
