"""Reloading of settings."""

import logging
from collections.abc import Callable
from functools import partial

from ..errors import OperatorError
from ..http.application import Application
from ..service.ice import open_ice_servers
from ..settings.live import LiveSettings
from ..settings.settings import LIVE, Settings, merge
from ..settings.sources import ConfigError
from ..stores import quotas_of
from ..system import logs
from ..system.secrets import redis_passwords
from ..system.tls import Tls
from ..transport import ServerState
from ..webhooks import Webhooks

log = logging.getLogger(__name__)

RELOAD_FAILED = "reload failed, keeping the current settings: %s. Fix it and reload again"


# Read from `service.settings` whenever they are needed.
OF_CALLS = (
    *("admin_topics", "allowed_origins", "drain_delay_ms", "max_body_bytes"),
    *("peerjs_discovery", "shared_protocols", "trusted_proxies"),
)
OF_THE_LOG = ("access_log", "allowed_origins", "log_subjects", "trusted_proxies")
OF_TOKENS = ("auth_anonymous", "auth_audience", "auth_issuer", "auth_keys")
OF_ROUTES = ("auth_anonymous", "auth_keys", "demo", "max_offer", "protocols")
OF_LIMITS = (
    *("max_bytes_per_address", "max_connections", "max_connections_per_address"),
    *("max_sessions_per_address", "rate_per_address"),
    *("trusted_proxies", "unlimited_addresses"),
)
OF_WEBHOOKS = ("access_log", "webhook_events", "webhook_secret_file", "webhook_url")
OF_STORES = ("max_body_bytes", "max_candidates", "max_sessions_per_origin", "max_store_bytes", "min_free_bytes")


def make_live_settings(
    settings: Settings,
    application: Application,
    transport: ServerState,
    tls: Tls | None,
    webhooks: Webhooks,
    **common: object,
) -> LiveSettings:
    """Make the live settings of a server.

    Args:
        settings: the settings at the start.
        application: the application of the public listener.
        transport: the state of that listener's connections.
        tls: the certificate, if any.
        webhooks: the sender of events.
        common: fields of every log line.
    """
    live, service = LiveSettings(settings), application.service

    def calls(new: Settings) -> Callable[[], None]:
        return partial(setattr, service, "settings", new)

    def requests(new: Settings) -> Callable[[], None]:
        return partial(setattr, service.log, "settings", new)

    def routes(new: Settings) -> Callable[[], None]:
        return partial(application.make_routes, new)

    def ice(new: Settings) -> Callable[[], None]:
        return partial(setattr, service, "ice", open_ice_servers(new))

    def tokens(new: Settings) -> Callable[[], None]:
        return service.authority.prepare(new) if service.authority is not None else lambda: None

    def quotas(new: Settings) -> Callable[[], None]:
        return partial(service.store.allow, quotas_of(new))

    def passwords(new: Settings) -> Callable[[], None]:
        return partial(service.store.use_passwords, *redis_passwords(new))

    def limits(new: Settings) -> Callable[[], None]:
        return partial(service.limits.apply, new)

    def memory(new: Settings) -> Callable[[], None]:
        return partial(transport.limit_memory, new.max_unsent_bytes)

    def lines(new: Settings) -> Callable[[], None]:
        return partial(logs.set_up, new.log_level, new.log_format, **common)

    def certificate(new: Settings) -> Callable[[], None]:
        if tls is not None and new.tls_certificate is not None and new.tls_key is not None:
            tls.reload(new.tls_certificate, new.tls_key)
        return lambda: None

    live.subscribe(calls, *OF_CALLS)
    live.subscribe(requests, *OF_THE_LOG)
    live.subscribe(ice, "stun_servers", "turn_secret_file", "turn_servers", "turn_ttl_s")
    live.subscribe(tokens, *OF_TOKENS)
    live.subscribe(quotas, *OF_STORES)
    live.subscribe(passwords, "redis_password_file", "redis_sentinel_password_file")
    live.subscribe(limits, *OF_LIMITS)
    live.subscribe(memory, "max_unsent_bytes")
    live.subscribe(webhooks.prepare, *OF_WEBHOOKS)
    live.subscribe(routes, *OF_ROUTES)
    live.subscribe(lines, "log_format", "log_level")
    # The certificate is last, because reading it replaces the old one. No later step may fail.
    live.subscribe(certificate, "tls_certificate", "tls_key")
    return live


def reload(
    running: Settings,
    read: Callable[[], Settings],
    apply: Callable[[Settings], None],
    names: frozenset[str] = LIVE,
) -> None:
    """Re-read the settings, and apply those that need no restart. On an error apply none.

    Args:
        running: the current settings.
        read: reads the settings.
        apply: applies the merged settings.
        names: the settings that can be applied.
    """
    try:
        settings, applied, waiting = merge(running, read(), names)
        apply(settings)
    except (ConfigError, OperatorError) as error:
        log.error(RELOAD_FAILED, error)
        return
    also = ", certificate and key" if settings.tls_certificate else ""
    also += ", keys of tokens" if settings.auth_keys else ""
    also += ", secret of webhooks" if settings.webhook_secret_file else ""
    also += ", passwords of Redis" if settings.redis_password_file or settings.redis_sentinel_password_file else ""
    log.info("settings%s reloaded, applied: %s", also, ", ".join(applied) or "nothing new")
    if waiting:
        log.warning("changed settings that need a restart: %s", ", ".join(waiting))
