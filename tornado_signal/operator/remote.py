"""Requests to the admin listener of a running server."""

import contextlib
import http.client
import json
import math
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..errors import OperatorError
from ..settings.settings import Settings
from ..system import terminal
from .health import reachable

LIMIT_S = 3600.0  # of a request with its response: the withdrawal of many sessions takes long
MAX_RESPONSE_BYTES = 2 * 2**20


def admin_url(settings: Settings, url: str | None) -> str | None:
    """Return the URL of the admin listener: `url`, or the one of the settings. None if there is none.

    Port 0 is refused, because only the server knows the real one.
    """
    if url is not None or settings.admin_port is None:
        return url
    if settings.admin_port == 0:
        raise OperatorError("with --admin-port 0 only the server's log contains the port; name it with --admin-url")
    return f"http://{reachable(settings.admin_address)}:{settings.admin_port}"


def status(url: str, token: bytes) -> dict[str, Any]:
    """Return the states of all processes of a server (docs/operator-page.md#data)."""
    return _send("GET", url, "/status", token)


def act(url: str, token: bytes, action: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Perform an action of the operator, and return its results (docs/operator-page.md#actions)."""
    return _send("POST", url, f"/actions/{action}", token, json.dumps(fields))


@contextlib.contextmanager
def expected(url: str) -> Iterator[None]:
    """Raise OperatorError if a response does not have the fields that the block uses."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise _foreign(url) from error


def _foreign(url: str) -> OperatorError:
    return OperatorError(
        f"the server at {url} is not the admin listener of a tornado-signal; name that with --admin-port or --admin-url"
    )


@contextlib.contextmanager
def _limited(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Connect, and break the connection if the block takes longer than `LIMIT_S`."""
    connection.connect()
    connected = connection.sock

    def end() -> None:
        with contextlib.suppress(OSError):  # it is closed
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(LIMIT_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fields(response: http.client.HTTPResponse) -> Any:
    """Read a JSON response. Raise ValueError if it is too large, incomplete, or not JSON in UTF-8."""
    body = response.read(MAX_RESPONSE_BYTES)
    if response.length:
        raise ValueError("bytes are missing")
    return json.loads(body.decode(), parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


def _send(method: str, url: str, path: str, token: bytes, body: str | None = None) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S))
        )
        try:
            stack.enter_context(_limited(connection))
            connection.request(method, path, body, {"Authorization": b"Bearer " + token} if token else {})
            response = connection.getresponse()
            status = response.status
            explained = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.SERVICE_UNAVAILABLE)
            fields = _fields(response) if status in explained else {}
            if not isinstance(fields, dict):
                raise _foreign(url)
            reason = fields["reason"] if status == HTTPStatus.SERVICE_UNAVAILABLE else None
            invalid = fields["error"] if status == HTTPStatus.BAD_REQUEST and "action" in fields else None
        except OSError as error:
            raise OperatorError(
                f"no server responds at {url} ({error.strerror or error}); start it, or name its admin listener with "
                "--admin-port or --admin-url"
            ) from error
        except (http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
            status, reason, invalid = HTTPStatus.BAD_GATEWAY, None, None
        if invalid is not None:
            raise OperatorError(f"the server at {url} refuses: {terminal.printable(str(invalid))}")
        if reason is not None:
            raise OperatorError(
                f"the server at {url} is unavailable: {terminal.printable(str(reason))}; try again, or read its log"
            )
        if status == HTTPStatus.UNAUTHORIZED:
            raise OperatorError(f"the server at {url} requires its token; name the file with --admin-token-file")
        if status == HTTPStatus.FORBIDDEN:
            raise OperatorError(
                f"the server at {url} allows this from its own machine only; set --admin-token-file on the "
                "server and for this command"
            )
        if status != HTTPStatus.OK:
            raise _foreign(url)
        return fields
