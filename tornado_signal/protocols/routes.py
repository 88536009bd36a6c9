"""The routes of all protocols."""

from collections.abc import Callable, Iterable

from ..http.application import BELOW, Route
from ..http.upgrade import MakeReceiver
from ..relay import Relay
from ..service.client_connection import Client
from . import godot, matchbox, nostr, peerjs, rxdb, tracker, yjs
from .connection import ProtocolConnection
from .endpoint import ProtocolUpgrade
from .rooms import Rooms

MakeConnection = Callable[[Client, Relay, str | None], ProtocolConnection]


def protocol_routes(relay: Relay, protocols: Iterable[str]) -> dict[str, Route]:

    def upgrade(path: str, protocol: str, make: MakeConnection, handler: type[ProtocolUpgrade]) -> Route:
        return Route(path, handler, {"protocol": protocol, "make_receiver": receiver_of(protocol, make, relay)})

    def meeting(path: str, protocol: str, make: Callable[[Client, Rooms, str | None], ProtocolConnection]) -> Route:
        handler = matchbox.MatchboxUpgrade if make is matchbox.MatchboxConnection else ProtocolUpgrade
        return upgrade(path, protocol, lambda client, relay, origin: make(client, rooms, origin), handler)

    rooms = Rooms(relay)
    arguments = {"protocol": "peerjs", "relay": relay}
    peers = {
        peerjs.PATH: upgrade(peerjs.PATH, "peerjs", peerjs.PeerJsConnection, peerjs.PeerJsUpgrade),
        "/{topic}/id": Route("/{key}/id", peerjs.PeerIdHandler, arguments),
        "/{topic}/peers": Route("/{key}/peers", peerjs.PeersHandler, arguments),
    }
    documents = upgrade(yjs.PATH, "y-webrtc", yjs.YConnection, yjs.YUpgrade)
    routes = {
        # Many applications have the option `path: "/peerjs"`, and all paths of the library are below it then.
        "peerjs": [*peers.items(), *((peerjs.PATH + path, route) for path, route in peers.items())],
        "y-webrtc": [(yjs.PATH, documents), (yjs.PATH + BELOW, documents)],  # the original server has no paths
        "tracker": [
            (path, upgrade(tracker.PATH, "tracker", tracker.TrackerConnection, ProtocolUpgrade))
            for path in (tracker.PATH, tracker.ANNOUNCE_PATH)
        ],
        "nostr": [
            (path, upgrade(nostr.PATH, "nostr", nostr.NostrConnection, nostr.NostrUpgrade))
            for path in (nostr.PATH, nostr.PATH + "/")  # some clients end each URL with a slash
        ],
        "rxdb": [(rxdb.PATH, meeting(rxdb.PATH, "rxdb", rxdb.RxdbConnection))],
        "matchbox": [(matchbox.PREFIX + "*", meeting(matchbox.PATH, "matchbox", matchbox.MatchboxConnection))],
        "godot": [(godot.PATH, meeting(godot.PATH, "godot", godot.GodotConnection))],
    }
    return {path: route for protocol in protocols for path, route in routes[protocol]}


def receiver_of(protocol: str, make: MakeConnection, relay: Relay) -> MakeReceiver:

    def make_receiver(client: Client) -> ProtocolConnection:
        shared = protocol in client.service.settings.shared_protocols
        return make(client, relay, None if shared else client.origin)

    return make_receiver
