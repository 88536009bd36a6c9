"""The routes of all protocols."""

from collections.abc import Callable

from ..http.application import BELOW, Route
from ..http.upgrade import MakeReceiver
from ..relay import Relay
from ..service.client_connection import Client
from ..settings.settings import Settings
from . import nostr, peerjs, tracker, yjs
from .connection import ProtocolConnection
from .endpoint import ProtocolUpgrade

MakeConnection = Callable[[Client, Relay, str | None], ProtocolConnection]


def protocol_routes(relay: Relay, settings: Settings) -> dict[str, Route]:

    def upgrade(path: str, protocol: str, make: MakeConnection, handler: type[ProtocolUpgrade]) -> Route:
        return Route(path, handler, {"protocol": protocol, "make_receiver": receiver_of(protocol, make, relay)})

    arguments = {"protocol": "peerjs", "relay": relay}
    peers = {
        peerjs.PATH: upgrade(peerjs.PATH, "peerjs", peerjs.PeerJsConnection, peerjs.PeerJsUpgrade),
        "/{topic}/id": Route("/{key}/id", peerjs.PeerIdHandler, arguments),
        "/{topic}/peers": Route("/{key}/peers", peerjs.PeersHandler, arguments),
    }
    rooms = upgrade(yjs.PATH, "y-webrtc", yjs.YConnection, yjs.YUpgrade)
    routes = {
        # Many applications have the option `path: "/peerjs"`, and all paths of the library are below it then.
        "peerjs": [*peers.items(), *((peerjs.PATH + path, route) for path, route in peers.items())],
        "y-webrtc": [(yjs.PATH, rooms), (yjs.PATH + BELOW, rooms)],  # the original server has no paths
        "tracker": [
            (path, upgrade(tracker.PATH, "tracker", tracker.TrackerConnection, ProtocolUpgrade))
            for path in (tracker.PATH, tracker.ANNOUNCE_PATH)
        ],
        "nostr": [
            (path, upgrade(nostr.PATH, "nostr", nostr.NostrConnection, nostr.NostrUpgrade))
            for path in (nostr.PATH, nostr.PATH + "/")  # some clients end each URL with a slash
        ],
    }
    return {path: route for protocol in settings.protocols for path, route in routes[protocol]}


def receiver_of(protocol: str, make: MakeConnection, relay: Relay) -> MakeReceiver:

    def make_receiver(client: Client) -> ProtocolConnection:
        shared = protocol in client.service.settings.shared_protocols
        return make(client, relay, None if shared else client.origin)

    return make_receiver
