"""The listeners of the process: the public one and the operator's."""

import logging
import os
import socket

from tornado import web

from ..limits.per_address import AdminConnectionLimiter
from ..service.ice import NO_ICE_SERVERS
from ..service.service import Service
from ..settings.settings import Settings
from ..system.activation import passed_sockets
from ..system.sockets import is_local, open_sockets, url
from ..system.tls import Tls
from ..transport import Server, ServerState
from ..transport.state import Refusal

log = logging.getLogger(__name__)


def open_all_sockets(settings: Settings) -> tuple[list[socket.socket], list[socket.socket]]:
    """The public and the admin listener's sockets, as passed to the process or as configured.

    Returns:
        Both; none of the admin listener when it is off.
    """
    public, admin = passed_sockets(os.environ)
    if settings.admin_port is not None:
        admin = admin or open_sockets(settings.admin_address, settings.admin_port, "--admin-port")
    # Last: if something failed after it, the file of a Unix socket would stay behind.
    return public or open_sockets(settings.address, settings.port, "--port", settings.socket_mode), admin


def open_tls(settings: Settings) -> Tls | None:
    """Certificate and key, if there is to be HTTPS.

    Raises:
        OperatorError: they cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_certificate, settings.tls_key)


def load_admin_application(
    service: Service, state: ServerState, sockets: list[socket.socket], token: bytes, tls: Tls | None
) -> web.Application:
    """The application of the admin listener on some sockets; what it is made with takes a while to load."""
    from ..admin.application import AdminPolicy, make_admin_application

    local = all(map(is_local, sockets))
    if not (local or token) and service.settings.store == "leveldb":
        log.info("the admin listener is for other machines, too: without --admin-token-file it does no maintenance")
    return make_admin_application(service, state, AdminPolicy(token, local), tls)


def make_admin_server(application: web.Application, refusal: Refusal) -> Server:
    """Make the server of the admin listener. Without a free place, a new connection replaces an idle one."""
    limiter = AdminConnectionLimiter()
    server = Server(ServerState(application, refusal, limiter=limiter))
    limiter.make_room = server.make_room
    return server


def log_start(urls: list[str], admin: list[socket.socket], settings: Settings) -> None:
    """Log whether ICE servers are missing, the URLs of the public listener and the addresses of the admin listener."""
    if not (settings.stun_servers or settings.turn_servers):
        log.info("ICE servers: %s", NO_ICE_SERVERS)
    for each in urls:
        log.info("listening on %s", each)
    for listening in admin:
        log.info("admin listener on %s", url(listening, "http"))
