"""Whether the server that the settings describe is healthy: the health check of a container."""

import argparse
import os

import httpx

from ..errors import OperatorError
from ..settings.origins import WILDCARD
from ..settings.settings import Settings
from ..settings.sources import load
from ..settings.value_types import UNIX_PREFIX
from ..system import logs
from .remote import reachable

TIMEOUT_S = 5.0


def run(arguments: argparse.Namespace) -> None:
    """Ask `GET /health`.

    Raises:
        OperatorError: nothing answers, or something else than that the server is healthy.
    """
    logs.set_up("warning")  # httpx would log the request
    settings = load(arguments, os.environ)
    if settings.port == 0:
        raise OperatorError("with --port 0 only the server's log knows the port; name it with --port")
    socket_path = settings.address.removeprefix(UNIX_PREFIX) if settings.address.startswith(UNIX_PREFIX) else None
    scheme = "https" if settings.tls_certificate else "http"
    url = f"{scheme}://{reachable('localhost' if socket_path else settings.address)}:{settings.port}"
    where = settings.address if socket_path else url
    # The certificate is for the server's public name, and whether it is good is not asked here.
    transport = httpx.HTTPTransport(uds=socket_path, verify=False)
    try:
        with httpx.Client(transport=transport, timeout=TIMEOUT_S, trust_env=False) as client:
            response = client.get(f"{url}/health", headers={"Origin": allowed_origin(settings) or url})
            found = response.json()
            said = found["status"] if response.status_code == 200 else found["error"]
    except httpx.HTTPError as error:
        raise OperatorError(f"no server answers at {where} ({error or type(error).__name__})") from error
    except (ValueError, LookupError, TypeError) as error:
        raise OperatorError(f"what answers at {where} is no tornado-signal") from error
    if said != "ok":
        raise OperatorError(f"the server at {where} says: {said}")
    print(f"the server at {where} is healthy")


def allowed_origin(settings: Settings) -> str | None:
    """An origin that the server serves; None if it serves any."""
    if settings.allowed_origins is None:
        return None
    return min(settings.allowed_origins.entries).replace(WILDCARD, "health.")
