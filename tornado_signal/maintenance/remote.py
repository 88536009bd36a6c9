"""A running server, asked through its admin listener."""

import contextlib
import http.client
import json
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from ..errors import OperatorError
from ..settings.settings import Settings
from .health import reachable

LIMIT_S = 3600.0  # for the work of the server


def admin_url(settings: Settings, url: str | None) -> str | None:
    """Where the admin listener is: at the URL that is given, or where the settings say; None for nowhere.

    Raises:
        OperatorError: the settings leave the port to the server.
    """
    if url is not None or settings.admin_port is None:
        return url
    if settings.admin_port == 0:
        raise OperatorError("with --admin-port 0 only the server's log knows the port; name it with --admin-url")
    return f"http://{reachable(settings.admin_address)}:{settings.admin_port}"


def inspect(url: str, token: bytes, most: int) -> dict[str, Any]:
    """Return the numbers of a server's database, with the `most` largest origins and topics.

    Raises:
        OperatorError: the server cannot be asked, or refuses.
    """
    return _post(url, f"/inspect?most={most}", token)


def compact(url: str, token: bytes) -> tuple[int, int]:
    """Have the server compact its database; its sizes before and after, in bytes.

    Raises:
        OperatorError: the server cannot be asked, or refuses.
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
                f"no server answers at {url} ({error.strerror or error}); start it, or say where its admin listener "
                "is, with --admin-port or --admin-url"
            ) from error
        except (http.client.HTTPException, ValueError, LookupError):
            status, reason = HTTPStatus.BAD_GATEWAY, None
        if reason is not None:
            raise OperatorError(f"the server at {url} cannot do that now: {reason}; try again, or look into its log")
        if status == HTTPStatus.UNAUTHORIZED:
            raise OperatorError(
                f"the server at {url} asks for its token; name the file that holds it with --admin-token-file"
            )
        if status == HTTPStatus.FORBIDDEN:
            raise OperatorError(
                f"the server at {url} does that for no other machine, nor on a listener for others; give it and this "
                "command an --admin-token-file"
            )
        if status != HTTPStatus.OK:
            raise OperatorError(
                f"what answers at {url} is not the admin listener of a tornado-signal; say where that is, with "
                "--admin-port or --admin-url"
            )
        return fields
