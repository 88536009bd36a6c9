"""The receiver of webhooks: its URL, and signed requests to it (https://www.standardwebhooks.com)."""

import base64
import hashlib
import hmac
import ipaddress
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ..settings.settings import Settings
from ..system.secrets import webhook_key
from .endpoint import Endpoint, make_endpoint
from .webhook_events import Batch

LOCAL_SUFFIXES: Final = (".localhost", ".local", ".internal")


@dataclass(frozen=True, repr=False)
class Target:
    """The receiver."""

    endpoint: Endpoint
    key: bytes  # the key that signs requests

    @property
    def name(self) -> str:
        """See `Endpoint`."""
        return self.endpoint.name

    async def post(self, batch: Batch) -> None:
        """Send a batch. Raise RequestFailed if the receiver did not respond with 2xx in time."""
        headers = {"Content-Type": "application/json", **self._signature(batch)}
        await self.endpoint.send("POST", headers, batch.body)

    def _signature(self, batch: Batch) -> dict[str, str]:
        timestamp = str(int(time.time()))
        digest = hmac.digest(self.key, f"{batch.id}.{timestamp}.".encode() + batch.body, hashlib.sha256)
        return {
            "webhook-id": batch.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }


def make_target(settings: Settings) -> Target | None:
    """Return the configured receiver, or None if webhooks are off. Needs a running event loop."""
    key, url = webhook_key(settings), settings.webhook_url
    return None if url is None else Target(make_endpoint(url), key)


def unencrypted(settings: Settings) -> str | None:
    """Return the host that gets events unencrypted through the internet, if the URL names one."""
    parts = urlsplit(settings.webhook_url or "")
    host = parts.hostname or ""
    try:
        local = ipaddress.ip_address(host).is_private
    except ValueError:
        local = "." not in host or host.endswith(LOCAL_SUFFIXES)
    return host if parts.scheme == "http" and not local else None
