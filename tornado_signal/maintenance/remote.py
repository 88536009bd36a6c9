"""A running server, asked through its admin listener."""

import contextlib
import http.client
import io
import json
from collections.abc import Callable, Iterator
from http import HTTPStatus
from urllib.parse import urlsplit

from ..errors import OperatorError
from ..settings.settings import Settings
from .health import reachable

SILENCE_S = 60.0  # for which the server may say nothing in the middle of a backup
COMPACTION_S = 3600.0


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


@contextlib.contextmanager
def backup(url: str, token: bytes) -> Iterator[tuple[Callable[[int], bytes], int]]:
    """A backup, as the server sends it.

    Yields:
        A function that reads so many of the next bytes, or fewer at the end, and the size of the server's directory
        in bytes. Reading raises OperatorError if the server does not send all of it.

    Raises:
        OperatorError: the server cannot be asked, or refuses.
    """
    with _post(url, "/backup", token, SILENCE_S) as response:
        stream = io.BufferedReader(response, 1 << 16)

        def read(size: int) -> bytes:
            try:
                return stream.read(size)
            except http.client.HTTPException as error:
                said = "the server ended it; its log says why"
                raise OperatorError(f"the backup from {url} is not whole: {said}") from error
            except OSError as error:
                raise OperatorError(f"the backup from {url} is not whole: {error}") from error

        yield read, int(response.headers["Store-Bytes"])


def compact(url: str, token: bytes) -> tuple[int, int]:
    """Have the server compact its database; its sizes before and after, in bytes.

    Raises:
        OperatorError: the server cannot be asked, or refuses.
    """
    with _post(url, "/compact", token, COMPACTION_S) as response:
        sizes = json.load(response)
        return sizes["before_bytes"], sizes["after_bytes"]


@contextlib.contextmanager
def _post(url: str, path: str, token: bytes, silence_s: float) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=silence_s)) as connection:
        try:
            connection.request("POST", path, headers={"Authorization": b"Bearer " + token} if token else {})
            response = connection.getresponse()
            status = response.status
            reason = json.load(response)["reason"] if status == HTTPStatus.SERVICE_UNAVAILABLE else None
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
        yield response
