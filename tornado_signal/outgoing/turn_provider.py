"""The providers of TURN servers: their requests and responses."""

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ..errors import OperatorError
from ..service.ice import IceServer, parse_server
from ..settings.settings import Settings
from ..settings.value_types import PROVIDERS
from ..system.secrets import read_secret
from .endpoint import Endpoint, make_endpoint

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


def as_form(fields: Mapping[str, object]) -> str:
    """Encode fields like a form of HTML. None of them needs escaping."""
    return "&".join(f"{name}={value}" for name, value in fields.items())


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
        as_form,
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
    if named is None:
        if path is not None:
            raise OperatorError("--turn-provider-secret-file needs --turn-provider")
        return None
    if path is None:
        raise OperatorError("--turn-provider needs --turn-provider-secret-file")
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
