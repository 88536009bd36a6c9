"""Responses to errors over HTTP."""

import http.client
import time
from collections.abc import Callable
from typing import Final

from tornado import httputil, web

from .. import errors
from ..service import wire
from ..service.request_log import RequestLog
from ..service.schemas import MAX_ORIGIN
from ..service.statuses import STATUS

REFUSED_RETRY_AFTER_S: Final = 5  # for a connection over a limit

CHALLENGES: Final[dict[type[BaseException], str]] = {  # RFC 6750, section 3.1
    errors.Unauthorized: "invalid_token",
    errors.NotAllowed: "insufficient_scope",
}

# Pages may read when to retry, why a token was refused, and which request id to quote to the operator.
EXPOSED: Final = "Retry-After, WWW-Authenticate, X-Request-Id"

Response = tuple[httputil.HTTPHeaders, bytes]


def error_response(error: BaseException) -> tuple[int, list[tuple[str, str]], bytes]:
    status = error.status_code if isinstance(error, web.HTTPError) else STATUS.get(type(error), 500)
    headers = []
    if type(error) in CHALLENGES:
        headers.append(("Www-Authenticate", f'Bearer error="{CHALLENGES[type(error)]}"'))
    elif isinstance(error, errors.MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.allowed)))
    elif isinstance(error, errors.TransientError):
        headers.append(("Retry-After", str(error.retry_after_s)))
    text = str(error) if type(error) in STATUS else http.client.responses.get(status, "Unknown").capitalize()
    return status, headers, wire.encode({"error": text})


def cors(origin: str, *, listed: bool) -> list[tuple[str, str]]:
    """Return the CORS headers for an allowed origin. `listed` says whether `--allowed-origins` has it."""
    headers = [("Access-Control-Allow-Origin", origin), ("Access-Control-Expose-Headers", EXPOSED)]
    if listed:  # otherwise every page could send requests with a visitor's cookies for the operator's proxy
        headers.append(("Access-Control-Allow-Credentials", "true"))
    return headers


def make_error_responder(log: RequestLog) -> Callable[[int, httputil.HTTPHeaders], Response]:
    """Return the function that makes responses in JSON and with CORS to requests that reach no handler."""

    def respond(status: int, headers: httputil.HTTPHeaders) -> Response:
        date = httputil.format_timestamp(time.time())
        answer = httputil.HTTPHeaders({"Content-Type": wire.JSON, "Date": date, "Vary": "Origin"})
        answer["Cache-Control"] = "no-store"
        answer["X-Request-Id"] = log.count_transport_refusal(status)  # which also makes the id
        origin = headers.get("Origin", "")
        allowed = log.settings.allowed_origins
        if 0 < len(origin) <= MAX_ORIGIN and (allowed is None or origin in allowed):
            for name, value in cors(origin, listed=allowed is not None):
                answer[name] = value
        elif status in (414, 431) and not origin:
            # The Origin may be in an unread header. Every page may read this response, because it holds no data.
            answer["Access-Control-Allow-Origin"] = "*"
        if status in (429, 503):
            answer["Retry-After"] = str(REFUSED_RETRY_AFTER_S)
        return answer, wire.encode({"error": http.HTTPStatus(status).phrase.capitalize()})

    return respond
