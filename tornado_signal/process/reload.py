"""Settings that are read again while the process runs."""

import logging
from collections.abc import Callable

from ..errors import OperatorError
from ..http.application import Application
from ..service.ice import open_ice_servers
from ..settings.settings import Settings, merge
from ..settings.sources import ConfigError
from ..stores import quotas_of
from ..system import logs
from ..system.secrets import redis_passwords
from ..system.tls import Tls
from ..transport import ServerState

log = logging.getLogger(__name__)

KEPT = "what is in use stays: %s"


class Running:
    """A server that runs, as far as settings can be applied to it.

    Args:
        application: that of the public listener.
        transport: what that listener's connections share.
        tls: its certificate.
        common: fields of every line of the log.

    Attributes:
        settings: those that count at present.
    """

    def __init__(self, application: Application, transport: ServerState, tls: Tls | None, **common: object) -> None:
        self._application = application
        self._transport = transport
        self._tls = tls
        self._common = common
        self.settings = application.service.settings

    def apply(self, settings: Settings) -> None:
        """Apply what differs from the settings that count at present, and read certificate, key and secrets again.

        Raises:
            OperatorError: one of the files cannot be used; nothing has changed then.
        """
        ice = open_ice_servers(settings)
        passwords = redis_passwords(settings)
        if self._tls is not None and settings.tls_certificate is not None and settings.tls_key is not None:
            self._tls.reload(settings.tls_certificate, settings.tls_key)
        self.settings = settings
        service = self._application.service
        service.settings = service.log.settings = settings
        service.ice = ice
        service.store.allow(quotas_of(settings))
        service.store.use_passwords(*passwords)
        service.limits.apply(settings)
        self._transport.unsent.most_bytes = settings.max_unsent_bytes
        self._transport.unfinished.most_bytes = settings.max_read_ahead_bytes
        self._application.make_routes()
        logs.set_up(settings.log_level, settings.log_format, **self._common)


def reload(running: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]) -> None:
    """Read the settings again and apply what can be applied without a restart; all of it, or nothing.

    Args:
        running: those that count at present.
        read: reads the settings.
        apply: applies those that the server is to have.
    """
    try:
        settings, applied, waiting = merge(running, read())
        apply(settings)
    except (ConfigError, OperatorError) as error:
        log.error(KEPT, error)
        return
    also = ", certificate and key" if settings.tls_certificate else ""
    also += ", passwords of Redis" if settings.redis_password_file or settings.redis_sentinel_password_file else ""
    log.info("settings%s read again, applied: %s", also, ", ".join(applied) or "nothing new")
    if waiting:
        log.warning("settings that have changed and need a restart: %s", ", ".join(waiting))
