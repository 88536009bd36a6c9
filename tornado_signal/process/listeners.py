"""The public listener and the admin listener."""

import logging
import os
import socket
from collections import Counter

from tornado import web

from ..http.error_responses import make_error_responder
from ..limits.per_address import AdminConnectionLimiter
from ..operator.handlers import AdminPolicy, Operator, make_application
from ..outgoing.webhooks import warn_of_unencrypted_events
from ..service.ice import NO_ICE_SERVERS
from ..service.request_log import RequestLog
from ..settings.settings import LiveSettings, Settings
from ..system.secrets import warn_of_readable_secrets
from ..system.service_manager import passed_sockets
from ..system.sockets import is_local, open_sockets, url
from ..transport import Server, ServerState

log = logging.getLogger(__name__)


def open_all_sockets(settings: Settings) -> tuple[list[socket.socket], list[socket.socket]]:
    """Open the sockets, or use those passed by the service manager.

    Return those of the public and of the admin listener. The second list is empty without an admin listener.
    """
    public, admin = passed_sockets(os.environ)
    if settings.admin_port is not None:
        admin = admin or open_sockets([settings.admin_address], settings.admin_port, "--admin-port")
    # The public socket is last: after a later failure, the file of a Unix socket would remain.
    return public or open_sockets(settings.address, settings.port, "--port", settings.socket_mode), admin


async def start_admin_server(
    operator: Operator, sockets: list[socket.socket], policy: AdminPolicy, live: LiveSettings, full: Counter[str]
) -> Server:
    """Start the server of the admin listener, or one that listens nowhere without sockets.

    At its connection limit, a new connection replaces an idle one. `full` counts its refusals by resource.
    """
    application = web.Application()
    if sockets:
        policy.local = all(map(is_local, sockets))
        if not (policy.local or policy.token):
            log.info("the admin listener accepts other machines: only health and metrics without --admin-token-file")
        application = make_application(operator, policy)
    limiter = AdminConnectionLimiter(full)
    server = Server(ServerState(application, make_error_responder(RequestLog(live)), limiter))
    limiter.make_room = server.make_room
    await server.start(sockets)
    return server


def log_start(urls: list[str], admin: list[socket.socket], settings: Settings, descriptors: int) -> None:
    """Log warnings about the settings, the limit of connections, and the URLs of the public and the admin listener.

    A process has file descriptors for `descriptors` connections.
    """
    if not (settings.stun_servers or settings.turn_servers or settings.turn_provider):
        log.info("ICE servers: %s", NO_ICE_SERVERS)
    warn_of_readable_secrets(settings)
    warn_of_unencrypted_events(settings)
    limit = "--max-connections" if settings.max_connections <= descriptors else "the limit of open files"
    each = "" if settings.workers == 1 else " in each worker"
    log.info("room for %d connections%s, by %s", min(settings.max_connections, descriptors), each, limit)
    for public_url in urls:
        log.info("listening on %s", public_url)
    for listening in admin:
        log.info("admin listener on %s", url(listening, "http"))
