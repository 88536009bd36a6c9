"""The providers of TURN servers: their requests and responses, and regular requests to the configured one."""

import asyncio
import base64
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from ..errors import OperatorError
from ..service.ice import IceServer, ProvidedServers, parse_server
from ..service.service import Service
from ..settings.settings import Settings
from ..settings.value_types import PROVIDERS
from ..system.secrets import read_secret
from .endpoint import Endpoint, RequestFailed, make_endpoint

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 5.0
MAX_RETRY_S: Final = 300.0
MAX_RETRY_AFTER_S: Final = 3600.0
ADVICE: Final = {
    401: "check --turn-provider-secret-file and --turn-provider",
    403: "check --turn-provider-secret-file and --turn-provider",
    404: "check --turn-provider",
    429: "the provider limits requests; start fewer servers, or raise its limit",
}
"""Advice for the operator, by the status of the response."""

MAX_SERVERS: Final = 20
MAX_TTL_S: Final = 86_400  # Twilio issues none that are valid for longer
MIN_LIFETIME_S: Final = 60
MAX_LIFETIME_S: Final = 30 * 86_400


class Form(NamedTuple):
    """The form of a provider's requests and responses."""

    method: str
    url: str  # `{name}` is what the setting names, and `{secret}` the secret
    authorization: str  # the scheme and the credentials of the header, or empty
    body: Callable[[int], Mapping[str, object]] | None  # the fields for a lifetime in seconds, or None
    servers: tuple[str, ...]  # the keys of the servers in the response. The response itself if it is a list
    encode: Callable[[Mapping[str, object]], str] = json.dumps  # the encoding of the body: JSON, or a form


FORMS: Final[dict[str, Form]] = {
    # https://developers.cloudflare.com/realtime/turn/generate-credentials/
    "cloudflare": Form(
        "POST",
        "https://rtc.live.cloudflare.com/v1/turn/keys/{name}/credentials/generate-ice-servers",
        "Bearer {secret}",
        lambda ttl_s: {"ttl": ttl_s},
        ("iceServers",),
    ),
    # https://www.metered.ca/docs/turn-rest-api/get-credential
    "metered": Form("GET", "https://{name}.metered.live/api/v1/turn/credentials?apiKey={secret}", "", None, ()),
    # https://www.twilio.com/docs/stun-turn/api
    "twilio": Form(
        "POST",
        "https://api.twilio.com/2010-04-01/Accounts/{name}/Tokens.json",
        "Basic {name}:{secret}",
        lambda ttl_s: {"Ttl": ttl_s},
        ("ice_servers",),
        urlencode,
    ),
    # https://docs.xirsys.com/?pg=api-turn
    "xirsys": Form(
        "PUT",
        "https://global.xirsys.net/_turn/{name}",
        "Basic {secret}",
        lambda ttl_s: {"format": "urls", "expire": str(ttl_s)},
        ("v", "iceServers"),
    ),
}
OWN: Final = Form("GET", "{name}", "Bearer {secret}", None, ("iceServers",))
"""The form of the operator's own backend (docs/turn.md#your-own-backend)."""
assert FORMS.keys() == set(PROVIDERS)


@dataclass(frozen=True, repr=False)
class Provider:
    """The configured provider."""

    name: str  # how the log names it
    form: Form
    key: tuple[str, bytes, int]  # setting, secret and lifetime: providers with the same ones are equal
    endpoint: Endpoint

    async def request(self, now_ms: int) -> tuple[tuple[IceServer, ...], float]:
        """Request the servers. Return them and the seconds for which they are valid.

        Raise RequestFailed, or ValueError if the response is not of the form.
        """
        named, secret, ttl_s = self.key
        headers, body = {}, None
        if self.form.authorization:
            scheme, _, credentials = self.form.authorization.partition(" ")
            credentials = credentials.format(name=named.partition(":")[2], secret=secret.decode())
            if scheme == "Basic":
                credentials = base64.b64encode(credentials.encode()).decode()
            headers["Authorization"] = f"{scheme} {credentials}"
        if self.form.body is not None:
            kind = "json" if self.form.encode is json.dumps else "x-www-form-urlencoded"
            headers["Content-Type"] = f"application/{kind}"
            body = self.form.encode(self.form.body(ttl_s)).encode()
        response = await self.endpoint.send(self.form.method, {"Accept": "application/json", **headers}, body)
        return parse_response(self.form, response, ttl_s, now_ms)


def make_provider(settings: Settings) -> Provider | None:
    """Return the configured provider, or None. Needs a running event loop."""
    path, named = settings.turn_provider_secret_file, settings.turn_provider
    if named is None or path is None:  # settings have both or none
        return None
    secret = read_secret(path, "--turn-provider-secret-file")
    kind, _, name = named.partition(":")
    form = FORMS.get(kind, OWN)
    if not (secret.isascii() and secret.decode().isprintable()):
        raise OperatorError(f"--turn-provider-secret-file {path} must hold ASCII characters only")
    if kind == "xirsys" and b":" not in secret:
        raise OperatorError(f"--turn-provider-secret-file {path} must hold the ident of Xirsys, a colon and the secret")
    url = form.url.format(name=named if form is OWN else name, secret=quote(secret, safe=""))
    endpoint = make_endpoint(url)
    key = (named, secret, min(settings.turn_ttl_s, MAX_TTL_S))
    return Provider(endpoint.name if form is OWN else kind, form, key, endpoint)


def parse_response(form: Form, body: bytes, ttl_s: int, now_ms: int) -> tuple[tuple[IceServer, ...], float]:
    """Return the servers of a response, and the seconds for which they are valid.

    Servers with wrong fields are ignored. Raise ValueError if no TURN server is left, or if it expires too soon.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    found: Any = content
    for key in () if isinstance(content, list) else form.servers:
        found = found.get(key) if isinstance(found, dict) else None
    # Xirsys has all URLs in one server, which is not in a list.
    parsed = map(parse_server, found if isinstance(found, list) else [found])
    servers = tuple([server for server in parsed if server is not None][:MAX_SERVERS])
    if not any(url.startswith("turn") for server in servers for url in server["urls"]):
        raise ValueError("the response names no TURN server")
    lifetime_s = min(_lifetime_s(content, ttl_s, now_ms), MAX_LIFETIME_S)
    if lifetime_s < MIN_LIFETIME_S:
        raise ValueError(f"the servers of the response expire in {lifetime_s:.0f} s, which is too soon")
    return servers, lifetime_s


def _lifetime_s(content: Any, ttl_s: int, now_ms: int) -> float:
    """Return the lifetime of a response in seconds, or the requested one if it does not have any."""
    if isinstance(content, dict):
        if type(expires_ms := content.get("expiresAt")) is int:
            return (expires_ms - now_ms) / 1000
        reported = content.get("ttl")
        if type(reported) is int or (isinstance(reported, str) and reported.isdecimal() and reported.isascii()):
            return int(str(reported)[:12])
    return ttl_s


class Refresher:
    """The requests of one process to the provider. Needs a running event loop.

    Servers are requested again after half of their lifetime, and used until they expire.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._provider: Provider | None = None
        self._task: asyncio.Task[None] | None = None

    def use(self, provider: Provider | None) -> None:
        """Request servers from another provider, with another secret, or from none. A failed request is repeated."""
        provided = self._service.provided
        if self._provider is not None and provider is not None and provider.key == self._provider.key:
            if not provided.problem:
                return
        else:
            self._service.provided = ProvidedServers(provider.name if provider else "")
        if self._task is not None:
            self._task.cancel()
        self._provider = provider
        self._task = None if provider is None else asyncio.create_task(self._run(provider))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self, provider: Provider) -> None:
        retry_s = FIRST_RETRY_S
        while True:
            least_s = retry_s
            try:
                least_s = await self._request(provider)
                retry_s = FIRST_RETRY_S
            except (RequestFailed, ValueError) as error:
                self._failed(provider, error)
                retry_after_s = error.retry_after_s if isinstance(error, RequestFailed) else 0.0
                least_s = max(retry_s, min(retry_after_s, MAX_RETRY_AFTER_S))
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            except Exception as error:
                log.exception("unhandled exception; please report this bug")
                self._failed(provider, error)
            await asyncio.sleep(least_s * random.uniform(1.0, 1.1))

    async def _request(self, provider: Provider) -> float:
        """Request the servers. Return the seconds after which they should be requested again."""
        provided, clock = self._service.provided, self._service.clock
        now_ms = int(clock.wall_s() * 1000)
        provided.servers, lifetime_s = await provider.request(now_ms)
        provided.expires_ms = now_ms + int(lifetime_s * 1000)
        provided.succeeded += 1
        if provided.problem:
            log.warning("the TURN provider %s works again", provider.name)
        provided.problem = ""
        return lifetime_s / 2

    def _failed(self, provider: Provider, error: Exception) -> None:
        provided = self._service.provided
        provided.failed += 1
        problem = describe(provider, error, "trying again")
        if not provided.problem:
            left_s = provided.expires_ms / 1000 - self._service.clock.wall_s()
            peers = f"peers get its last servers for {left_s:.0f} s" if left_s > 0 else "peers get no servers of it"
            log.warning("the TURN provider %s fails: %s. Until then %s", provider.name, problem, peers)
        provided.problem = problem


def describe(provider: Provider, error: Exception, retry: str = "") -> str:
    """Return what is wrong and what to do about it, without the secret."""
    advice = ADVICE.get(error.status if isinstance(error, RequestFailed) else 0, retry)
    return (f"{error}; {advice}" if advice else str(error)).replace(provider.key[1].decode(), "…")


async def check_provider(provider: Provider, now_ms: int) -> str:
    """Request the servers once, for `serve --check`. Return the result as text.

    A failure is only logged: a server also starts while its provider fails.
    """
    try:
        servers, lifetime_s = await provider.request(now_ms)
    except (RequestFailed, ValueError) as error:
        log.warning("the TURN provider %s fails: %s", provider.name, describe(provider, error))
        return f"{provider.name}, which fails"
    return f"{provider.name}, {len(servers)} servers, valid for {lifetime_s:.0f} s"
