"""The files that the settings name, as a process reads them: at its start, for `--check` and on each reload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..auth import Key, load_keys
from ..outgoing.turn_provider import Provider, make_provider
from ..outgoing.webhook_target import Target, make_target
from ..service.ice import IceServers, read_ice_servers
from ..settings.settings import Settings
from ..system.secrets import admin_token, redis_passwords
from ..system.tls import Certificate, read_certificate


@dataclass(frozen=True, repr=False)
class Resources:
    """The files that the settings name, as read."""

    certificate: Certificate | None  # certificate and key for HTTPS, or None
    keys: dict[str, Key] | None  # the keys that verify tokens by name, or None if requests need no token
    ice: IceServers  # the ICE servers for the peers, with the secret of the TURN servers
    turn_provider: Provider | None
    webhooks: Target | None
    # The passwords for Redis and for the Sentinels, None for no password.
    redis_passwords: tuple[str | None, str | None]
    admin_token: bytes  # the token of the admin listener, or empty


CONTENTS: Final[dict[str, Callable[[Resources], object]]] = {
    "certificate and key": lambda resources: resources.certificate,
    "keys of tokens": lambda resources: resources.keys,
    "secret of TURN servers": lambda resources: resources.ice.secret,
    "secret of the TURN provider": lambda resources: resources.turn_provider and resources.turn_provider.key[1],
    "secret of webhooks": lambda resources: resources.webhooks and resources.webhooks.key,
    "admin token": lambda resources: resources.admin_token,
    "passwords of Redis": lambda resources: resources.redis_passwords,
}
"""The contents that a reload can replace, by their names in the log."""


def read_resources(settings: Settings) -> Resources:
    certificate, key = settings.tls_certificate, settings.tls_key
    return Resources(
        certificate=None if certificate is None or key is None else read_certificate(certificate, key),
        keys=None if settings.auth_keys is None else load_keys(settings.auth_keys),
        ice=read_ice_servers(settings),
        turn_provider=make_provider(settings),
        webhooks=make_target(settings),
        redis_passwords=redis_passwords(settings),
        admin_token=admin_token(settings),
    )


def changed_contents(before: Resources, after: Resources) -> list[str]:
    """Return the names of the contents that differ."""
    return [name for name, content in CONTENTS.items() if content(before) != content(after)]
