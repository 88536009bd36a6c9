"""The files that the settings name, and reloading of both."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..auth import Key, load_keys
from ..errors import OperatorError
from ..outgoing.turn import Provider, make_provider
from ..outgoing.webhooks import Target, make_target
from ..service.ice import IceServers, read_ice_servers
from ..settings.settings import LiveSettings, Settings, merge
from ..settings.sources import RELOAD_VARIABLE, ConfigError
from ..system.lifecycle import LEAVING, Lifecycle
from ..system.secrets import admin_token, redis_passwords, warn_of_readable_secrets
from ..system.service_manager import Notifier
from ..system.tls import Certificate, read_certificate
from .draining import on_hangup

log = logging.getLogger(__name__)

RELOAD_FAILED = "reload failed, keeping the current settings: %s. Fix it and reload again"


@dataclass(frozen=True, repr=False)
class Resources:
    """The files that the settings name, as a process reads them at its start, for `--check` and on each reload."""

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
    return [name for name, content in CONTENTS.items() if content(before) != content(after)]


def reload_status(live: LiveSettings) -> str:
    """Return the end of the status line: why the last reload failed, or nothing."""
    return f"; reload failed, keeping the previous settings: {live.reload_error}" if live.reload_error else ""


Use = Callable[[Settings, Resources], None]


class Reloader:
    """Replaces the settings in force, and the files that they name: all of them, or none. `use` does not raise."""

    def __init__(self, live: LiveSettings, resources: Resources, use: Use) -> None:
        self._live = live
        self._resources = resources
        self._use = use

    def apply(self, settings: Settings) -> list[str]:
        """Apply settings, and re-read the files that they name. Return the names of the contents that have changed.

        Raise OperatorError if a file cannot be used. Nothing has changed then.
        """
        resources = read_resources(settings)
        changed = changed_contents(self._resources, resources)
        self._live.current, self._resources = settings, resources
        self._use(settings, resources)
        return changed

    def follow(self, sent: Settings) -> None:
        """Apply the settings in force at the supervisor, as far as they need no restart."""
        with self._reporting():
            self.apply(merge(self._live.current, sent)[0])

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log a failed reload, and note the result."""
        try:
            yield
        except (ConfigError, OperatorError) as error:
            log.error(RELOAD_FAILED, error)
            self._live.reload_error = " ".join(str(error).split())
        else:
            self._live.reload_error = ""

    def reload_on_hangup(
        self, read: Callable[[], Settings], lifecycle: Lifecycle, notifier: Notifier, status: Callable[[], str]
    ) -> None:
        """Reload on each SIGHUP until the process stops, and report that with `status` to the service manager."""

        def reload() -> None:
            if lifecycle.state < LEAVING:
                notifier.reloading()
                try:
                    self.reload(read)
                finally:
                    notifier.ready(status())

        on_hangup(reload)

    def reload(self, read: Callable[[], Settings]) -> None:
        """Re-read the settings, and apply those that need no restart. Log the result and report it to `ExecReload=`.

        `read` raises ConfigError if they are invalid.
        """
        with self._reporting():
            settings, applied, waiting = merge(self._live.current, read())
            applied += self.apply(settings)
            warn_of_readable_secrets(settings)
            log.info("settings reloaded, applied: %s", ", ".join(applied) or "nothing new")
            if waiting:
                log.warning("changed settings that need a restart: %s", ", ".join(waiting))
        if path := os.environ.get(RELOAD_VARIABLE):
            try:
                Path(f"{path}.result").write_text(self._live.reload_error or "reloaded")
            except OSError as error:
                log.warning("cannot report the result of the reload: %s", error)
