"""Requests to the admin listener of a running server."""

import contextlib
import http.client
import json
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..errors import OperatorError
from ..settings.settings import Settings
from .health import reachable

LIMIT_S = 3600.0  # timeout of a request


def admin_url(settings: Settings, url: str | None) -> str | None:
    """Return the URL of the admin listener: `url`, or the one of the settings. None if there is none.

    Raises:
        OperatorError: the port is 0, so only the server knows it.
    """
    if url is not None or settings.admin_port is None:
        return url
    if settings.admin_port == 0:
        raise OperatorError("with --admin-port 0 only the server's log contains the port; name it with --admin-url")
    return f"http://{reachable(settings.admin_address)}:{settings.admin_port}"


def inspect(url: str, token: bytes, most: int) -> dict[str, Any]:
    """Return statistics of a server's database, with the `most` largest origins and topics.

    Raises:
        OperatorError: the server is unreachable, or refuses.
    """
    return _post(url, f"/inspect?most={most}", token)


def compact(url: str, token: bytes) -> tuple[int, int]:
    """Compact the database of a server, and return its sizes before and after in bytes.

    Raises:
        OperatorError: the server is unreachable, or refuses.
    """
    sizes = _post(url, "/compact", token)
    return sizes["before_bytes"], sizes["after_bytes"]


def _post(url: str, path: str, token: bytes) -> dict[str, Any]:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=LIMIT_S)) as connection:
        try:
            connection.request("POST", path, headers={"Authorization": b"Bearer " + token} if token else {})
            response = connection.getresponse()
            status = response.status
            fields: dict[str, Any] = (
                json.load(response) if status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE) else {}
            )
            reason = fields["reason"] if status == HTTPStatus.SERVICE_UNAVAILABLE else None
        except OSError as error:
            raise OperatorError(
                f"no server responds at {url} ({error.strerror or error}); start it, or name its admin listener with "
                "--admin-port or --admin-url"
            ) from error
        except (http.client.HTTPException, ValueError, LookupError):
            status, reason = HTTPStatus.BAD_GATEWAY, None
        if reason is not None:
            raise OperatorError(f"the server at {url} is unavailable: {reason}; try again, or read its log")
        if status == HTTPStatus.UNAUTHORIZED:
            raise OperatorError(f"the server at {url} requires its token; name the file with --admin-token-file")
        if status == HTTPStatus.FORBIDDEN:
            raise OperatorError(
                f"the server at {url} allows this from its own machine only; set --admin-token-file on the "
                "server and for this command"
            )
        if status != HTTPStatus.OK:
            raise OperatorError(
                f"the server at {url} is not the admin listener of a tornado-signal; name that with --admin-port or "
                "--admin-url"
            )
        return fields
