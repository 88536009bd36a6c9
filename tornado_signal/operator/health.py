"""`health`: the health check of a container. Its HTTP client is also that of the command admin."""

import argparse
import json
import os
import re
import socket
import time

from ..errors import OperatorError
from ..settings.origins import WILDCARD
from ..settings.settings import Settings
from ..settings.sources import load
from ..settings.value_types import UNIX_PREFIX
from ..system import terminal

TIMEOUT_S = 5.0
MAX_RESPONSE_BYTES = 64 * 1024
MAX_HEAD_BYTES = 64 * 1024
HTTP = b"HTTP/"  # the beginning of each response


def run(arguments: argparse.Namespace) -> None:
    settings = load(arguments, os.environ)
    where, status = ask_health(settings)
    if status != "ok":
        raise OperatorError(f"the server at {where} is not healthy: {terminal.printable(str(status))}")
    print(f"the server at {where} is healthy")


def ask_health(settings: Settings) -> tuple[str, object]:
    """Return the address of the server with these settings, and its response to `GET /health`."""
    if settings.port == 0:
        raise OperatorError("with --port 0 only the server's log contains the port; name it with --port")
    address = settings.address[0]
    local = address.startswith(UNIX_PREFIX)
    scheme = "https" if settings.tls_certificate else "http"
    host = url_host("localhost" if local else address)
    url = f"{scheme}://{host}:{settings.port}"
    where = address if local else url
    origin = allowed_origin(settings) or url
    request = f"GET /health HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nConnection: close\r\n\r\n"
    try:
        code, body = exchange(_connect(settings), request.encode(), TIMEOUT_S, MAX_RESPONSE_BYTES)
        return where, json.loads(body)["status" if code == 200 else "error"]
    except OSError as error:
        raise OperatorError(f"no server responds at {where} ({error or type(error).__name__})") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise OperatorError(f"the server at {where} is not a tornado-signal") from error


def _connect(settings: Settings) -> socket.socket:
    address = settings.address[0]
    if address.startswith(UNIX_PREFIX):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(TIMEOUT_S)
        client.connect(address.removeprefix(UNIX_PREFIX))
    else:
        client = socket.create_connection((url_host(address).strip("[]"), settings.port), TIMEOUT_S)
    if settings.tls_certificate:
        import ssl

        # The certificate is for the server's public name. Its validity is not checked here.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        client = context.wrap_socket(client)
    return client


def exchange(client: socket.socket, request: bytes, limit_s: float, max_bytes: int) -> tuple[int, bytes]:
    """Send a request on a connection, close it, and return status and body of the response.

    Raise OSError without a complete response in time. Raise ValueError or LookupError if it is too large, incomplete
    or not HTTP. An HTTP client library would take longer to load than the whole health check takes.
    """
    deadline_s = time.monotonic() + limit_s
    response, size = b"", max_bytes
    with client:
        client.sendall(request)
        while len(response) < size and (piece := client.recv(1 << 16)):
            response += piece
            if time.monotonic() > deadline_s:
                raise TimeoutError("no complete response in time")
            if not response.startswith(HTTP[: len(response)]):
                break
            head, end, _ = response.partition(b"\r\n\r\n")
            if end and (length := re.search(rb"(?i)\ncontent-length: *([0-9]{1,20})", head[:MAX_HEAD_BYTES])):
                size = min(max_bytes, len(head) + len(end) + int(length[1]))
    head = response.partition(b"\r\n\r\n")[0]
    if not head.startswith(HTTP) or len(head) > MAX_HEAD_BYTES or len(response) < size < max_bytes:
        raise ValueError("the response is not HTTP, is too large, or bytes are missing")
    return int(head.split()[1]), response[len(head) + 4 : size]


def url_host(address: str) -> str:
    """Return the URL host for the address that a server on this machine listens on."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"[{address}]" if ":" in address else address


def allowed_origin(settings: Settings) -> str | None:
    """Return an allowed origin. None if all origins are allowed."""
    if settings.allowed_origins is None:
        return None
    return min(settings.allowed_origins.entries).replace(WILDCARD, "health.")
